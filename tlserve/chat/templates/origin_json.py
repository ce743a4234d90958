"""The filter `tojson`, with the letters of the strings inside.

Owns how a value becomes JSON text in a template. What is between the strings counts as the client's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import attrs

from tlserve.chat.templates.origin import CLIENT, OriginText, concat_if_equal, origin_of, plain_text, with_origin


def tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return `value` as JSON, like the filter of this name in transformers: no HTML escapes, non-ASCII unchanged."""
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    if not _has_letters(value):
        return text
    comma, colon = separators or (", " if indent is None else ",", ": ")
    step = indent if isinstance(indent, str) else " " * (indent or 0)
    layout = _JsonLayout(ensure_ascii, comma, colon, step, sort_keys)
    return concat_if_equal(text, layout.parts(value, "" if indent is None else "\n"))


@attrs.frozen
class _JsonLayout:
    """The options of `json.dumps`, to write the same text in parts."""

    ensure_ascii: bool
    comma: str
    colon: str
    step: str
    sort_keys: bool

    def parts(self, value: Any, newline: str) -> Iterator[str]:
        """Yield the text of `value`; `newline` is a line end with the indent of the value, or empty."""
        if isinstance(value, str):
            yield self._quoted(value)
        elif isinstance(value, dict) and value:
            yield from self._members(("{", "}"), sorted(value.items()) if self.sort_keys else value.items(), newline)
        elif isinstance(value, list | tuple) and value:
            yield from self._members(("[", "]"), ((None, member) for member in value), newline)
        else:
            yield json.dumps(value)

    def _members(self, brackets: tuple[str, str], members: Any, newline: str) -> Iterator[str]:
        inner = newline and newline + self.step
        yield brackets[0]
        for number, (name, member) in enumerate(members):
            yield (self.comma if number else "") + inner
            if brackets[0] == "{":
                yield self._quoted(name if isinstance(name, str) else json.dumps(name))
                yield self.colon
            yield from self.parts(member, inner)
        yield newline + brackets[1]

    def _quoted(self, text: str) -> str:
        quoted, origin = json.dumps(text, ensure_ascii=self.ensure_ascii), origin_of(text)
        if isinstance(text, OriginText) and len(quoted) != len(text) + 2:
            lengths = (len(json.dumps(char, ensure_ascii=self.ensure_ascii)) - 2 for char in plain_text(text))
            origin = "".join(map(str.__mul__, origin, lengths))
        return with_origin(quoted, CLIENT + origin + CLIENT)


def _has_letters(value: Any) -> bool:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, OriginText):
            return True
        if isinstance(one, dict):
            waiting.extend(one.keys())
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return False
