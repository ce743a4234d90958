"""A program at a pseudo-terminal: the input and output of a person."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

PATIENCE_S = 30.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")


@attrs.define(eq=False)
class TerminalProgram:
    """A process whose terminal is `fd`; `seen` is all its output, without colours, up to the last `wait_for`."""

    process: subprocess.Popen[bytes]
    fd: int
    _raw: bytes = b""
    _mark: int = 0

    @property
    def text(self) -> str:
        """Return the output so far."""
        return _ESCAPES.sub("", self._raw.decode(errors="replace")).replace("\r\n", "\n")

    def wait_for(self, words: str) -> str:
        """Wait until `words` follow the text of the last wait; return the text up to them."""
        begin = time.monotonic()
        while words not in self.text[self._mark :]:
            left_s = PATIENCE_S - (time.monotonic() - begin)
            assert left_s > 0, f"no {words!r} in {self.text[self._mark :]!r}"
            self._read(left_s)
        end = self.text.index(words, self._mark) + len(words)
        shown, self._mark = self.text[self._mark : end], end
        return shown

    def _read(self, timeout_s: float) -> None:
        ready, _, _ = select.select([self.fd], [], [], timeout_s)
        assert ready, f"no output for {timeout_s:.0f} s after {self.text!r}"
        try:
            part = os.read(self.fd, 65_536)
        except OSError:  # the other end is closed
            part = b""
        assert part, f"the program ended after {self.text!r}"
        self._raw += part

    def type(self, text: str) -> None:
        """Type `text`; "\\x04" is Ctrl-D."""
        os.write(self.fd, text.encode())

    def press_ctrl_c(self) -> None:
        """Type Ctrl-C once the program waits: readline misses a signal that comes while it handles a character."""
        begin = time.monotonic()
        while not self._is_waiting():
            assert time.monotonic() - begin < PATIENCE_S, f"the program does not wait for input after {self.text!r}"
            select.select([], [], [], 0.001)
        self.type("\x03")

    def _is_waiting(self) -> bool:
        """Return whether the main thread sleeps, after what it has shown."""
        state = Path(f"/proc/{self.process.pid}/stat").read_text()
        return state.rpartition(")")[2].split()[0] == "S"

    def wait_exit(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(PATIENCE_S)


@contextmanager
def terminal_program(*arguments: str) -> Iterator[TerminalProgram]:
    """Start `python ARGUMENTS` at a terminal for the block; afterwards kill it if it still runs."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1"}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=environment,
        preexec_fn=_take_terminal,
    )
    os.close(theirs)
    try:
        yield TerminalProgram(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _take_terminal() -> None:
    """Make the terminal the session's own, so that Ctrl-C reaches the process, also if our parent process ignores it."""
    import fcntl
    import signal
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
