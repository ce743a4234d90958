"""Where lines come from and where answers go: a terminal with a person, or pipes.

Owns what is written where. On a terminal, an answer is shown as it arrives, without characters that could move the cursor. In a
pipe, standard output has only the answers, and everything else goes to standard error.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from rich.console import Console
from rich.text import Text

from tlserve.cli.chat.client import AnswerEnd
from tlserve.errors import OperatorError

PROMPT = "> "
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Screen(Protocol):
    """The input and output of the chat."""

    is_terminal: bool

    def lines(self) -> Iterator[str]:
        """Yield the user's lines until they end."""

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Show during the block that the program is busy."""

    def piece(self, text: str) -> None:
        """Show a piece of an answer."""

    def end(self, end: AnswerEnd | None) -> None:
        """End an answer; None: it was stopped."""

    def note(self, text: str) -> None:
        """Show a text that is not an answer."""

    def fault(self, text: str) -> None:
        """Show an error."""


def open_screen() -> Screen:
    """Return the screen of this process: a terminal only if both ends are one."""
    return Terminal() if sys.stdin.isatty() and sys.stdout.isatty() else Pipe()


class Terminal:
    """A person at a terminal."""

    is_terminal = True

    def __init__(self) -> None:
        import readline  # noqa: F401 (gives `input` its editing and its history)

        self._console = Console(highlight=False, soft_wrap=True)

    def lines(self) -> Iterator[str]:
        """Yield lines until Ctrl-D; Ctrl-C drops the current line."""
        while True:
            try:
                yield input(PROMPT)
            except KeyboardInterrupt:
                self._console.print("\n(Ctrl-D or /quit ends)", style="dim")
            except EOFError:
                self._console.print()
                return

    def waiting(self, text: str) -> AbstractContextManager[object]:
        """Show a spinner."""
        return self._console.status(text)

    def piece(self, text: str) -> None:
        """Show text, with control characters as escapes."""
        self._console.print(Text(visible(text)), end="")

    def end(self, end: AnswerEnd | None) -> None:
        """Show the length and speed of the answer, why it ended, and the seed that repeats it."""
        self._console.print()
        self._console.print(Text("(stopped)" if end is None else f"({described(end)})"), style="dim")

    def note(self, text: str) -> None:
        """Show a text dimly."""
        self._console.print(Text(visible(text)), style="dim")

    def fault(self, text: str) -> None:
        """Show an error in red."""
        self._console.print(Text(visible(text)), style="red")


class Pipe:
    """A program: each line is a turn; answers go to standard output, one after the other."""

    is_terminal = False

    def __init__(self) -> None:
        self._is_read = True
        for stream in (sys.stdin, sys.stdout):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="strict")

    def lines(self) -> Iterator[str]:
        """Yield the lines of standard input while the answers are read; raises `OperatorError` if they are not UTF-8."""
        try:
            for line in sys.stdin:
                yield line.rstrip("\r\n")
                if not self._is_read:
                    return
        except UnicodeDecodeError as error:
            raise OperatorError(f"standard input is not UTF-8: {error.reason}") from None

    def waiting(self, text: str) -> AbstractContextManager[object]:  # noqa: ARG002
        """Show nothing."""
        return nullcontext()

    def piece(self, text: str) -> None:
        """Write text as it is."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has gone; further output is dropped, also at the end of the process
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._is_read = False

    def end(self, end: AnswerEnd | None) -> None:  # noqa: ARG002
        """Begin a new line."""
        self.piece("\n")

    def note(self, text: str) -> None:
        """Write to standard error."""
        print(text, file=sys.stderr, flush=True)

    def fault(self, text: str) -> None:
        """Write to standard error."""
        print(f"tlserve: {text}", file=sys.stderr, flush=True)


def visible(text: str) -> str:
    """Return `text` with its control characters, except tabs and line feeds, as escapes."""
    return _UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def described(end: AnswerEnd) -> str:
    """Return one line about an answer."""
    facts = (
        []
        if end.tokens is None
        else [f"{end.tokens} tokens", f"{end.tokens / max(end.duration_s, 1e-9):.1f} per second"]
    )
    ended = {"length": "cut at its limit", "stop": ""}.get(end.finish or "", end.finish)
    return ", ".join([*facts, *([ended] if ended else []), *([f"seed {end.seed}"] if end.seed else [])]) or "done"
