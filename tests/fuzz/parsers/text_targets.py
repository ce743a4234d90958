"""The parsers of text: answers with calls in every dialect; schemas, grammars and patterns of clients, checked and compiled."""

from __future__ import annotations

import contextlib
import functools
import json
import random
from collections.abc import Sequence
from typing import Any

from tests.chat.dialects.test_dialects import ANSWERS, TOOLS, gathered
from tests.fuzz.mutations import changed_document, changed_text
from tests.fuzz.parsers.target import Target
from tests.kit.chat.constrained_walks import stops_of, walk_tokenizer
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.dialects.registry import BY_NAME
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.grammars.formats import AnswerFormat, choice_format, lark_format, regex_format, schema_format
from tlserve.chat.grammars.patterns import as_rust, is_beyond
from tlserve.chat.grammars.tool_parameters import arguments_schema
from tlserve.errors import ClientError
from tlserve.worker.deep_stack import run_with_deep_stack

# --- answers with calls --------------------------------------------------------------------------------------------------

_CALL_WORDS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "<function=now>",
    ),
    *(
        "</function>",
        "<parameter=city>",
        "</parameter>",
        "```json",
        "```",
        '{"name": "now", "arguments": {}}',
        '"arguments"',
        '"name"',
    ),
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        ":",
        '"',
        "'",
        "\\",
        "\\u",
        "\\ud800",
        "\\u0000",
        "=",
        "now(",
        "any(a=",
        "True",
        "None",
        "-",
        "1e9",
    ),
    *(
        "1" * 30,
        "0x1",
        ".5",
        "[" * 200,
        "(" * 200,
        "{'a':" * 100,
        "1" * 5000,
        "[" * 5000,
        '{"a":' * 5000,
        "; ",
        "\n",
        "<",
        ">",
        "</",
        "\t",
        "f'",
        "b'",
        "r'",
        '"""',
        "#",
        "lambda",
    ),
)
_BY_NAME = {name: [text for other, text, _ in ANSWERS if other == name] or [ANSWERS[0][1]] for name in BY_NAME}
_ALL_TEXTS = [text for _, text, _ in ANSWERS]


def answer(rng: random.Random) -> tuple[str, str, tuple[int, ...]]:
    """Return a dialect, an answer, and the places to cut it."""
    name = rng.choice(list(_BY_NAME))
    text = rng.choice(_BY_NAME[name] if rng.random() < 0.8 else _ALL_TEXTS)
    if rng.random() < 0.2:
        text += rng.choice(_BY_NAME[name])
    text = changed_text(rng, text, _CALL_WORDS)
    return name, text, tuple(sorted(rng.choices(range(len(text) + 1), k=3)))


def use_answer(given: tuple[str, str, tuple[int, ...]]) -> None:
    """Read it whole and in four parts: both readings are the same, and the arguments of complete calls are objects."""
    name, text, (first, second, third) = given
    whole = _read(name, [text])
    in_parts = _read(name, [text[:first], text[first:second], text[second:third], text[third:]])
    assert whole == in_parts, f"whole {whole!r}, in parts {in_parts!r}"
    for _, arguments, is_complete in whole.calls:
        if is_complete:
            with contextlib.suppress(RecursionError):
                document = json.loads(arguments, parse_int=str, parse_constant=_refuse_constant)
                assert isinstance(document, dict), f"the arguments are {arguments!r}"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _read(name: str, parts: list[str]) -> Any:
    reader = BY_NAME[name].open_reader(FROM_NOTHING, TOOLS)
    pieces: list[Any] = []
    for part in parts:
        if reader.ended:
            break
        pieces += reader.feed(part)
    return gathered([*pieces, *reader.finish()])


# --- schemas -------------------------------------------------------------------------------------------------------------

_SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[a-c]+$", "minLength": 1, "maxLength": 9},
            "age": {"type": "integer", "minimum": 0, "exclusiveMaximum": 150, "multipleOf": 5},
            "when": {"type": "string", "format": "date"},
            "tags": {"type": "array", "items": {"enum": ["a", 1, None]}, "minItems": 1, "maxItems": 3},
            "next": {"$ref": "#/$defs/node"},
            "or": {"anyOf": [{"const": {"a": 1}}, {"type": ["integer", "null"]}, {"allOf": [{"type": "string"}]}]},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": []}},
    },
    {
        "$ref": "#/definitions/a",
        "definitions": {"a": {"type": "array", "prefixItems": [{"type": "number"}], "items": False}},
    },
    {
        "oneOf": [{"type": "string", "enum": ["a"]}, {"type": "number", "exclusiveMinimum": -1.5}],
        "description": "d",
        "default": 1,
    },
    {"type": "object", "patternProperties": {"^x-": {"type": "boolean"}}, "minProperties": 1, "maxProperties": 2},
]
_SCHEMA_WORDS: Sequence[Any] = (
    *(
        "string",
        "object",
        "array",
        "integer",
        "number",
        "null",
        "boolean",
        "#/$defs/node",
        "#",
        "#/properties/name",
        "#/$defs/none",
    ),
    *(
        "#/%24defs/node",
        "#/~1",
        "#/$defs/~0",
        "http://x/y",
        "(",
        "[",
        "^a$",
        "\\d",
        "a{1000}",
        "(?=a)",
        "[[:alpha:]]",
        "\\p{L}",
        ".*",
    ),
    *(
        {"$ref": "#"},
        {"$ref": "#/$defs/node"},
        {"not": {}},
        {"if": {}},
        {"type": []},
        {"type": ["string", "string"]},
        {"enum": []},
    ),
    *(
        {"const": None},
        {"allOf": []},
        {"anyOf": [{}]},
        {"minItems": 5, "maxItems": 1},
        {"contains": {}},
        {"dependentRequired": {"a": ["b"]}},
    ),
    *(
        {"$id": "x", "$anchor": "a"},
        {"format": "regex"},
        {"format": "ipv6"},
        {"minimum": 5, "maximum": 1},
        {"multipleOf": 0},
        True,
        False,
    ),
    *(
        {"multipleOf": 1e-9},
        {"x-guidance": {"whitespace_flexible": True}},
        {"unevaluatedProperties": False},
        None,
        [],
        {},
        0,
        -1,
        1e300,
    ),
)


def schema(rng: random.Random) -> Any:
    """Return a schema as a body can have it: without lone surrogates."""
    changed = changed_document(rng, rng.choice(_SCHEMAS), _SCHEMA_WORDS)
    text = json.dumps(changed, ensure_ascii=False)
    clean = text.encode("utf-8", "replace")
    return changed if clean == text.encode("utf-8", "surrogatepass") else json.loads(clean)


def clean_text(rng: random.Random, text: str, words: Sequence[str]) -> str:
    """Return the text changed, without lone surrogates: a body has none."""
    return changed_text(rng, text, words).encode("utf-8", "replace").decode()


def use_schema(given: Any) -> AnswerFormat:
    with contextlib.suppress(ClientError):
        arguments_schema(given if isinstance(given, dict) else {}, "tools[0]", strict=True)
    arguments_schema(given if isinstance(given, dict) else {}, "tools[0]", strict=False)
    return schema_format(given, "schema", "response_format")


# --- grammars and patterns -----------------------------------------------------------------------------------------------

