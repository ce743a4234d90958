"""A region of calls as tags, in which each argument is a text between tags.

The tags are those of a `CallForm`. Blanks around tags are optional, and one newline at each end of a value belongs to the markup.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import attrs

from tlserve.chat.dialect import TYPE, ArgumentMarks, CallArguments, CallClosed, CallForm, CallOpened, Piece, Slot
from tlserve.chat.output.argument_stream import typed, unwrapped
from tlserve.chat.output.call_reader import Schemas
from tlserve.chat.regions.nested_tags import nested_json
from tlserve.chat.regions.region import MAX_HEAD_CHARS, BaseRegion, Read

_NAME = r"([^<>\s\"{}\[\](),]{1,512}+)"
_KEY = r"([^<>\s\"]++(?:[ \t]++[^<>\s\"]++)*+)"
_NO_NAME = re.compile(r"[<>\s\"{}\[\](),]")
_NO_KEY = re.compile(r"[<>\n\"]")
_BLANKS = r"\s*+"
_WORD = r"[^<>\"\s]{0,64}"


@attrs.frozen(kw_only=True)
class TagPatterns:
    """A form as patterns. `closers`: the tags after the arguments of a call; `section_end` closes a region of several calls.

    `missing`: the text at the beginning of a line that ends a value whose own end was left out. `nested`: the marks of values
    that can be tags inside tags.
    """

    head: re.Pattern[str]
    head_begin: str
    head_ends: tuple[str, ...]
    key: re.Pattern[str]
    key_begin: str
    key_ends: tuple[str, ...]
    value_end: str
    text_begin: str
    text_end: str
    typed_text: str
    closers: tuple[str, ...]
    section_end: str
    missing: re.Pattern[str]
    nested: ArgumentMarks | None
    is_framed: bool


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
    may_follow = tuple(map(_packed, (marks.key_begin, tails[0])))
    is_short = _packed(after) == ">"  # models leave it out
    if is_short:
        closing = rf"(?:{closing}|(?={_BLANKS}(?:{'|'.join(map(loose, may_follow))})))"
    in_section = bool(form.before) and form.end != tails[-1]
    key_ends = (marks.key_end, marks.json_key_end or marks.key_end)
    key = rf"{loose(marks.key_begin)}{_KEY}({'|'.join(map(_key_end, dict.fromkeys(key_ends)))})"
    last = (*tails, form.end) if in_section else tuple(tails)
    closed = _BLANKS.join(map(re.escape, last)) if len(last) > 1 else r"(?!)"
    return TagPatterns(
        head=re.compile(loose(before) + _NAME + closing),
        head_begin=before.strip(),
        head_ends=(_packed(after.partition("\0")[0]), *(may_follow if is_short else ())),
        key=re.compile(key),
        key_begin=marks.key_begin.strip(),
        key_ends=tuple(_packed(end.partition(TYPE)[0]) for end in key_ends),
        value_end=marks.value_end.strip(),
        text_begin=marks.text_begin,
        text_end=marks.text_end,
        typed_text=marks.key_end.strip() if marks.json_key_end else "",
        closers=tuple(tails),
        section_end=form.end if in_section else "",
        missing=re.compile(rf"\n[ \t]*+(?:{key.removeprefix(_BLANKS)}|{closed})"),
        nested=marks if "{key}" in marks.value_end else None,
        is_framed=marks.key_end.endswith("\n"),
    )


class TagRegion(BaseRegion):
    """Calls as tags: one, or those of a section. A value becomes the type that its schema names, where it can.

    A value is passed on once it is complete. `accepts` says which names are taken. `last` may follow the region. `is_free`: no
    grammar holds the call, so the end of a value may be left out.
    """

    def __init__(
        self,
        begin: str,
        form: CallForm,
        schemas: Schemas,
        accepts: Callable[[str], bool] = bool,
        *,
        last: str = "",
        is_free: bool = True,
    ) -> None:
        super().__init__(begin)
        self._tags = tag_patterns(form)
        self._schemas = schemas
        self._accepts = accepts
        self._name = ""
        self._keys: list[str] = []  # of the arguments that were read
        self._closers: tuple[str, ...] | None = None  # the tags that the open call still needs
        self._last = last
        self._is_after = False  # only `last` can follow
        self._searched = 0
        self._inner = 0  # the tags inside a value that are named as its own
        self._is_free = is_free

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
            return None if self._could_name(self._tags.head_begin, _NO_NAME, self._tags.head_ends) else self._give_up()
        if not self._accepts(found[1].strip()):
            return self._give_up()
        self._name, self._raw, self._opened = found[1].strip(), self._raw[found.end() :], True
        self._closers, self._keys = self._tags.closers, []
        return [CallOpened(self._name), CallArguments("{")]

    def _argument(self) -> list[Piece] | None:
        found = self._tags.key.match(self._raw)
        if found is None:
            return None if self._could_name(self._tags.key_begin, _NO_KEY, self._tags.key_ends) else self._give_up()
        begin = self._text_begin(found.end())
        if begin is None:
            return None
        key, is_marked = found[1], begin > found.end()
        value_end = (self._tags.text_end if is_marked else "") + self._tags.value_end.replace("{key}", key)
        end, after = self._end_of_value(begin, value_end, key)
        if end < 0:
            return None
        value = self._raw[begin:end]
        self._raw, self._searched, self._inner = self._raw[after:], 0, 0
        return [CallArguments(self._member(key.strip(), value, found[2].strip(), is_marked=is_marked))]

    def _end_of_value(self, begin: int, value_end: str, key: str) -> tuple[int, int]:
        """Return the place where the value from `begin` on ends, and the place after its end; -1 while that is open."""
        at = max(begin, self._searched)
        if self._tags.nested is not None:
            return self._end_of_nested(at, value_end, f"{self._tags.key_begin}{key}{self._tags.key_ends[0]}")
        end = self._raw.find(value_end, at)
        missing = self._missing_end(begin, at, end) if self._is_free else -1
        if missing >= 0:
            return missing, missing
        self._searched = len(self._raw) - len(value_end) + 1
        return end, end + len(value_end)

    def _end_of_nested(self, at: int, value_end: str, opening: str) -> tuple[int, int]:
        """Return the places at the end of a value in which `opening` and `value_end` may come in pairs."""
        while (end := self._raw.find(value_end, at)) >= 0:
            self._inner += self._raw.count(opening, at, end)
            if not self._inner:
                return end, end + len(value_end)
            self._inner -= 1
            at = self._searched = end + len(value_end)
        last = max(at, len(self._raw) - max(len(opening), len(value_end)) + 1)
        self._inner += self._raw.count(opening, at, last + len(opening) - 1)
        self._searched = last
        return -1, -1

    def _missing_end(self, begin: int, at: int, end: int) -> int:
        """Return where, before `end`, the next argument of the schema or the end of the call begins; -1 if nowhere."""
        first = max(begin, at - MAX_HEAD_CHARS)
        for found in self._tags.missing.finditer(self._raw, first, *(() if end < 0 else (end,))):
            if len(found[0]) <= MAX_HEAD_CHARS and (found[1] is None or self._is_waiting(found[1].strip())):
                return found.start()
        return -1

    def _is_waiting(self, key: str) -> bool:
        """Say whether the schema has an argument of this name that was not read yet."""
        properties = self._schemas.get(self._name, {}).get("properties")
        return isinstance(properties, Mapping) and key in properties and key not in self._keys

    def _text_begin(self, at: int) -> int | None:
        """Return the place of a value after the mark of a text, if it has that mark; None while that is open."""
        mark, rest = self._tags.text_begin, self._raw[at : at + len(self._tags.text_begin)]
        if not mark.startswith(rest):
            return at
        return at + len(mark) if rest == mark else None

    def _member(self, key: str, value: str, key_end: str, *, is_marked: bool) -> str:
        """Return a member of the arguments as JSON, with the comma before it."""
        schema = self._schemas.get(self._name, {})
        comma = ", " if self._keys else ""
        inner = "" if self._keys else unwrapped(key, value, schema)
        self._keys.append(key)
        if inner:
            return inner
        value = value if is_marked else self._unframed(value)
        if self._tags.nested is not None:
            properties = schema.get("properties")
            member = properties.get(key) if isinstance(properties, Mapping) else None
            written = nested_json(value, self._tags.nested, member)
        else:
            is_text = None if not self._tags.typed_text else key_end == self._tags.typed_text
            written = typed(value, schema, key, is_text=is_text)
        return f"{comma}{json.dumps(key, ensure_ascii=False)}: {written}"

    def _unframed(self, value: str) -> str:
        """Return a value without the newlines of the markup; in a form that writes none, they come in pairs or not at all."""
        inner = value.removeprefix("\n")
        return inner.removesuffix("\n") if self._tags.is_framed or inner != value else value

    def _could_name(self, begin: str, stop: re.Pattern[str], ends: tuple[str, ...]) -> bool:
        """Say whether the text can still become `begin`, with or without its blanks, a name, and one of `ends`."""
        return any(self._could_follow(own, stop, ends) for own in dict.fromkeys((begin, _packed(begin))))

    def _could_follow(self, begin: str, stop: re.Pattern[str], ends: tuple[str, ...]) -> bool:
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
