"""A grammar of the text of a JSON string allows the escapes of exactly those texts that the grammar itself allows."""

from __future__ import annotations

import json
import random

import pytest

from tests.kit.chat.constrained_walks import allowed, compiled, stops_of, take_text, walk, walk_tokenizer
from tlserve.chat.dialect import FROM_NOTHING, PlacedSchema, ToolUse
from tlserve.chat.dialects.registry import BY_NAME
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.source import GrammarSource
from tlserve.chat.grammars.user_lark import checked_lark
from tlserve.chat.output.deltas import fold
from tlserve.chat.output.output_reader import OutputReader
from tlserve.errors import ClientError, Refusal
from tlserve.generation import Finish, TokenEvent
from tlserve.responses.json_text import json_text_lark

TOKENIZER = walk_tokenizer()
SUM = """
start: expr
expr: term (SP ADD SP term)*
term: factor (SP MUL SP factor)*
factor: INT | "(" expr ")"
SP: " "
ADD: "+"
MUL: "*"
%import common.INT
"""
CASES = [
    (SUM, ["4 + (2 * 31)", "1", "4 +", "a", ""]),
    (r"start: /[^a]{1,4}/", ['"', "\\", "b\n", "a", "", '\t"\\x', "é"]),
    (r"start: /.*/", ["", 'say "x"', "a\nb", "\\"]),
    (r"start: /(?s:.)*x/s", ["\nx", '"x', "x\n"]),
    (r"start: /(.(?s:.)).x/", ["a\nbx", "\nabx", 'a""x']),
    (r'start: /"+/', ['"', '""', "a", '"a']),
    (r"start: /\\n\/\x22\n/", ['\\n/"\n', '\\n/"n', "\n"]),
    (r"start: /[\s\"-\\]+/", ["\n\t", '"#Z\\', "]", "\r\n"]),
    (r"start: /\S+\w\W\d\D/", ['"a"1"', "xx 1\n", "xx\\1\\", "xxx1x"]),
    ('start: "a\\"b\\\\" | "\\n"', ['a"b\\', "\n", "a", "n"]),
    ('start: C+\nC: "!".."$"', ['!"#$', "%", "!"]),
    ("start: A WS B\nA: /a/\nB: /b/i\n%import common.WS", ["a b", "a\n\tB", "ab"]),
    ('root ::= "x" [^"]* "\\n"', ["x\n", "xyz\n", 'x"\n', "x\\\n"]),
]


def allows(lark: str, text: str) -> bool:
    """Say whether a grammar allows a text."""
    grammar = GrammarSource(field="f", rules="start: @answer", larks={"answer": lark}).grammar()
    constraint = compiled(grammar, TOKENIZER).start()
    return take_text(constraint, TOKENIZER, text) and bool(stops_of(TOKENIZER) & set(allowed(constraint)))


@pytest.mark.spec("RSP-9")
@pytest.mark.parametrize(("grammar", "texts"), CASES)
def test_the_escapes_of_the_same_texts_are_allowed(grammar: str, texts: list[str]) -> None:
    plain, _ = checked_lark(grammar, "f")
    inside = json_text_lark(grammar, "f")
    expected = [allows(plain, text) for text in texts]
    assert [allows(inside, json.dumps(text, ensure_ascii=False)[1:-1]) for text in texts] == expected
    assert len(set(expected)) == 2


@pytest.mark.spec("RSP-9")
@pytest.mark.parametrize(("grammar", "texts"), CASES)
def test_every_random_text_is_that_of_a_json_string_the_grammar_allows(grammar: str, texts: list[str]) -> None:
    inside = GrammarSource(field="f", rules="start: @answer", larks={"answer": json_text_lark(grammar, "f")}).grammar()
    rng = random.Random(grammar)
    made = compiled(inside, TOKENIZER)
    for _ in range(4):
        tokens = walk(made.start(), TOKENIZER, stops_of(TOKENIZER), rng, limit=60)
        if tokens is not None:
            spelled = b"".join(map(TOKENIZER.token_spelling, tokens)).decode(errors="replace")
            text = json.loads(f'"{spelled}"')
            assert "�" in spelled or allows(checked_lark(grammar, "f")[0], text)


@pytest.mark.spec("RSP-9")
@pytest.mark.parametrize(
    "grammar",
    [
        'start: %json {"type": "string"}',
        r"start: /\p{L}+/",
        r"start: /[a[bc]]/",
        r"start: /[a-z&&[^b]]/",
        r"start: /a b/x",
        r"start: /(?x:a b)/",
        r"start: /a(?=b)/",
        'start: "\\n"i',
        "start: X\n%import common.ESCAPED_STRING",
        "start: X\n%import other.X",
        'start: %regex {"substring_chars": "ab"}',
    ],
)
def test_what_cannot_be_rewritten_is_refused_with_its_place(grammar: str) -> None:
    with pytest.raises(ClientError, match=r"^f"):
        json_text_lark(grammar, "f")


FORCED = ToolUse(
    schemas={"calc": {"type": "object"}},
    enforced={"calc": PlacedSchema("tools", {"type": "object"})},
    required=True,
    named=True,
    parallel=False,
    inputs={"calc": json_text_lark(SUM, "tools")},
)


@pytest.mark.spec("RSP-9")
@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral"])
def test_the_input_of_a_forced_call_follows_its_grammar(name: str) -> None:
    dialect, special = BY_NAME[name], TOKENIZER.special_tokens
    grammar = answer_grammar(None, FORCED, dialect, FROM_NOTHING, special)
    assert grammar is not None
    (stop,) = stops_of(TOKENIZER)
    tokens = walk(compiled(grammar, TOKENIZER).start(), TOKENIZER, frozenset({stop}), random.Random(name), limit=300)
    assert tokens is not None
    reader = OutputReader(TOKENIZER, (), dialect, tools=FORCED)
    ends = [*tokens, stop]
    deltas = [
        reader.feed(TokenEvent(index, token, finish=Finish.STOP if token == stop else None))
        for index, token in enumerate(ends)
        if not reader.stopped
    ]
    (call,) = fold(deltas).calls
    assert allows(checked_lark(SUM, "f")[0], json.loads(call.arguments)["input"])


@pytest.mark.spec("RSP-9")
def test_a_model_whose_calls_are_not_json_refuses_a_grammar_in_lark() -> None:
    with pytest.raises(Refusal, match="syntax regex"):
        answer_grammar(None, FORCED, BY_NAME["qwen3_coder"], FROM_NOTHING, TOKENIZER.special_tokens)
