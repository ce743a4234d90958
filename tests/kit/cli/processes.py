"""A server in its own process, used as by an operator: through its log lines, ports, signals and exit code."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

PATIENCE_S = 60.0
PYTHON_M_TLSERVE = ("-m", "tlserve")


@attrs.define(eq=False)
class ServerProcess:
    """A process and the lines that it has written to standard error."""

    process: subprocess.Popen[str]
    lines: list[str] = attrs.field(factory=list)
    _more: threading.Condition = attrs.field(factory=threading.Condition)
    _closed: bool = False

    def read(self) -> None:
        """Collect the lines; runs in its own thread until the process closes the stream."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._more:
                self.lines.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._closed = True
            self._more.notify_all()

    def write(self, text: str) -> None:
        """Write to the standard input of the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def wait_line(self, pattern: str) -> re.Match[str]:
        """Wait for a line that matches `pattern` and return the match."""
        return self.wait_lines(pattern, 1)[0]

    def wait_lines(self, pattern: str, count: int) -> list[re.Match[str]]:
        """Wait until `count` lines match `pattern` and return the matches."""
        with self._more:
            self._more.wait_for(lambda: self._closed or len(self._found(pattern)) >= count, PATIENCE_S)
            found = self._found(pattern)
        assert len(found) >= count, f"{len(found)} of {count} lines have {pattern!r}:\n" + "\n".join(self.lines)
        return found

    def _found(self, pattern: str) -> list[re.Match[str]]:
        return [match for line in self.lines if (match := re.search(pattern, line))]

    @property
    def address(self) -> str:
        """Return "host:port" of the API from the banner."""
        return self.wait_line(r" API +http://(\S+)")[1]

    @property
    def health_address(self) -> str:
        """Return "host:port" of the health port from the banner."""
        return self.wait_line(r" health +http://(\S+)")[1]

    def children(self) -> list[int]:
        """Return the ids of the processes that it started; Linux only."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self.process.send_signal(number)

    def wait_exit(self) -> int:
        """Wait for the end and return the exit code."""
        return self.process.wait(PATIENCE_S)


@contextmanager
def server_process(*arguments: str, start: Sequence[str] = PYTHON_M_TLSERVE, port: int = 0) -> Iterator[ServerProcess]:
    """Start `python START ARGUMENTS` for the block, on free ports or at `port`; afterwards kill it if it still runs."""
    command = [sys.executable, *start, *arguments, "--port", str(port), "--health-port", "0"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        server = ServerProcess(process)
        reader = threading.Thread(target=server.read)
        reader.start()
        try:
            yield server
        finally:
            process.kill()
            reader.join()


def wait_gone(pid: int) -> None:
    """Wait for the end of a process that anyone may have started."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], f"process {pid} did not end"
    finally:
        os.close(descriptor)


def wait_until(condition: Callable[[], bool]) -> None:
    """Check `condition` repeatedly until it holds, for facts of other processes that no event reports."""
    pace, deadline = threading.Event(), time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        pace.wait(0.05)


def command_line(pid: int) -> str:
    """Return the command line of a process, "" if it is gone; Linux only."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
