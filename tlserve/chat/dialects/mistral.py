"""`mistral`: calls after `[TOOL_CALLS]`: a list of JSON objects, or (newer) a name, `[ARGS]`, and the arguments.

The template accepts only call ids of nine letters and digits, so longer ids are hashed to that form, always in the same way.
Source: the chat templates of Mistral Nemo and Mistral Small 3.2.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping
from functools import partial

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    CallForm,
    Dialect,
    DialectReader,
    Opening,
    Slot,
    Tags,
    ToolUse,
    TurnForm,
)
from tlserve.chat.output.markup_reader import MarkupReader, OpenRegion
from tlserve.chat.regions.json_regions import JsonRegion, NamedRegion
from tlserve.chat.regions.region import EitherRegion, Region

BEGIN = "[TOOL_CALLS]"
_ARGUMENTS, _CALL_ID = "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"\s*([A-Za-z0-9_.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*")
_ID = re.compile(r"[A-Za-z0-9]{9}")
_LETTERS = string.ascii_letters + string.digits

_LIST = CallForm(
    before=(BEGIN, "["),
    call=('{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, "}"),
    between=(", ",),
    after=("]",),
)
_NAMED = CallForm(call=(BEGIN, Slot.NAME, _ARGUMENTS, Slot.ARGUMENTS))


def short_id(call_id: str) -> str:
    """Return the id of nine letters and digits that stands for `call_id`; an id of that form stays as it is."""
    if _ID.fullmatch(call_id):
        return call_id
    number = int.from_bytes(hashlib.blake2b(call_id.encode(errors="surrogatepass"), digest_size=8).digest(), "big")
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(9))


def _choose(tools: ToolUse, text: str) -> Region | None:
    """Return the region for the form of `text`, or None while `text` is blank."""
    if not text:
        return None
    if text[0] in "[{":
        return JsonRegion(BEGIN, "", tools.schemas)
    return NamedRegion(BEGIN, "", tools.schemas, _HEAD)


_FORM = TurnForm(call_id=short_id)


@attrs.frozen
class MistralDialect:
    """The dialect of Mistral's templates."""

    name: str = "mistral"
    form: TurnForm = _FORM
    reasoning: Tags | None = None
    content: Tags | None = None

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:
        """Match by the template, or by the token."""
        if self.reasoning is not None and not {self.reasoning.begin, self.reasoning.end} <= {
            tag for tag in ("[THINK]", "[/THINK]") if tag in template_source
        }:
            return False
        return BEGIN in template_source or (BEGIN in special_tokens and "[INST]" in template_source)

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:
        """Return the newer form if the vocabulary has its token, else the list."""
        return _NAMED if _ARGUMENTS in special_tokens else _LIST

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for content and calls."""
        inside = frozenset({_ARGUMENTS, _CALL_ID} if tools is not None else ())
        return MarkupReader(
            reasoning=self.reasoning, opening=opening, regions=_regions(tools), inside=inside, tools=tools
        )


def _regions(tools: ToolUse | None) -> Mapping[str, OpenRegion]:
    return {} if tools is None else {BEGIN: partial(EitherRegion, BEGIN, partial(_choose, tools))}


MISTRAL: Dialect = MistralDialect()
MAGISTRAL: Dialect = MistralDialect(name="magistral", reasoning=Tags("[THINK]", "[/THINK]"))
"""Reasoning between `[THINK]` and `[/THINK]`, then as `mistral`."""
