"""Strings that know which of their characters the chat template wrote.

Owns `OriginText`: a `str` with one letter for each character, which says who wrote it. A plain `str` was wholly written by the
client. Only the literals of a compiled template, and what the server adds itself (roles, BOS, EOS), have the template's letter.
So a template gets the very strings of the client.

Every operation takes its text from `str` and repeats on the letters what happened to the characters, so that no text can differ
from that of plain jinja2. Whatever does not keep letters (C code, `repr`, an unknown filter) gives a plain `str`, which is the
safe side: a spelling of a control token counts only where the template wrote all of it.

Knows nothing of jinja2, which `tlserve.chat.templates.origin_jinja` connects, or of tokens.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

import markupsafe
from markupsafe import Markup

from tlserve.text.special_tokens import TEMPLATE

CLIENT = "c"
"""The letter of characters that a client wrote. Any other letter than TEMPLATE has the same rights."""


def origin_of(text: str) -> str:
    """Return one letter for each character of `text`."""
    return text.origin if isinstance(text, OriginText) else CLIENT * len(text)


def with_origin(text: str, origin: str) -> str:
    """Return `text` with these letters, or as it is if their number differs."""
    if len(text) != len(origin):
        return text
    made = str.__new__(OriginText, text)
    made.origin = origin
    return made


def template_text(text: str) -> str:
    """Return `text` as written by the template."""
    return with_origin(text, TEMPLATE * len(text))


def plain_text(text: str) -> str:
    """Return `text` without letters."""
    return str.__str__(text)


def concat(parts: Iterable[str]) -> str:
    """Return the parts joined, with the letters of each."""
    parts = list(parts)
    origins = [part.origin if isinstance(part, OriginText) else CLIENT * len(part) for part in parts]
    return with_origin("".join(parts), "".join(origins))


def concat_if_equal(text: str, parts: Iterable[str]) -> str:
    """Return the joined parts if they are equal to `text`, else `text`."""
    joined = concat(parts)
    return joined if joined == text else text


class OriginText(str):
    """A string with letters. `with_origin` makes one; the constructor keeps the letters of its argument, and adds none."""

    __slots__ = ("origin",)

    origin: str

    def __new__(cls, text: Any = "", *args: Any) -> OriginText:
        """Return `str(text)` with the letters of `text`."""
        made = super().__new__(cls, text, *args)
        made.origin = text.origin if isinstance(text, OriginText) else CLIENT * len(made)
        return made

    def __str__(self) -> str:
        return self

    def __iter__(self) -> Iterator[str]:
        return map(with_origin, str.__iter__(self), self.origin)

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        return with_origin(str.__getitem__(self, key), self.origin[key])

    def __add__(self, other: Any) -> Any:
        if type(other) is str or isinstance(other, OriginText):
            return with_origin(str.__add__(self, other), self.origin + origin_of(other))
        return plain_text(self) + other

    def __radd__(self, other: Any) -> Any:
        if type(other) is str:
            return with_origin(str.__add__(other, self), origin_of(other) + self.origin)
        return other + plain_text(self)

    def __mul__(self, times: SupportsIndex) -> str:
        return with_origin(str.__mul__(self, times), self.origin * times)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        text = str.__mod__(self, values)
        parts = _percent_parts(self, values)
        return text if parts is None else concat_if_equal(text, parts)

    def join(self, parts: Iterable[str], /) -> str:
        """Join, and keep the letters of this text and of the parts."""
        parts = list(parts)
        return with_origin(str.join(self, parts), self.origin.join(map(origin_of, parts)))

    def replace(self, old: str, new: str, /, count: SupportsIndex = -1) -> str:
        """Replace, and keep the letters of this text and of `new`."""
        text = str.replace(self, old, new, count)
        if not old:
            return text
        return with_origin(text, origin_of(new).join(map(origin_of, self.split(old, count))))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split, and keep the letters of each part."""
        return list(self._consecutive(str.split(self, sep, maxsplit), sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        """Split from the right, and keep the letters of each part."""
        return list(self._consecutive(str.rsplit(self, sep, maxsplit), sep))

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        """Split in three; the middle part has the letters of this text, not those of `sep`."""
        before, middle, after = self._consecutive(str.partition(self, sep), "")
        return before, middle, after

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        """Split in three from the right; the middle part has the letters of this text, not those of `sep`."""
        before, middle, after = self._consecutive(str.rpartition(self, sep), "")
        return before, middle, after

    def _consecutive(self, parts: Iterable[str], sep: str | None) -> Iterator[str]:
        """Yield `parts` with their letters; they follow each other here with `sep` between them (None: with whitespace)."""
        place = 0
        for part in parts:
            start = str.find(self, part, place) if sep is None else place
            yield with_origin(part, self.origin[start : start + len(part)])
            place = start + len(part) + len(sep or "")

    def splitlines(self, keepends: bool = False) -> list[str]:
        """Split at line ends, and keep the letters of each line."""
        starts = itertools.accumulate(map(len, str.splitlines(self, True)), initial=0)
        lines = str.splitlines(self, keepends)
        return [self[start : start + len(line)] for start, line in zip(starts, lines, strict=False)]

    def strip(self, chars: str | None = None, /) -> str:
        """Strip, and keep the letters of the rest."""
        start = len(self) - len(str.lstrip(self, chars))
        return self[start : start + len(str.strip(self, chars))]

    def lstrip(self, chars: str | None = None, /) -> str:
        """Strip at the left, and keep the letters of the rest."""
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        """Strip at the right, and keep the letters of the rest."""
        return self[: len(str.rstrip(self, chars))]

    def removeprefix(self, prefix: str, /) -> str:
        """Remove a prefix, and keep the letters of the rest."""
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str, /) -> str:
        """Remove a suffix, and keep the letters of the rest."""
        return self[: len(str.removesuffix(self, suffix))]


def _with_letters_per_character(name: str) -> Callable[[OriginText], str]:
    """Return the method `name` of str, which makes at least one character of each one."""
    method: Callable[[str], str] = getattr(str, name)
    is_independent = name in ("lower", "upper")  # the other methods look at the neighbours of a character

    @functools.wraps(method)
    def made(self: OriginText) -> str:
        text, origin = method(self), self.origin
        if len(text) != len(self) and is_independent:
            origin = "".join(letter * len(method(char)) for char, letter in zip(plain_text(self), origin, strict=True))
        return with_origin(text, origin)

    return made


for _name in ("lower", "upper", "capitalize", "swapcase"):
    setattr(OriginText, _name, _with_letters_per_character(_name))
# the errors of jinja2 and Python print the name of the type
OriginText.__module__, OriginText.__name__ = "builtins", "str"


_CONVERSION = re.compile(r"%(?:\((?P<name>[^()]*)\))?(?P<kind>.)", re.DOTALL)


def _percent_parts(pattern: OriginText, values: Any) -> list[str] | None:
    """Return the parts of `pattern % values`, which Python has accepted, or None if it does more than to insert strings."""
    in_order = iter(values if isinstance(values, tuple) else (values,))
    parts, place = [], 0
    for found in _CONVERSION.finditer(pattern):
        parts.append(pattern[place : found.start()])
        if found["kind"] == "s":
            parts.append(str(next(in_order) if found["name"] is None else values[found["name"]]))
        elif found[0] == "%%":
            parts.append(pattern[found.start()])
        else:
            return None
        place = found.end()
    return [*parts, pattern[place:]]


# --- text that needs no more escaping ------------------------------------------------------------------------------------

_ESCAPED_LENGTH = {char: len(markupsafe.escape(char)) for char in "&<>'\""}


class OriginMarkup(Markup, OriginText):  # type: ignore[misc]  # their `split` differ in the names of arguments only
    """The result of the filter `safe`: `Markup` escapes what is added to it, and `OriginText` keeps the letters."""

    __slots__ = ()

    def __str__(self) -> str:
        return with_origin(plain_text(self), self.origin)

    @classmethod
    def escape(cls, value: Any, /) -> OriginMarkup:
        """Return `value` escaped; what stands for a character has the letter of that character."""
        if isinstance(value, OriginMarkup):
            return value
        made = cls(markupsafe.escape(value))
        if isinstance(value, OriginText):
            lengths = (_ESCAPED_LENGTH.get(char, 1) for char in plain_text(value))
            origin = "".join(map(str.__mul__, value.origin, lengths))
            made.origin = origin if len(origin) == len(made) else made.origin
        return made


OriginMarkup.__module__, OriginMarkup.__name__ = "markupsafe", "Markup"
