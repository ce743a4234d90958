"""Regular expressions, choices and grammars of clients are enforced, or refused by field and reason."""

import random
import re

import pytest

from tests.kit.chat.constrained_walks import allowed, compiled, spell, stops_of, take_text, walk, walk_tokenizer
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.formats import ANY_OBJECT, choice_format, lark_format, regex_format, schema_format
from tlserve.errors import ClientError

TOKENIZER = walk_tokenizer()
STOPS = stops_of(TOKENIZER)


def grammar_of(wanted):
    grammar = answer_grammar(wanted, None, PLAIN, FROM_NOTHING, TOKENIZER.special_tokens)
    assert grammar is not None
    return compiled(grammar, TOKENIZER)


def texts(wanted, count=20):
    grammar, rng = grammar_of(wanted), random.Random(7)
    found = (walk(grammar.start(), TOKENIZER, STOPS, rng, limit=300) for _ in range(count))
    return [spell(TOKENIZER, tokens).decode() for tokens in found if tokens is not None]


def refusal(make):
    with pytest.raises(ClientError) as caught:
        grammar_of(make())
    assert caught.value.param == "structured_outputs"
    return caught.value.message


@pytest.mark.spec("CHAT-45")
@pytest.mark.parametrize(
    "pattern", [r"[a-c]{2,5}/\d", r"^ab+$", r"^a|b$", r"(?:yes|no)\n?", r"é\/[/]漢?", "a\nb", r"(a|ab)(c|bcd)?"]
)
def test_a_regular_expression_matches_the_whole_answer(pattern) -> None:
    found = texts(regex_format(pattern, "structured_outputs"))
    assert found
    assert [text for text in found if not re.fullmatch(pattern, text)] == []


@pytest.mark.spec("CHAT-45")
def test_an_answer_is_one_of_the_choices() -> None:
    choices = ["a", "ab", 'say "hi"\n', "漢字", "\\d"]
    assert set(texts(choice_format(choices, "structured_outputs"), 120)) == set(choices)


@pytest.mark.spec("CHAT-45")
def test_there_can_be_many_choices() -> None:
    constraint = grammar_of(choice_format([f"choice {i}" for i in range(5000)], "structured_outputs")).start()
    assert take_text(constraint, TOKENIZER, "choice 4999")


@pytest.mark.spec("CHAT-44")
def test_json_object_mode_gives_an_object_without_extra_spaces() -> None:
    grammar = grammar_of(schema_format(ANY_OBJECT, "response_format", "response_format"))
    assert take_text(grammar.start(), TOKENIZER, '{"a": [1, null], "b":{}}')
    assert not take_text(grammar.start(), TOKENIZER, "[")
    assert not take_text(grammar.start(), TOKENIZER, '{"a":  ')


@pytest.mark.spec("CHAT-68")
def test_lark_and_gbnf_are_distinguished() -> None:
    assert set(texts(lark_format('start: "a" ("b" | /[cd]/)  // no more', "structured_outputs"))) <= {"ab", "ac", "ad"}
    assert set(texts(lark_format('root ::= "a" ("b" | [cd])  # no more', "structured_outputs"))) <= {"ab", "ac", "ad"}


@pytest.mark.spec("CHAT-45")
def test_a_schema_inside_a_grammar_is_enforced() -> None:
    lark = 'start: "= " value\nvalue: %json {"type": "integer", "minimum": 10, "maximum": 19}'
    assert all(re.fullmatch("= 1[0-9]", text) for text in texts(lark_format(lark, "structured_outputs")))


@pytest.mark.spec("CHAT-46", "CHAT-69")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: regex_format("a(b", "structured_outputs"), "cannot be compiled: .*unclosed group"),
        (lambda: regex_format("(?=a)b", "structured_outputs"), "cannot be compiled: .*look-around"),
        (lambda: regex_format("(a{1000}){1000}", "structured_outputs"), "cannot be compiled: "),
        (lambda: regex_format("", "structured_outputs"), "is empty"),
        (lambda: choice_format([], "structured_outputs"), "must be a list of non-empty strings"),
        (lambda: choice_format(["a", ""], "structured_outputs"), "must be a list of non-empty strings"),
        (lambda: lark_format(" ", "structured_outputs"), "is empty"),
        (lambda: lark_format("start: other", "structured_outputs"), 'cannot be compiled: .*unknown name: "other"'),
        (lambda: lark_format('begin: "a"', "structured_outputs"), "cannot be compiled: no start rule found"),
        (lambda: lark_format('start: "a', "structured_outputs"), "line 1: . starts a string or a regular expression"),
        (lambda: lark_format('start: "a" <|im_end|>', "structured_outputs"), "<.im_end.> is a control token"),
        (lambda: lark_format('start: "a" <[1]>', "structured_outputs"), "is a control token"),
        (lambda: lark_format("start: @other", "structured_outputs"), "@other refers to another grammar"),
        (lambda: lark_format("start[max_tokens=3]: /a*/", "structured_outputs"), "max_tokens= is an attribute"),
        (lambda: lark_format('start: %json {"not": {}}', "structured_outputs"), "%json.not cannot be enforced here"),
        (lambda: lark_format("start: %json {a}", "structured_outputs"), "is not JSON"),
        (lambda: lark_format('start: %json {"const": "\\ud800"}', "structured_outputs"), "is not JSON"),
        (lambda: lark_format('start: %json {"const": NaN}', "structured_outputs"), "is not JSON"),
        (lambda: lark_format('start: %json {"const": 1' + "1" * 5000 + "}", "structured_outputs"), "is not JSON"),
        (lambda: lark_format('root ::= "a" missing', "structured_outputs"), "is not valid GBNF: .*missing"),
        (lambda: lark_format('root ::= ["a"', "structured_outputs"), "is not valid GBNF: "),
    ],
)  # fmt: skip
def test_a_wrong_format_is_refused_by_field_and_reason(make, words) -> None:
    message = refusal(make)
    assert message.startswith("structured_outputs")
    assert re.search(words, message, re.DOTALL), message


@pytest.mark.spec("CHAT-69")
@pytest.mark.parametrize("text", ['"<|im_end|>"', r"/<\|im_end\|>|@a/", '"@a" // <|im_end|> @x', '"stop=" /[/<]b>/'])
def test_text_that_only_looks_like_a_token_or_a_name_is_accepted(text) -> None:
    lark_format(f"start: {text}", "structured_outputs")


@pytest.mark.spec("CHAT-46")
def test_text_that_spells_a_control_token_never_becomes_one() -> None:
    grammar = grammar_of(choice_format(["<|im_end|>"], "structured_outputs"))
    constraint = grammar.start()
    special = set(TOKENIZER.special_tokens.values())
    for token in TOKENIZER.encode("<|im_end|>"):
        assert special.isdisjoint(allowed(constraint))
        constraint.accept(token)
    assert set(allowed(constraint)) == STOPS
