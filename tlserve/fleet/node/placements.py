"""The placements on a node: which head has which session here, and the newest epoch of every session.

Owns the table and the two waits on it. Pure but for these. Knows nothing of polls, leases and backends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

import trio

from tlserve.fleet.link import SessionKey
from tlserve.fleet.node.placement_task import PlacementTask

REMEMBERED_SESSIONS = 65_536
"""Sessions whose newest epoch is remembered, so that a late message of an older placement starts nothing."""


class Placements:
    """One task at most for each session of each head; its length is the number of tasks."""

    def __init__(self) -> None:
        self._by_head: dict[str, dict[int, PlacementTask]] = {}
        self._newest: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._any = trio.Event()
        self._none = trio.Event()
        self._none.set()

    # --- tasks

    def __len__(self) -> int:
        return sum(map(len, self._by_head.values()))

    def __iter__(self) -> Iterator[PlacementTask]:
        return (task for tasks in self._by_head.values() for task in tasks.values())

    def of(self, head: str) -> Collection[PlacementTask]:
        """Return the tasks of one head."""
        return self._by_head.get(head, {}).values()

    def find(self, key: SessionKey) -> PlacementTask | None:
        """Return the task of the session of `key`, whatever its epoch."""
        return self._by_head.get(key.head, {}).get(key.session)

    def add(self, task: PlacementTask) -> None:
        """Enter the task of a session that has none."""
        self._by_head.setdefault(task.key.head, {})[task.key.session] = task
        self._any.set()
        if self._none.is_set():
            self._none = trio.Event()

    def remove(self, task: PlacementTask) -> bool:
        """Remove `task`; return False if it has been removed already."""
        if self.find(task.key) is not task:
            return False
        tasks = self._by_head[task.key.head]
        del tasks[task.key.session]
        if not tasks:
            del self._by_head[task.key.head]
        if not self._by_head:
            self._any = trio.Event()
            self._none.set()
        return True

    async def wait_any(self) -> None:
        """Return when there is a task."""
        await self._any.wait()

    async def wait_none(self) -> None:
        """Return when there is no task."""
        await self._none.wait()

    # --- epochs

    def note_epoch(self, key: SessionKey) -> None:
        """Remember the epoch of `key` as the newest of its session, unless a newer one is known."""
        session = (key.head, key.session)
        self._newest[session] = max(key.epoch, self._newest.pop(session, key.epoch))
        if len(self._newest) > REMEMBERED_SESSIONS:
            self._newest.popitem(last=False)

    def is_stale(self, key: SessionKey) -> bool:
        """Return whether the session has had the epoch of `key`, or a newer one."""
        return self._newest.get((key.head, key.session), -1) >= key.epoch

    def allow_again(self, key: SessionKey) -> None:
        """Let `key` be placed again: nothing was placed under it."""
        self._newest[key.head, key.session] = key.epoch - 1
