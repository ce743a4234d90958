"""Regions with arguments in JSON: a whole call as an object, or a name and then the arguments.

Does not know which family writes which form.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tlserve.chat.dialect import CallClosed, CallOpened, Piece
from tlserve.chat.output.argument_stream import ArgumentStream
from tlserve.chat.output.call_reader import CallReader, Schemas, argument_pieces
from tlserve.chat.output.json_scan import ValueScanner
from tlserve.chat.regions.region import MAX_HEAD_CHARS, BaseRegion, Read

_SPACE = " \t\n\r"
_SEPARATORS = _SPACE + "[],;"
_FENCES = ("```json", "```")


class JsonRegion(BaseRegion):
    """Calls as JSON objects, one after the other, in a list or not.

    The region ends with the tag `end`. If `end` is empty, it ends before the first text that is not part of a call.
    `by_member`: a call is an object whose only member has the tool's name. `begun` is the beginning of the first call, if it is
    a part of `begin`. A code fence before the first call, and a second pair of braces around a call, belong to the markup.
    """

    def __init__(
        self,
        begin: str,
        end: str,
        schemas: Schemas,
        accepts: Callable[[str], bool] = bool,
        *,
        by_member: bool = False,
        begun: str = "",
    ) -> None:
        super().__init__(begin)
        self._end = end
        self._schemas = schemas
        self._accepts = accepts
        self._by_member = by_member
        self._call: CallReader | None = None
        self._is_at_brace = False  # only the first brace of the call was read
        self._doubled = 0  # further braces that close the calls so far
        self._tag = ""
        self._fence = ""
        if begun:
            self._start_call()

    def feed(self, text: str) -> Read:
        """Read calls, and the text between them."""
        pieces: list[Piece] = []
        while text and not self.over:
            read, text = self._between(text) if self._call is None else self._within(self._call, text)
            pieces += read
        return pieces, text

    def finish(self) -> Read:
        """Return the held arguments; a call that was cut is not closed."""
        if self._call is not None and self._call.opened:
            return self._call.flush(), ""
        if self._call is None and self._opened:
            return [], ""
        return self._fail("")

    def _between(self, text: str) -> Read:
        character = text[0]
        may_end = self._opened or self._end not in _FENCES
        if self._end and may_end and self._end.startswith(self._tag + character):
            return self._read_tag(text)
        if character == "{" and not self._tag:
            self._start_call()
            self._raw += character
            return [], text[1:]
        if character == "}" and self._doubled:
            self._doubled -= 1
        elif self._tag or not (character in _SEPARATORS or self._could_be_fence(character)):
            return self._fail(self._tag + text)
        if not self._opened:
            self._raw += character
        return [], text[1:]

    def _start_call(self) -> None:
        self._call = CallReader(self._schemas, self._accepts, by_member=self._by_member)
        self._call.read("{")
        self._is_at_brace = True

    def _could_be_fence(self, character: str) -> bool:
        """Say whether the text between calls may be a code fence, whose language is JSON or not given."""
        if not any(fence.startswith(self._fence + character) for fence in _FENCES):
            self._fence = ""
        self._fence += character
        return any(fence.startswith(self._fence) for fence in _FENCES)

    def _read_tag(self, text: str) -> Read:
        self._tag += text[0]
        if self._tag == self._end and not self._opened:
            return self._fail(self._tag + text[1:])
        self.over = self._tag == self._end
        return [], text[1:]

    def _within(self, call: CallReader, text: str) -> Read:
        if self._is_at_brace:
            self._is_at_brace = False
            if text[0] == "{":
                self._start_call()
                self._doubled += 1
                self._raw += "{"
                self._is_at_brace = False
                return [], text[1:]
        pieces, end = call.read(text)
        if not call.opened:
            if call.failed:
                return self._fail(text)
            self._raw += text[:end]
        else:
            self._commit()
            if call.failed:
                self.over = True
                return pieces + call.flush(), text[end:]
        if call.complete:
            self._call = None
        return pieces, text[end:]


class NamedRegion(BaseRegion):
    """A name, then from the first brace on its arguments as JSON, then `end` if it is not empty.

    `head` matches the whole text before the brace; its first group is the name, if `accepts` takes it.
    """

    def __init__(
        self, begin: str, end: str, schemas: Schemas, head: re.Pattern[str], accepts: Callable[[str], bool] = bool
    ) -> None:
        super().__init__(begin)
        self._end = end
        self._schemas = schemas
        self._head_pattern = head
        self._accepts = accepts
        self._scanner = ValueScanner()
        self._stream = ArgumentStream({})
        self._step: Callable[[str], Read] = self._head

    def feed(self, text: str) -> Read:
        """Read the name, the arguments, the end."""
        pieces: list[Piece] = []
        while text and not self.over:
            read, text = self._step(text)
            pieces += read
        return pieces, text

    def finish(self) -> Read:
        """Return the held arguments; a call that was cut is not closed."""
        if not self._opened:
            return self._fail("")
        return argument_pieces(self._stream.finish()), self._raw

    def _head(self, text: str) -> Read:
        head, brace, _ = (self._raw + text).partition("{")
        if not brace and len(head) <= MAX_HEAD_CHARS:
            self._raw = head
            return [], ""
        found = self._head_pattern.fullmatch(head) if brace and len(head) <= MAX_HEAD_CHARS else None
        if found is None or not self._accepts(found[1]):
            return self._fail(text)
        rest = text[len(head) - len(self._raw) :]
        self._commit()
        self._stream = ArgumentStream(self._schemas.get(found[1], {}))
        self._step = self._arguments
        return [CallOpened(found[1])], rest

    def _arguments(self, text: str) -> Read:
        read, end = self._scanner.read(text)
        passed = self._stream.feed(read)
        if self._scanner.failed:
            self._step, self.over = self._tail, not self._end
            return argument_pieces(passed + self._stream.finish()), text[end:]
        pieces = argument_pieces(passed)
        if self._scanner.complete:
            pieces.append(CallClosed())
            self._step, self.over = self._tail, not self._end
        return pieces, text[end:]

    def _tail(self, text: str) -> Read:
        """Read up to the end; blanks and backticks before it are part of the markup."""
        self._raw += text
        tail = self._raw.lstrip(_SPACE + "`")
        if self._end.startswith(tail) and tail != self._end:
            return [], ""
        if not tail.startswith(self._end):
            return self._fail("")
        self.over, self._raw = True, ""
        return [], tail[len(self._end) :]
