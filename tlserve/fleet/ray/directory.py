"""The directory of a Ray cluster: its named actors, listed every second.

Owns the comparison with the previous list. A node is up when its actor has answered for the first time, because an actor is
listed before its model is loaded. Does not know how actors are listed: it gets a function that blocks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import attrs
import trio

from tlserve.fleet.link import NodeChange, NodeGone, NodeUp
from tlserve.fleet.ray.actor import Handle
from tlserve.fleet.ray.calls import Answer
from tlserve.fleet.ray.link import ray_link

log = logging.getLogger("tlserve.fleet")

ListNodes = Callable[[], Mapping[str, Handle]]

LOOK_EVERY_S = 1.0


@attrs.define(eq=False)
class _Sighting:
    """An actor and its first answer; `is_up` is None until that has arrived, False if it is an error."""

    handle: Handle
    first_answer: Answer[bytes]
    is_up: bool | None = None


class Sightings:
    """The actors seen so far."""

    def __init__(self) -> None:
        self._seen: dict[str, _Sighting] = {}

    def look(self, listed: Mapping[str, Handle]) -> list[NodeChange]:
        """Note the actors that exist now, and return the changes."""
        gone = list(self._note_gone(listed))
        for node, handle in listed.items():
            if node not in self._seen:
                self._seen[node] = _Sighting(handle, handle.ask("process_id").future())
        return [*gone, *self._note_up()]

    def _note_gone(self, listed: Mapping[str, Handle]) -> Iterator[NodeChange]:
        for node, sighting in tuple(self._seen.items()):
            if listed.get(node) == sighting.handle:
                continue
            del self._seen[node]
            if sighting.is_up:
                yield NodeGone(node, "another actor has its name" if node in listed else "its actor has ended")

    def _note_up(self) -> Iterator[NodeChange]:
        for node, sighting in self._seen.items():
            if sighting.is_up is not None or not sighting.first_answer.done():
                continue
            error = sighting.first_answer.exception(0)
            sighting.is_up = error is None
            if error is None:
                yield NodeUp(node, ray_link(node, sighting.handle))
            else:
                log.warning("the node %s did not start: %s", node, type(error).__name__)


class RayDirectory:
    """The `NodeDirectory` of the cluster that this process has joined."""

    def __init__(self, list_nodes: ListNodes, every_s: float = LOOK_EVERY_S) -> None:
        self._list_nodes = list_nodes
        self._every_s = every_s

    def changes(self) -> AsyncIterator[NodeChange]:
        """Return the changes as they happen; while the control process is gone there are none."""
        return _Changes(self._list_nodes, Sightings(), self._every_s)


class _Changes:
    def __init__(self, list_nodes: ListNodes, sightings: Sightings, every_s: float) -> None:
        self._list_nodes = list_nodes
        self._sightings = sightings
        self._every_s = every_s
        self._due = -float("inf")
        self._found: deque[NodeChange] = deque()
        self._thread = trio.CapacityLimiter(1)

    def __aiter__(self) -> _Changes:
        return self

    async def __anext__(self) -> NodeChange:
        while not self._found:
            await trio.sleep_until(self._due)
            listed = await trio.to_thread.run_sync(self._list_nodes, abandon_on_cancel=True, limiter=self._thread)
            self._due = trio.current_time() + self._every_s
            self._found.extend(self._sightings.look(listed))
        return self._found.popleft()
