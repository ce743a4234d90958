"""The functions that walk through a client's or a model's text by hand: how each is called, and of what its worst texts consist.

A new one belongs into `WALKS`. Its texts repeat each of its `parts`, and each pair of them, between a `head` and a `tail`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import attrs

from tests.kit.pattern_texts import Hostile
from tlserve.access.request_id import choose_request_id
from tlserve.api.json_body import outline_of, parse_object
from tlserve.chat.dialect import ToolUse
from tlserve.chat.dialects.registry import DIALECTS
from tlserve.chat.grammars.formats import choice_format, regex_format, schema_format
from tlserve.chat.grammars.lark import slashed
from tlserve.chat.grammars.patterns import as_rust, is_beyond
from tlserve.chat.grammars.user_lark import checked_lark
from tlserve.chat.output.json_scan import ValueScanner, is_json
from tlserve.chat.regions.python_call import NotPython, parse_call
from tlserve.config.tables.network import HttpSettings
from tlserve.errors import TlserveError
from tlserve.http.limits import empty_lines_length, find_head
from tlserve.http.messages import Headers, parse_target
from tlserve.telemetry.tracing import trace_id_of
from tlserve.text.special_tokens import SpecialTokens
from tlserve.text.stop_strings import StopStrings

_HTTP = HttpSettings(max_header_bytes=1 << 24)
_TOOLS = ToolUse(schemas={"f": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}})


@attrs.frozen
class Walk:
    """One function, and the parts of its texts; `refusals` are the errors with which it may end."""

    name: str
    call: Callable[[str], object]
    parts: Sequence[str]
    heads: Sequence[str] = ("",)
    tails: Sequence[str] = ("",)
    refusals: tuple[type[Exception], ...] = (TlserveError,)

    def run(self, text: str) -> None:
        """Walk through `text`, to its end or to a refusal."""
        with suppress(*self.refusals):
            self.call(text)


def walk_texts(walk: Walk) -> Iterator[Hostile]:
    """Yield the texts of a walk."""
    bodies = [*walk.parts, *("".join(pair) for pair in itertools.permutations(walk.parts, 2))]
    for head, body, tail in itertools.product(walk.heads, bodies, walk.tails):
        yield Hostile(head, body, tail)


def _in_pieces(feed: Callable[[str], object], finish: Callable[[], object], size: int = 3) -> Callable[[str], None]:
    def walk(text: str) -> None:
        for at in range(0, len(text), size):
            feed(text[at : at + size])
        finish()

    return walk


def _read_by(dialect: Any, text: str) -> None:
    reader = dialect.open_reader(tools=_TOOLS)
    _in_pieces(reader.feed, reader.finish)(text)


def _stopped(text: str) -> None:
    stops = StopStrings(["a" * 60 + "b", "ab" * 30 + "c"])
    _in_pieces(stops.feed, stops.finish)(text)


def _scanned(text: str) -> None:
    scanner = ValueScanner()
    _in_pieces(scanner.read, lambda: None)(text)


def _split(text: str) -> None:
    list(SpecialTokens({"<|im_end|>": 1, "<|im_end": 2, "<" * 40: 3, "[INST]": 4}).split(text))


def _as_schema(text: str) -> None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    schema_format(value, "schema", "response_format")


_JSON = ('"', "\\", "{", "[", "]", '":', '{"a":', ",", "1", " ", "é")
_PATTERN = ("[", "]", "\\", "(", ")", "a", "^", "(?", "[^", "&&", "{2}", "\n")
_MARKUP = ("<", "{", '"', "[", "a", "\n", '{"name": "f", "arguments": {')

_CALLS = ("<think>", "[TOOL_CALLS]", "<tool_call>\n<function=f>\n<parameter=a>\n")

WALKS: tuple[Walk, ...] = (
    Walk("patterns.as_rust", as_rust, _PATTERN),
    Walk("patterns.is_beyond", is_beyond, _PATTERN),
    Walk("formats.regex_format", partial(regex_format, field="regex"), _PATTERN),
    Walk(
        "formats.choice_format", lambda text: choice_format(text.split(",") or [text], "choice"), ("a,", '"', "\\", ",")
    ),
    Walk("formats.schema_format", _as_schema, ('{"type":"string"},', '{"enum":[1]},'), ('{"anyOf":[',), ("{}]}",)),
    Walk("lark.slashed", slashed, _PATTERN),
    Walk(
        "user_lark.checked_lark",
        partial(checked_lark, field="grammar"),
        ("/", '"', "\\", "[a]", "\n", "//", "a", "%json {}", "<", "::="),
        ("start: ", "root ::= "),
        ("", "\n", '"'),
    ),
    Walk("json_body.parse_object", lambda text: parse_object(text.encode()), _JSON, ('{"a":', '{"a":"'), ("", '"}')),
    Walk("json_body.outline_of", lambda text: outline_of(text.encode()), _JSON),
    Walk("json_scan.is_json", is_json, _JSON),
    Walk("json_scan.ValueScanner", _scanned, _JSON, ("", "{", '"')),
    Walk(
        "python_call.parse_call",
        parse_call,
        ("[", "(", ",", "a=", '"', "\\", "\\u00", "1", "{", "'"),
        ("f(a=", "f(a='"),
        refusals=(NotPython,),
    ),
    Walk("stop_strings.StopStrings", _stopped, ("a", "b", "ab", "aab")),
    Walk("special_tokens.SpecialTokens", _split, ("<", "<|", "<|im_end", "[", "|>", "[INST]")),
    Walk("messages.parse_target", parse_target, ("/", "%", "%41", "?", "#", "a", "http://"), ("/", "http://")),
    Walk("messages.Headers", lambda text: Headers([("a", text)]).get_all("A"), (",", " ", "a")),
    Walk(
        "limits.find_head", lambda text: find_head(bytearray(text.encode()), 0, _HTTP), ("\r", "\n", "a:", " ", "GET ")
    ),
    Walk("limits.empty_lines_length", lambda text: empty_lines_length(bytearray(text.encode())), ("\r", "\n", "a")),
    Walk("request_id.choose_request_id", lambda text: choose_request_id(text, str), ("a", "-", "\x00")),
    Walk("tracing.trace_id_of", trace_id_of, ("0", "-", "a", "00-"), ("", "00-")),
    *(Walk(f"dialects.{dialect.name}", partial(_read_by, dialect), _MARKUP, ("", *_CALLS)) for dialect in DIALECTS),
)
