"""Forced calls are read by the same dialect as the calls that were forced, for all tokens."""

import json
import random

import attrs
import jsonschema
import pytest

from tests.kit.chat.constrained_walks import allowed, compiled, spell, stops_of, take_text, walk, walk_tokenizer
from tlserve.chat.dialect import FROM_NOTHING, Opening, PlacedSchema, ToolUse
from tlserve.chat.dialects import named_calls
from tlserve.chat.dialects.described import DescribedDialect
from tlserve.chat.dialects.registry import BY_NAME, DIALECTS
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.formats import choice_format, schema_format
from tlserve.chat.output.deltas import fold
from tlserve.chat.output.output_reader import OutputReader
from tlserve.chat.regions.form_regions import spellings_of
from tlserve.errors import ClientError
from tlserve.generation import Finish, TokenEvent

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
NOW = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "now": NOW}
TOOLS = ToolUse(
    schemas=SCHEMAS, enforced={name: PlacedSchema(f"tools.{name}", schema) for name, schema in SCHEMAS.items()}
)
REQUIRED = attrs.evolve(TOOLS, required=True)
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
DEEPSEEK = (
    named_calls.ALL_BEGIN,
    named_calls.ALL_END,
    named_calls.BEGIN,
    named_calls.END,
    named_calls.SEPARATOR,
)

VOCABULARIES = [
    ("plain", ()),
    ("hermes", ()),
    ("hermes", TAGS),
    ("qwen3", ()),
    ("qwen3", TAGS),
    ("smollm3", TAGS),
    ("llama3", ()),
    ("mistral", ()),
    ("mistral", ("[TOOL_CALLS]",)),
    ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    ("qwen3_coder", ()),
    ("qwen3_coder", TAGS),
    ("deepseek_r1", ()),
    ("deepseek_r1", DEEPSEEK + TAGS),
]
KNOWN = {name for name, _ in VOCABULARIES}
for dialect in DIALECTS:
    if isinstance(dialect, DescribedDialect) and dialect.name not in KNOWN:
        VOCABULARIES += [(dialect.name, ()), (dialect.name, tuple(sorted(spellings_of(dialect.calls))))]
