"""A region of calls as tags, in which each argument is a text between tags.

The tags are those of a `CallForm`. Blanks around tags are optional, and one newline at each end of a value belongs to the markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache

import attrs

from tlserve.chat.dialect import TYPE, CallArguments, CallClosed, CallForm, CallOpened, Piece, Slot
from tlserve.chat.output.argument_stream import typed
from tlserve.chat.output.call_reader import Schemas
from tlserve.chat.regions.region import MAX_HEAD_CHARS, BaseRegion, Read

_NAME = r"([^<>\s\"{}\[\](),]{1,512}+)"
_KEY = r"([^<>\s\"]++(?:[ \t]++[^<>\s\"]++)*+)"
_NO_NAME = re.compile(r"[<>\s\"{}\[\](),]")
_NO_KEY = re.compile(r"[<>\n\"]")
_BLANKS = r"\s*+"
_WORD = r"[^<>\"\s]{0,64}"


@attrs.frozen(kw_only=True)
class TagPatterns:
    """A form as patterns. `closers`: the tags after the arguments of a call; `section_end` closes a region of several calls."""

    head: re.Pattern[str]
    head_begin: str
    head_end: str
    key: re.Pattern[str]
    key_begin: str
    key_ends: tuple[str, ...]
    value_end: str
    text_begin: str
    text_end: str
    typed_text: str
    closers: tuple[str, ...]
    section_end: str


def loose(text: str) -> str:
    """Return a pattern for `text` with any blanks where it has some, and around it."""
    return _BLANKS + _BLANKS.join(map(re.escape, text.split())) + _BLANKS if text.strip() else _BLANKS


def _key_end(text: str) -> str:
    """Return a pattern for the text after a key, with any word for the type of its value."""
    return loose(text).removesuffix(_BLANKS).replace(re.escape(TYPE), "[a-z]+")


def _packed(text: str) -> str:
    """Return `text` without its blanks."""
    return "".join(text.split())


@lru_cache(maxsize=64)
def tag_patterns(form: CallForm) -> TagPatterns:
    """Return the patterns of a form whose arguments are tags."""
    marks = form.arguments
    assert marks is not None
    spelled = "".join(part if isinstance(part, str) else f"\0{part.value}\0" for part in form.head).partition(
        form.begin
    )[2]
    before, _, after = spelled.partition(f"\0{Slot.NAME.value}\0")
    ends = [loose(text) for text in re.split(r"\0\w+\0", after)]
    closing = _WORD.join(ends).removesuffix(_BLANKS) if after.strip() else r"[ \t]*(?=[<\]\n])"
    tails = "".join(part for part in form.tail if isinstance(part, str)).split()
    in_section = bool(form.before) and form.end != tails[-1]
    key_ends = (marks.key_end, marks.json_key_end or marks.key_end)
    return TagPatterns(
        head=re.compile(loose(before) + _NAME + closing),
        head_begin=before.strip(),
        head_end=_packed(after.partition("\0")[0]),
        key=re.compile(rf"{loose(marks.key_begin)}{_KEY}({'|'.join(map(_key_end, dict.fromkeys(key_ends)))})"),
        key_begin=marks.key_begin.strip(),
        key_ends=tuple(_packed(end.partition(TYPE)[0]) for end in key_ends),
        value_end=marks.value_end.strip(),
        text_begin=marks.text_begin,
        text_end=marks.text_end,
        typed_text=marks.key_end.strip() if marks.json_key_end else "",
        closers=tuple(tails),
        section_end=form.end if in_section else "",
    )


class TagRegion(BaseRegion):
    """Calls as tags: one, or those of a section. A value becomes the type that its schema names, where it can.

    A value is passed on once it is complete. `accepts` says which names are taken. `last` may follow the region.
    """

    def __init__(
        self, begin: str, form: CallForm, schemas: Schemas, accepts: Callable[[str], bool] = bool, *, last: str = ""
    ) -> None:
        super().__init__(begin)
        self._tags = tag_patterns(form)
        self._schemas = schemas
        self._accepts = accepts
        self._name = ""
        self._count = 0
        self._closers: tuple[str, ...] | None = None  # the tags that the open call still needs
        self._last = last
        self._is_after = False  # only `last` can follow
        self._searched = 0

    def feed(self, text: str) -> Read:
        """Read as many elements as are complete."""
        self._raw += text
        pieces: list[Piece] = []
        while not self.over and (element := self._element()) is not None:
            pieces += element
        if not self.over:
            return pieces, ""
        rest, self._raw = self._raw, ""
        return pieces, rest

    def finish(self) -> Read:
        """Give back the text that is not read; a call that was cut is not closed."""
        if self._opened and self._closers != self._tags.closers and not self._raw.strip():
            return [], ""
        return self._fail("")

    def _element(self) -> list[Piece] | None:
        """Return the pieces of the next element, or None while it is incomplete."""
        if self._is_after:
            return self._end_region()
        if self._closers is None:
            if self._opened and self._could_be(self._tags.section_end):
                return self._end_section()
            return self._head()
        if self._closers != self._tags.closers or self._could_be(self._closers[0]):
            return self._closer(self._closers)
        return self._argument()

    def _could_be(self, tag: str) -> bool:
        """Say whether the text begins with `tag`, or with the beginning of it."""
        stripped = self._raw.lstrip()
        return stripped[: len(tag)] == tag[: len(stripped)]

    def _head(self) -> list[Piece] | None:
        found = self._tags.head.match(self._raw)
        if found is None:
            return (
                None if self._could_name(self._tags.head_begin, _NO_NAME, (self._tags.head_end,)) else self._give_up()
            )
        if not self._accepts(found[1].strip()):
            return self._give_up()
        self._name, self._raw, self._opened = found[1].strip(), self._raw[found.end() :], True
        self._closers, self._count = self._tags.closers, 0
        return [CallOpened(self._name), CallArguments("{")]

    def _argument(self) -> list[Piece] | None:
        found = self._tags.key.match(self._raw)
        if found is None:
            return None if self._could_name(self._tags.key_begin, _NO_KEY, self._tags.key_ends) else self._give_up()
        value_end = self._tags.value_end.replace("{key}", found[1])
        begin = self._text_begin(found.end())
        if begin is None:
            return None
        value_end = self._tags.text_end + value_end if begin > found.end() else value_end
        end = self._raw.find(value_end, max(begin, self._searched))
        if end < 0:
            self._searched = len(self._raw) - len(value_end) + 1
            return None
        value = self._raw[begin:end]
        self._raw, self._searched = self._raw[end + len(value_end) :], 0
        return [CallArguments(self._member(found[1].strip(), value, found[2].strip()))]

    def _text_begin(self, at: int) -> int | None:
        """Return the place of a value after the mark of a text, if it has that mark; None while that is open."""
        mark, rest = self._tags.text_begin, self._raw[at : at + len(self._tags.text_begin)]
        if not mark.startswith(rest):
            return at
        return at + len(mark) if rest == mark else None

    def _member(self, key: str, value: str, key_end: str) -> str:
        """Return a member of the arguments as JSON, with the comma before it."""
        comma = ", " if self._count else ""
        self._count += 1
        value = value.removeprefix("\n").removesuffix("\n")
        is_text = None if not self._tags.typed_text else key_end == self._tags.typed_text
        written = typed(value, self._schemas.get(self._name, {}), key, is_text=is_text)
        return f"{comma}{json.dumps(key, ensure_ascii=False)}: {written}"

    def _could_name(self, begin: str, stop: re.Pattern[str], ends: tuple[str, ...]) -> bool:
        """Say whether the text can still become `begin`, a name, and one of `ends`; a name ends at `stop`."""
        stripped = self._raw.lstrip()
        if not self._could_be(begin) or len(stripped) > MAX_HEAD_CHARS + len(begin):
            return False
        name = stripped[len(begin) :].lstrip()
        found = stop.search(name)
        tail = _packed(name[found.start() :]) if found else ""
        return any(end.startswith(tail) or (end and tail.startswith(end)) for end in ends)

    def _closer(self, closers: tuple[str, ...]) -> list[Piece] | None:
        """Read the next tag that closes the call; the first one ends its arguments."""
        read = self._literal(closers[0])
        if read is None or self.over:
            return read
        first = closers == self._tags.closers
        self._closers = closers[1:] or None
        self._is_after = self._closers is None and not self._tags.section_end
        return [CallArguments("}"), CallClosed()] if first else []

    def _end_region(self) -> list[Piece] | None:
        """Read the text that may follow the region; anything else is given back."""
        stripped = self._raw.lstrip()
        if self._last and self._last.startswith(stripped) and stripped != self._last:
            return None
        self.over = True
        if self._last and stripped.startswith(self._last):
            self._raw = stripped[len(self._last) :]
        return []

    def _end_section(self) -> list[Piece] | None:
        read = self._literal(self._tags.section_end)
        self.over = self.over or read is not None
        return read

    def _literal(self, tag: str) -> list[Piece] | None:
        stripped = self._raw.lstrip()
        if not stripped.startswith(tag):
            return None if self._could_be(tag) else self._give_up()
        self._raw = stripped[len(tag) :]
        return []

    def _give_up(self) -> list[Piece]:
        pieces, self._raw = self._fail("")
        return pieces