_LARKS = (
    'start: "a" b+ /[0-9]{1,3}/ | %json {"type": "integer"}\nb: "x"i | B ~ 2..4 // note\nB: /[a-z]+/\n',
    'start: greeting (", " NAME)* "."?\ngreeting: "Hello" | "Hi"\nNAME: /[A-Z][a-z]*/\n%ignore / +/\n',
    'start: %regex {"substring_words": "a b c"} x{2,3}\nx: "q" | /a\\/b[\\]"]/s\n# comment\n',
)
_GBNFS = (
    'root ::= "yes" | "no" ws number\nnumber ::= [0-9]+ ("." [0-9]{1,3})?\nws ::= [ \\t\\n]*\n',
    'root ::= ( item "," )* item # c\nitem ::= "\\x41\\u0042" [^a-z\\]] .\n',
)
_GRAMMAR_WORDS = (
    *(
        "::=",
        ":",
        "|",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "{2,}",
        "{,3}",
        "{99999}",
        "*",
        "+",
        "?",
        "~",
        "..",
        '"',
        "'",
        "/",
        "\\",
        "//",
        "#",
    ),
    *(
        "%json",
        "%json {",
        '%json {"type": "string"}',
        '%json {"const": "\\ud800"}',
        '%json {"const": NaN}',
        "%regex",
        "%llguidance {}",
        "%ignore",
        "%import common.INT",
        "%declare A",
        "%lark",
        "@",
    ),
    *(
        "<|im_end|>",
        "<[1]>",
        "<[0-9]>",
        "@other",
        "start",
        "root",
        "max_tokens=1",
        "temperature=0",
        "stop=",
        "capture",
        "lazy",
        "suffix=",
    ),
    *(
        "/(?=a)/",
        "/a{1000}/",
        "/[/",
        "/\\p{L}+/",
        "/(?i)a/",
        "\\x",
        "\\u{110000}",
        "\\U00110000",
        "[^",
        "[z-a]",
        "&",
        "\n",
        " ",
        "-",
        "_",
    ),
)
_PATTERNS = (
    "^[a-c]+$",
    "(ab|cd){1,2}?",
    "[^\\[x]{0,4}\\d{2}-\\w?\\s",
    "a.c|\\u00e9\\x41\\p{L}+",
    "(?:a(?<n>b)*)+",
    "[\\]\\-^&&~~[a-z]",
)
_PATTERN_WORDS = (
    *(
        "(",
        ")",
        "(?",
        "(?:",
        "(?=",
        "(?<!",
        "(?P<n>",
        "[",
        "]",
        "[^",
        "[[",
        "&&",
        "--",
        "~~",
        "{",
        "}",
        "{1,",
        "{9999}",
        "{2,1}",
        "*",
        "+?",
    ),
    *(
        "\\",
        "\\b",
        "\\1",
        "\\k<n>",
        "\\p{",
        "\\P{Lu}",
        "\\x",
        "\\u",
        "\\u{1F600}",
        "\\c",
        "\\0",
        "|",
        "^",
        "$",
        ".",
        "\\/",
        "/",
        "-",
        "\n",
    ),
)


def lark(rng: random.Random) -> str:
    return clean_text(rng, rng.choice(_LARKS), _GRAMMAR_WORDS)


def gbnf(rng: random.Random) -> str:
    return clean_text(rng, rng.choice(_GBNFS), _GRAMMAR_WORDS)


def use_grammar(text: str) -> AnswerFormat:
    return lark_format(text, "grammar")


def pattern(rng: random.Random) -> str:
    return clean_text(rng, rng.choice(_PATTERNS), _PATTERN_WORDS)


def use_pattern(text: str) -> AnswerFormat:
    as_rust(text)
    is_beyond(text)
    with contextlib.suppress(ClientError):
        choice_format([text, "a", text + "\\"], "choice")
    return regex_format(text, "regex")


# --- compiling, as the program that checks grammars does -----------------------------------------------------------------


@functools.cache
def _compiler() -> tuple[LlguidanceCompiler, frozenset[int]]:
    tokenizer = walk_tokenizer()
    return LlguidanceCompiler(tokenizer, tokenizer.vocabulary_size, source_bytes=1 << 18), stops_of(tokenizer)


_SOURCES = ((schema, use_schema), (lark, use_grammar), (gbnf, use_grammar), (pattern, use_pattern))


def source(rng: random.Random) -> AnswerFormat | None:
    """Return the format of a schema, grammar or pattern; None for one that is refused before it is compiled."""
    make, use = rng.choice(_SOURCES)
    with contextlib.suppress(ClientError):
        return use(make(rng))
    return None


def use_compiler(given: AnswerFormat | None) -> None:
    if given is None:
        return
    compiler, stops = _compiler()
    grammar = answer_grammar(given, None, PLAIN, FROM_NOTHING, {})
    assert grammar is not None
    constraint = run_with_deep_stack(lambda: compiler.compile(grammar, stops), len(grammar.source)).start()
    constraint.mask()


TARGETS = (
    Target(name="answer", make=answer, use=use_answer, refusals=(), share=200),
    Target(name="schema", make=schema, use=use_schema, refusals=(ClientError,), share=200),
    Target(name="lark", make=lark, use=use_grammar, refusals=(ClientError,), share=300),
    Target(name="gbnf", make=gbnf, use=use_grammar, refusals=(ClientError,), share=100),
    Target(name="pattern", make=pattern, use=use_pattern, refusals=(ClientError,), share=400),
    Target(
        name="compiler",
        make=source,
        use=use_compiler,
        refusals=(ClientError,),
        share=3,
        cpu_s=8.0,
        memory_bytes=512 << 20,
    ),
)
