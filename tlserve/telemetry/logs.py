"""The form of log lines on standard error: lines for people, or one JSON document per line.

Owns the handler of the logger "tlserve" and its two formats; the messages of OpenTelemetry's package use it as well. Does not
touch the root logger, which belongs to the program around this package; only the command line calls `set_up_logs`.

    2026-01-31T12:00:00.000Z info tlserve.request id=4f1c method=POST path=/v1/chat/completions status=200 ...
    {"time": "2026-01-31T12:00:00.000Z", "level": "info", "logger": "tlserve.request", "event": "request", ...}

No message can begin a new line or move the cursor of a terminal: control characters are escaped, and the lines of a traceback are
indented.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

import attrs

from tlserve.telemetry.log_stream import PatientHandler

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_INDENT = "    "
_LOGGERS = ("tlserve", "opentelemetry")


@attrs.frozen
class LogEvent:
    """A structured message: `lines` for people, a `summary` and `fields` with stable names for programs."""

    name: str
    summary: str
    lines: tuple[str, ...]
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return "\n".join(self.lines)


class _Utc(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"


class LineFormatter(_Utc):
    """Writes a record as lines that each begin with its UTC time, its severity and its logger."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        """Return the record's lines: one, unless it is a `LogEvent` of several."""
        lines = record.msg.lines if isinstance(record.msg, LogEvent) else (record.getMessage(),)
        head = f"{self.formatTime(record)} {record.levelname.lower()} {record.name}"
        return "\n".join(f"{head} {escaped(line)}" for line in lines)

    def formatException(self, ei: object) -> str:  # noqa: N802
        """Return an indented traceback, so that none of its lines looks like a record."""
        lines = super().formatException(ei).split("\n")  # type: ignore[arg-type]
        return "\n".join(_INDENT + escaped(line) for line in lines)


class JsonFormatter(_Utc):
    """Writes a record as one JSON document on one line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the document: `time`, `level`, `logger`, `event`, `message`, then the fields of the event."""
        event = record.msg if isinstance(record.msg, LogEvent) else None
        head = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": "message" if event is None else event.name,
            "message": record.getMessage() if event is None else event.summary,
        }
        own = {} if event is None else event.fields
        fault = {"exception": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps({**head, **own, **fault}, default=str)


def escaped(text: str) -> str:
    """Return `text` with its control characters, including line breaks, as escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


FORMATS: Mapping[str, Callable[[], logging.Formatter]] = {"text": LineFormatter, "json": JsonFormatter}


def set_up_logs(level: str, stream: TextIO | None = None, *, form: str = "text") -> None:
    """Send the messages of "tlserve" and its children at `level` ("info") or above to `stream`, standard error if None.

    `form` is a name of `FORMATS`. A second call replaces the first one's handler.
    """
    handler = _handler(stream or sys.stderr)
    handler.setFormatter(FORMATS[form]())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


def _handler(stream: TextIO) -> logging.Handler:
    """Return a handler that never waits for its reader; a stream without a descriptor is written to as usual."""
    try:
        stream.fileno()
    except (OSError, ValueError, AttributeError):
        return logging.StreamHandler(stream)
    return PatientHandler(stream)
