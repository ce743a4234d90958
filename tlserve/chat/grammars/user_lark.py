"""Grammars that clients send, in llguidance's variant of Lark, or in the GBNF of llama.cpp.

Refuses control tokens, which cannot be part of an answer; references to other grammars, which do not exist; and attributes of
rules that would be ignored or would make it impossible to take tokens back. Schemas inside a grammar are checked like any
schema. Everything else is left to the compiler, which reports its errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import attrs
import msgspec

from tlserve.chat.dialect import PlacedSchema
from tlserve.chat.grammars.schemas import checked_schema
from tlserve.errors import ClientError

# Every repetition is possessive, and a quote, slash or bracket that is not closed is refused where it is found: so the walk takes
# time linear in the text, whatever the text is.
PIECE = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*+"i?)
      | (?P<comment>//[^\n]*+|\#[^\n]*+)
      | (?P<regex>/(?![/*])(?:\\.|\[(?:\\.|[^\]\\\n])*+\]|[^/\\\n\[])++/[a-z]*+)
      | (?P<open>["/])
      | (?P<json>%json\s*+(?=\{))
      | (?P<options>%(?:llguidance|regex)\s*+(?=\{))
      | (?P<token><[^<>\s]++>)
      | (?P<grammar>@[\w-]++)
      | (?P<attribute>\b(?:max_tokens|temperature|stop)\s*+=)
      | (?P<other>\w++|\s++|.)""",
    re.VERBOSE | re.DOTALL,
)
_REFUSED = {
    "open": "starts a string or a regular expression that does not end on its line",
    "token": "is a control token, which cannot be part of an answer",
    "grammar": "refers to another grammar, which does not exist",
    "attribute": "is an attribute that is not supported",
}
_GBNF = re.compile(r"^[^\S\n]*+[\w-]++[^\S\n]*+::=", re.MULTILINE)
_DECODER = json.JSONDecoder()


@attrs.define
class _GrammarCheck:
    """Checks a client's grammar piece by piece, and collects the schemas in it."""

    field: str
    text: str
    schemas: dict[str, PlacedSchema] = attrs.field(factory=dict)

    def pieces(self) -> Iterator[str]:
        at = 0
        while at < len(self.text):
            found = PIECE.match(self.text, at)
            assert found is not None
            at, kind = found.end(), found.lastgroup
            if kind in _REFUSED:
                raise self._refusal(found)
            if kind in ("json", "options"):
                value, at = self._value(at)
                yield self._schema(value) if kind == "json" else found[0] + json.dumps(value, ensure_ascii=False)
            elif kind != "comment":
                yield found[0]

    def _refusal(self, found: re.Match[str]) -> ClientError:
        line = self.text.count("\n", 0, found.start()) + 1
        remedy = "close it" if found.lastgroup == "open" else "leave it out"
        words = f"{self.field}: line {line}: {found[0][:60]} {_REFUSED[found.lastgroup or '']}; {remedy}"
        return ClientError(words, param=self.field)

    def _value(self, at: int) -> tuple[object, int]:
        """Return the JSON value at `at`, read as strictly as a body (no lone surrogates, no NaN), and its end."""
        try:
            _, end = _DECODER.raw_decode(self.text, at)
            return msgspec.json.decode(self.text[at:end]), end
        except (ValueError, RecursionError, msgspec.DecodeError) as fault:
            reason = str(fault)[:200]
            raise ClientError(f"{self.field}: the text after % is not JSON: {reason}", param=self.field) from None

    def _schema(self, schema: object) -> str:
        name = f"schema_{len(self.schemas)}"
        place = f"{self.field}: %json"
        self.schemas[name] = PlacedSchema(place, checked_schema(schema, place, self.field))
        return f"@{name} "


def checked_lark(grammar: str, field: str) -> tuple[str, dict[str, PlacedSchema]]:
    """Return `grammar` in Lark, and the schemas that it names; raises ClientError for a grammar that is refused."""
    if not grammar.strip():
        raise ClientError(f"{field} is empty; send a grammar in Lark or GBNF", param=field)
    check = _GrammarCheck(field, _as_lark(grammar, field))
    return "".join(check.pieces()), check.schemas


def _as_lark(grammar: str, field: str) -> str:
    if not _GBNF.search(grammar):
        return grammar
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(grammar))
    except Exception as fault:  # the converter raises exceptions of any class
        raise ClientError(f"{field} is not valid GBNF: {str(fault)[:200]}", param=field) from None
