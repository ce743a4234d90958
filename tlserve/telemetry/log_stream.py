"""A log handler that never waits: what its stream does not take at once is kept, and dropped beyond a limit.

Owns the buffer and the count of dropped lines. Without it, a pipe that nobody reads stops the whole server at the first line that
does not fit.

A pipe that is writable takes at least PIPE_BUF bytes without blocking (POSIX, `write`), so nothing larger is written at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
import time
from collections import deque
from typing import TextIO

KEPT_BYTES = 1 << 20
"""Log text that is kept for a stream that takes nothing."""

_CHUNK_BYTES = select.PIPE_BUF
_LAST_WAIT_S = 1.0
"""How long the rest is offered to the stream when the program ends."""


class PatientHandler(logging.Handler):
    """Writes records to the file descriptor of `stream`; `dropped` counts the lines that did not fit."""

    def __init__(self, stream: TextIO, *, kept_bytes: int = KEPT_BYTES) -> None:
        super().__init__()
        self.dropped = 0
        self._stream = stream
        self._fd = stream.fileno()
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)
        self._most = kept_bytes
        self._kept = 0
        self._reported = 0
        self._waiting: deque[bytes] = deque()
        atexit.register(self.close)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or keep it, or count it as dropped. Nothing that goes wrong here ends a request."""
        try:
            self._keep(self.format(record))
            self._write_ready()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        """Offer the rest to the stream for a moment, then let it go."""
        atexit.unregister(self.close)
        until = time.monotonic() + _LAST_WAIT_S
        while self._waiting and time.monotonic() < until and self._write_ready(wait_ms=50):
            pass
        super().close()

    def _keep(self, text: str) -> None:
        data = (text + "\n").encode("utf-8", "backslashreplace")
        if self._kept + len(data) > self._most:
            self.dropped += 1
            return
        if self.dropped > self._reported:
            data = f"log lines dropped, as nobody read them: {self.dropped - self._reported}\n".encode() + data
            self._reported = self.dropped
        self._waiting.append(data)
        self._kept += len(data)

    def _write_ready(self, wait_ms: int = 0) -> bool:
        """Write as much as the stream takes without waiting longer than `wait_ms`; return False if it is broken."""
        while self._waiting:
            events = self._poll.poll(wait_ms)
            if not events:
                return True
            if not events[0][1] & select.POLLOUT:  # the reader has gone
                self._forget()
                return False
            data = self._waiting[0]
            try:
                written = os.write(self._fd, data[:_CHUNK_BYTES])
            except BlockingIOError:
                written = 0
            except OSError:  # a closed pipe, a full disk: there is nowhere to say so
                self._forget()
                return False
            self._kept -= written
            if written == len(data):
                self._waiting.popleft()
            elif written:
                self._waiting[0] = data[written:]
            else:
                return True
        return True

    def _forget(self) -> None:
        self.dropped += len(self._waiting)
        self._waiting.clear()
        self._kept = 0
