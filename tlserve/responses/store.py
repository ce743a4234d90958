"""The responses that are kept, in a database of SQLite: in a file, or in memory.

Owns the table, who can see a row, and which rows are deleted: those beyond an age, and the oldest beyond a number of bytes. All
calls block, and one may run at a time: the caller runs them in a thread. Does not know how a response is made.

A database belongs to one server at a time: what was under way when it is opened has lost its server, and is marked as failed.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec

from tlserve.responses.documents import FAILED, RUNNING
from tlserve.responses.items import Item

_TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created_s REAL NOT NULL, previous TEXT NOT NULL, running INTEGER NOT NULL,
    document BLOB NOT NULL, items BLOB NOT NULL, events BLOB, bytes INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_by_age ON responses (created_s, bytes);
"""
_COLUMNS = "id, owner, created_s, previous, document, items, events"
LOST = "the server that made this response has ended before it was complete"
BUSY_S = 5.0
"""How long a call waits for another process that writes to the same file, in seconds."""


@attrs.frozen(kw_only=True)
class KeptResponse:
    """A response that is kept: its document, its own input items, and the events of its stream if it had one.

    `owner` is the name of the API key that may see it, "" without keys; `created_s` in seconds since 1970.
    """

    id: str
    owner: str
    created_s: float
    document: dict[str, Any]
    items: tuple[Item, ...]
    previous: str = ""
    events: tuple[bytes, ...] | None = None

    @property
    def is_running(self) -> bool:
        """Say whether the response is not complete."""
        return self.document["status"] in RUNNING

    @property
    def whole_items(self) -> tuple[Item, ...]:
        """Return the items of the input, and those of the answer."""
        return (*self.items, *self.document["output"])


class ResponseStore:
    """The database at `path`, "" for one in memory, with at most `max_bytes` of responses, none older than `max_age_s`."""

    def __init__(self, path: str, *, max_bytes: int, max_age_s: float) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._database: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the database; raises `sqlite3.Error` if it cannot be read and written."""
        self._database = sqlite3.connect(
            self._path or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        if self._path:
            self._database.execute("PRAGMA journal_mode = WAL")
        self._database.executescript(_TABLE)
        for (name,) in self._rows("SELECT id FROM responses WHERE running"):
            self._fail(name)

    def close(self) -> None:
        """Close the database, if it is open."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def put(self, kept: KeptResponse, now_s: float) -> None:
        """Keep a response, in place of the one with its id; then delete what is beyond the limits."""
        document, items = msgspec.json.encode(kept.document), msgspec.json.encode(kept.items)
        events = None if kept.events is None else zlib.compress(b"".join(kept.events), 1)
        size_bytes = len(document) + len(items) + len(events or b"")
        row = (kept.id, kept.owner, kept.created_s, kept.previous, kept.is_running, document, items, events, size_bytes)
        self._rows("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", *row)
        self._delete_old(now_s)
        while self._total_bytes() > self._max_bytes:
            self._rows("DELETE FROM responses WHERE id IN (SELECT id FROM responses ORDER BY created_s LIMIT 1)")

    def get(self, name: str, owner: str, now_s: float) -> KeptResponse | None:
        """Return a response, or None if there is none of this owner."""
        self._delete_old(now_s)
        rows = self._rows(f"SELECT {_COLUMNS} FROM responses WHERE id = ? AND owner = ?", name, owner)
        return _kept(rows[0]) if rows else None

    def delete(self, name: str, owner: str) -> bool:
        """Delete a response; say whether there was one of this owner."""
        return bool(self._rows("DELETE FROM responses WHERE id = ? AND owner = ? RETURNING id", name, owner))

    def _total_bytes(self) -> int:
        return int(self._rows("SELECT COALESCE(SUM(bytes), 0) FROM responses")[0][0])

    def _delete_old(self, now_s: float) -> None:
        self._rows("DELETE FROM responses WHERE created_s < ?", now_s - self._max_age_s)

    def _fail(self, name: str) -> None:
        (encoded,) = self._rows("SELECT document FROM responses WHERE id = ?", name)[0]
        error = {"code": "server_error", "message": LOST}
        failed = {**msgspec.json.decode(encoded), "status": FAILED, "error": error}
        self._rows("UPDATE responses SET running = 0, document = ? WHERE id = ?", msgspec.json.encode(failed), name)

    def _rows(self, words: str, *values: Any) -> Sequence[tuple[Any, ...]]:
        if self._database is None:
            raise sqlite3.ProgrammingError("the database is closed")
        return self._database.execute(words, values).fetchall()


def _kept(row: tuple[Any, ...]) -> KeptResponse:
    name, owner, created_s, previous, document, items, events = row
    pieces = None if events is None else zlib.decompress(events).split(b"\n\n")[:-1]
    return KeptResponse(
        id=name,
        owner=owner,
        created_s=created_s,
        previous=previous,
        document=msgspec.json.decode(document),
        items=tuple(msgspec.json.decode(items)),
        events=None if pieces is None else tuple(piece + b"\n\n" for piece in pieces),
    )
