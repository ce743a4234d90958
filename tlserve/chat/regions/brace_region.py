"""A call in the notation of Gemma: `call:name{key:<|"|>text<|"|>,n:3,list:[1,2],inner:{a:true}}`.

Keys have no quotes; texts are between marks of their own, or are JSON strings. A call is passed on after its last brace.
"""

from __future__ import annotations

import json
import re

from tlserve.chat.dialect import CallForm
from tlserve.chat.output.call_reader import Schemas, call_pieces
from tlserve.chat.output.json_scan import as_json
from tlserve.chat.regions.region import MAX_HEAD_CHARS, BaseRegion, Read

_HEAD = re.compile(r"\s*+(?:call)?+:\s*+([A-Za-z0-9_.:/-]{1,256}+)\s*+(?=\{)")
_HEAD_BEGUN = re.compile(r"\s*+(?:c|ca|cal|call|(?:call)?+:\s*+[A-Za-z0-9_.:/-]{0,256}+\s*+)?")
_KEY = re.compile(r'\s*+(?:"((?:[^"\\]++|\\.)*+)"|([^\s:{},"<>\[\]]++))\s*+:\s*+')
_COLON = re.compile(r"\s*+:")
_BARE = re.compile(r"[^\s,{}\[\]\"<>]++")
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
MAX_DEPTH = 64


class NotBraces(Exception):
    """The text is not an object in this notation."""


class BraceRegion(BaseRegion):
    """One call, up to the text `end`."""

    def __init__(self, begin: str, end: str, form: CallForm, schemas: Schemas) -> None:
        super().__init__(begin)
        assert form.arguments is not None
        self._end = end
        self._quotes = (form.arguments.text_begin, form.arguments.text_end)
        self._schemas = schemas
        self._at = 0  # the text before it was looked at
        self._depth = 0
        self._inside = ""  # the mark that ends the text in which it is

    def feed(self, text: str) -> Read:
        """Read the call, then the text that closes it."""
        self._raw += text
        if self._opened:
            return self._tail()
        head = _HEAD.match(self._raw)
        if head is None:
            begun = _HEAD_BEGUN.fullmatch(self._raw) and len(self._raw) <= MAX_HEAD_CHARS
            return ([], "") if begun else self._give_up()
        end = self._end_of_object(head.end())
        if not end:
            return [], ""
        try:
            arguments = parse_braces(self._raw[head.end() : end], self._quotes)
        except NotBraces:
            return self._give_up()
        rest = self._raw[end:]
        self._commit()
        pieces = call_pieces(head[1], arguments, self._schemas)
        self._raw = rest
        return pieces, self._tail()[1]

    def finish(self) -> Read:
        """Give back a call that was not closed; the beginning of the closing text is markup."""
        return ([], "") if self._opened and self._end.startswith(self._raw.lstrip()) else self._fail("")

    def _tail(self) -> Read:
        tail = self._raw.lstrip()
        if self._end.startswith(tail) and tail != self._end:
            return [], ""
        if not tail.startswith(self._end):
            return self._give_up()
        self.over, self._raw = True, ""
        return [], tail[len(self._end) :]

    def _give_up(self) -> Read:
        pieces, rest = self._fail("")
        self._raw = ""
        return pieces, rest

    def _end_of_object(self, start: int) -> int:
        """Return the place after the brace that closes the object at `start`, or 0 while there is none."""
        at = max(self._at, start)
        begin_text, end_text = self._quotes
        while at < len(self._raw):
            if self._inside:
                found = self._raw.find(self._inside, at)
                if found < 0:
                    self._at = max(at, len(self._raw) - len(self._inside) + 1)
                    return 0
                at, self._inside = found + len(self._inside), ""
            elif self._raw.startswith(begin_text, at):
                at, self._inside = at + len(begin_text), end_text
            elif begin_text.startswith(self._raw[at:]):
                break
            elif self._raw[at] == '"':
                found_string = _STRING.match(self._raw, at)
                if found_string is None:
                    break
                at = found_string.end()
            else:
                self._depth += {"{": 1, "}": -1}.get(self._raw[at], 0)
                at += 1
                if self._depth == 0:
                    return at
        self._at = at
        return 0


def parse_braces(text: str, quotes: tuple[str, str]) -> str:
    """Return the JSON text of the object that `text` is; raises NotBraces."""
    parser = _BraceParser(text, quotes)
    written = parser.value()
    if parser.at != len(text) or not as_json(written):
        raise NotBraces
    return as_json(written)


class _BraceParser:
    """Reads a complete text from the left; `at` is the place of the next character."""

    def __init__(self, text: str, quotes: tuple[str, str]) -> None:
        self._text = text
        self._quotes = quotes
        self._depth = 0
        self.at = 0

    def value(self) -> str:
        """Return the JSON text of the value at `at`."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotBraces
        self._skip()
        written = self._any_value()
        self._depth -= 1
        return written

    def _any_value(self) -> str:
        begin, end = self._quotes
        if self._text.startswith(begin, self.at):
            return self._marked(len(begin), end)
        character = self._text[self.at : self.at + 1]
        if character == "{":
            return self._items("}", self._member, "{%s}")
        if character == "[":
            return self._items("]", self.value, "[%s]")
        found = (_STRING if character == '"' else _BARE).match(self._text, self.at)
        if found is None:
            raise NotBraces
        self.at = found.end()
        if character == '"' or _NUMBER.fullmatch(found[0]):
            return found[0]
        return _WORDS.get(found[0]) or json.dumps(found[0], ensure_ascii=False)

    def _marked(self, length: int, end: str) -> str:
        begin = self.at + length
        found = self._text.find(end, begin)
        if found < 0:
            raise NotBraces
        self.at = found + len(end)
        return json.dumps(self._text[begin:found], ensure_ascii=False)

    def _items(self, closer: str, read: object, form: str) -> str:
        assert callable(read)
        self.at += 1
        items: list[str] = []
        self._skip()
        while self._text[self.at : self.at + 1] != closer:
            items.append(read())
            self._skip()
            if self._text[self.at : self.at + 1] == ",":
                self.at += 1
                self._skip()
            elif self._text[self.at : self.at + 1] != closer:
                raise NotBraces
        self.at += 1
        return form % ", ".join(items)

    def _member(self) -> str:
        begin, end = self._quotes
        self._skip()
        if self._text.startswith(begin, self.at):
            key = self._marked(len(begin), end)
            found = _COLON.match(self._text, self.at)
        else:
            found = _KEY.match(self._text, self.at)
            key = "" if found is None else f'"{found[1]}"' if found[2] is None else json.dumps(found[2])
        if found is None:
            raise NotBraces
        self.at = found.end()
        return f"{key}: {self.value()}"

    def _skip(self) -> None:
        while self._text[self.at : self.at + 1] in tuple(" \t\n\r"):
            self.at += 1