VOCABULARIES += [
    ("magistral", ()),
    ("magistral", ("[TOOL_CALLS]", "[ARGS]")),
    ("harmony", ()),
    ("functionary_v3_2", ()),
    ("muse_glimmer", ()),
]
VOCABULARIES += [("muse_glimmer", ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"))]
assert {name for name, _ in VOCABULARIES} >= {dialect.name for dialect in DIALECTS}
EVERY = pytest.mark.parametrize(
    ("name", "special"), VOCABULARIES, ids=[f"{name}-{len(special)}" for name, special in VOCABULARIES]
)


def grammar_of(name, tokenizer, tools, opening=FROM_NOTHING, wanted=None):
    grammar = answer_grammar(wanted, tools, BY_NAME[name], opening, tokenizer.special_tokens)
    assert grammar is not None
    return compiled(grammar, tokenizer)


def read(name, tokenizer, tokens, tools, opening=FROM_NOTHING):
    """Return the answer as it is read."""
    (stop,) = stops_of(tokenizer)
    reader = OutputReader(tokenizer, (), BY_NAME[name], opening=opening, tools=tools)
    deltas = []
    for index, token in enumerate([*tokens, stop]):
        if not reader.stopped:
            deltas.append(reader.feed(TokenEvent(index, token, finish=Finish.STOP if token == stop else None)))
    return fold(deltas)


def walks(name, tokenizer, tools, opening=FROM_NOTHING, count=6, first=""):
    """Yield the tokens of random answers, which begin with `first`."""
    grammar = grammar_of(name, tokenizer, tools, opening)
    tags = BY_NAME[name].reasoning
    phrases = ("</think>" if tags is None else tags.end.strip(), "\n</parameter>\n")
    rng = random.Random(f"{name}/{tools.parallel}/{first}")
    for _ in range(count):
        constraint = grammar.start()
        assert take_text(constraint, tokenizer, first)
        tokens = walk(constraint, tokenizer, stops_of(tokenizer), rng, limit=900, phrases=phrases)
        if tokens is not None:
            yield [*tokenizer.encode_with_specials(first), *tokens]


def assert_calls_are_right(answer, tools=TOOLS) -> None:
    for call in answer.calls:
        arguments = json.loads(call.arguments)
        assert list(jsonschema.Draft202012Validator(tools.schemas[call.name]).iter_errors(arguments)) == []


@pytest.mark.spec("CHAT-51")
@EVERY
def test_required_calls_are_the_answer_and_are_read_as_forced(name, special) -> None:
    tokenizer = walk_tokenizer(user_defined=special)
    answers = [read(name, tokenizer, tokens, REQUIRED) for tokens in walks(name, tokenizer, REQUIRED)]
    assert answers
    for answer in answers:
        assert answer.calls
        assert (answer.content, answer.called) == ("", True)
        assert_calls_are_right(answer)


@pytest.mark.spec("CHAT-51")
@EVERY
def test_one_call_at_a_time_is_exactly_one(name, special) -> None:
    tokenizer = walk_tokenizer(control=special)
    tools = attrs.evolve(REQUIRED, parallel=False)
    answers = [read(name, tokenizer, tokens, tools) for tokens in walks(name, tokenizer, tools, count=4)]
    assert [len(answer.calls) for answer in answers] == [1] * len(answers)


@pytest.mark.spec("CHAT-79")
@EVERY
def test_a_named_tool_is_the_only_one_that_is_called(name, special) -> None:
    tokenizer = walk_tokenizer(user_defined=special)
    assert TOOLS.enforced is not None
    enforced = {"get_weather": TOOLS.enforced["get_weather"]}
    tools = attrs.evolve(REQUIRED, enforced=enforced, parallel=False, named=True)
    answers = [read(name, tokenizer, tokens, tools) for tokens in walks(name, tokenizer, tools, count=3)]
    assert answers
    for answer in answers:
        assert [call.name for call in answer.calls] == ["get_weather"]
        assert_calls_are_right(answer)


@pytest.mark.spec("CHAT-79")
@EVERY
def test_an_answer_by_a_schema_is_content(name, special) -> None:
    tokenizer = walk_tokenizer(user_defined=special)
    wanted = schema_format(WEATHER, "response_format.schema", "response_format")
    grammar = grammar_of(name, tokenizer, None, wanted=wanted)
    said = '{"city":"Paris","unit":"C"}'
    text = f"{begin_of_content(name)}{said}{end_of_content(name)}"
    constraint = grammar.start()
    assert take_text(constraint, tokenizer, text)
    assert stops_of(tokenizer) <= set(allowed(constraint))
    answer = read(name, tokenizer, tokenizer.encode_with_specials(text), None)
    assert (answer.content, answer.calls, answer.reasoning) == (said, (), "")
    for other in ('{"city":5', '{"unit":"K', "Paris"):
        assert not take_text(grammar.start(), tokenizer, begin_of_content(name) + other)


@pytest.mark.spec("CHAT-51")
@EVERY
def test_several_calls_are_possible_where_they_are_allowed(name, special) -> None:
    tokenizer = walk_tokenizer(user_defined=special)
    assert REQUIRED.enforced is not None
    grammar = grammar_of(name, tokenizer, attrs.evolve(REQUIRED, enforced={"now": REQUIRED.enforced["now"]}))
    form = BY_NAME[name].call_form(tokenizer.special_tokens)
    slots = {"name": "now", "arguments": "{}", "id": "abcdefghi", "number": "0"}
    one = "".join(part if isinstance(part, str) else slots[part.value] for part in form.call)
    if form.arguments is not None:
        one = one.replace("{}", "")
    before, between, after = ("".join(parts) for parts in (form.before, form.between, form.after))
    constraint = grammar.start()
    text = before + one + between + one + after
    assert take_text(constraint, tokenizer, text)
    answer = read(name, tokenizer, tokenizer.encode_with_specials(text), REQUIRED)
    assert [(call.name, call.arguments) for call in answer.calls] == [("now", "{}")] * 2


@pytest.mark.spec("CHAT-52")
@EVERY
def test_in_free_text_a_call_is_held_from_its_marker_on(name, special) -> None:
    tokenizer = walk_tokenizer(user_defined=special)
    form = BY_NAME[name].call_form(tokenizer.special_tokens)
    text = "" if form.texts else "Let me see. "
    begin = (*form.before, *form.call)[0]
    begin = begin if isinstance(begin, str) else ""
    if any(text.startswith(begin) for text in form.texts):
        begin += "now"
    first = '{"name": "' if form.bare else text + begin
    answers = [read(name, tokenizer, tokens, TOOLS) for tokens in walks(name, tokenizer, TOOLS, first=first)]
    assert answers
    for answer in answers:
        assert answer.calls
        assert_calls_are_right(answer)


@pytest.mark.spec("CHAT-52")
@EVERY
def test_free_text_needs_no_call(name, special) -> None:
    tokenizer = walk_tokenizer(user_defined=special)
    form = BY_NAME[name].call_form(tokenizer.special_tokens)
    constraint = grammar_of(name, tokenizer, TOOLS).start()
    assert take_text(constraint, tokenizer, f"{begin_of_content(name) if form.texts else ''}It is {{raining}} [now].\n")
    assert stops_of(tokenizer) <= set(allowed(constraint))


def begin_of_content(name) -> str:
    tags = BY_NAME[name].content
    return "" if tags is None else tags.begin


def end_of_content(name) -> str:
    tags = BY_NAME[name].content
    return "" if tags is None else tags.end


@pytest.mark.spec("CHAT-50")
@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS if dialect.reasoning is not None])
@pytest.mark.parametrize("special", [(), TAGS])
def test_reasoning_is_free_and_what_follows_is_held(name, special) -> None:
    tokenizer, tags = walk_tokenizer(user_defined=special), BY_NAME[name].reasoning
    assert tags is not None
    for opening, begin in ((Opening(template=f"{tags.begin}\n"), ""), (FROM_NOTHING, tags.begin)):
        constraint = grammar_of(name, tokenizer, None, opening, choice_format(["yes", "no"], "choice")).start()
        text = f"{begin}Maybe {{no}}, or <b>yes</b>?{tags.end}\n\n{begin_of_content(name)}"
        assert take_text(constraint, tokenizer, text)
        (stop,) = stops_of(tokenizer)
        going = {spell(tokenizer, [token]) for token in set(allowed(constraint))}
        assert going == {b"y", b"n"}
        assert take_text(constraint, tokenizer, "no")
        after = set(allowed(constraint))
        assert stop in after
        assert all(end_of_content(name).startswith(spell(tokenizer, [token]).decode()) for token in after - {stop})
        assert take_text(constraint, tokenizer, end_of_content(name))
        assert set(allowed(constraint)) == {stop}
        answer = read(name, tokenizer, tokenizer.encode_with_specials(text + "no"), None, opening)
        assert (answer.reasoning, answer.content) == ("Maybe {no}, or <b>yes</b>?", "no")


