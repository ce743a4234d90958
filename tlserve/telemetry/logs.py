"""Where log lines go and how they look: `2026-01-31T12:00:00.000Z info tlserve.request id=...` on standard error.

Owns the handler of the logger "tlserve" and its format. Refuses to touch the root logger, which belongs to the program that we
run in; only the command line calls `set_up_logs`.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO


class LineFormatter(logging.Formatter):
    """Write a record with its UTC time; a line break inside a message is escaped, one of a traceback stays."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        """Return the record's one line."""
        message = record.getMessage().replace("\r", "\\r").replace("\n", "\\n")
        return f"{self.formatTime(record)} {record.levelname.lower()} {record.name} {message}"


def set_up_logs(level: str, stream: TextIO | None = None) -> None:
    """Send what "tlserve" and its children log at `level` ("info") or above to `stream`, standard error if None.

    A second call replaces the first one's handler.
    """
    logger = logging.getLogger("tlserve")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