@pytest.mark.spec("CHAT-50", "CHAT-71")
@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS if dialect.reasoning is not None])
def test_reasoning_can_be_left_out_and_is_not_begun_twice(name) -> None:
    tokenizer = walk_tokenizer()
    wanted = choice_format(["yes", "no"], "choice")
    assert take_text(
        grammar_of(name, tokenizer, None, FROM_NOTHING, wanted).start(), tokenizer, begin_of_content(name) + "yes"
    )
    going_on = grammar_of(name, tokenizer, None, Opening(begun="I think "), wanted).start()
    assert not take_text(going_on, tokenizer, "<think>")


@pytest.mark.spec("CHAT-72")
def test_an_answer_in_a_format_can_be_a_call_instead() -> None:
    tokenizer = walk_tokenizer()
    grammar = grammar_of("hermes", tokenizer, TOOLS, wanted=choice_format(["yes"], "choice"))
    assert take_text(grammar.start(), tokenizer, "yes")
    assert take_text(grammar.start(), tokenizer, '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
    assert not take_text(grammar.start(), tokenizer, "no")


@pytest.mark.spec("CHAT-52")
def test_without_a_format_or_a_strict_tool_an_answer_is_free() -> None:
    free = ToolUse(schemas=SCHEMAS)
    assert answer_grammar(None, free, BY_NAME["hermes"], FROM_NOTHING, {}) is None
    assert answer_grammar(None, None, BY_NAME["hermes"], FROM_NOTHING, {}) is None


@pytest.mark.spec("CHAT-53")
@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"a": {"type": "string", "pattern": "a"}}, ".properties.a.pattern"),
        ({"a": {"anyOf": [{"type": "null"}]}}, ".properties.a"),
        ({"a<b": {"type": "null"}}, ".properties.a<b"),
    ],
)
def test_a_strict_schema_that_tags_cannot_hold_is_refused_by_place(members, place) -> None:
    placed = PlacedSchema("tools[0].function.parameters", {"type": "object", "properties": members})
    tools = ToolUse(schemas={"f": {}}, enforced={"f": placed}, strict=frozenset({"f"}), required=True)
    with pytest.raises(ClientError) as caught:
        grammar_of("qwen3_coder", walk_tokenizer(), tools)
    assert caught.value.message.startswith(f"tools[0].function.parameters{place} ")
    assert grammar_of("qwen3_coder", walk_tokenizer(), attrs.evolve(tools, strict=frozenset()))
