"""What the two programs of a Ray cluster share: their settings, how they are stopped, and Ray's processes while they run.

The programs are `tlserve.programs.ray.control` and `tlserve.programs.ray.node`. Knows nothing of nodes and heads.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from tlserve.config.settings import FleetSettings
from tlserve.errors import SettingsError
from tlserve.fleet.ray.processes import ClusterProcesses
from tlserve.fleet.ray.settings import RaySettings


def ray_settings(fleet: FleetSettings) -> RaySettings:
    """Return how this machine joins the cluster of the settings; raises `SettingsError` without a token."""
    if not fleet.ray_token_file:
        raise SettingsError(
            ("fleet.ray_token_file is missing: a cluster runs any code that it is sent, so it requires a token",)
        )
    return RaySettings(
        token_file=Path(fleet.ray_token_file), node_ip=fleet.ray_node_ip, wall_s=fleet.wall_limit_ms / 1000
    )


class StopRequest:
    """A request to end the program: `stop` once to end it in order, once more to end it at once."""

    def __init__(self) -> None:
        self._made = trio.Event()
        self.patience = trio.CancelScope()

    def stop(self) -> None:
        """Ask for the end; the second call cancels `patience`."""
        if self._made.is_set():
            self.patience.cancel()
        self._made.set()

    async def wait(self) -> None:
        """Return when the end has been asked for."""
        await self._made.wait()


class StopCause(enum.Enum):
    """What ends the program."""

    STOP = enum.auto()
    CONTROL_LOST = enum.auto()
    NODES_ENDED = enum.auto()


async def wait_first(endings: Mapping[StopCause, Callable[[], Awaitable[Any]]]) -> StopCause:
    """Return the ending whose wait returns first; the other waits are cancelled."""
    first: list[StopCause] = []

    async def note(ending: StopCause, wait: Callable[[], Awaitable[Any]]) -> None:
        await wait()
        first.append(ending)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for ending, wait in endings.items():
            nursery.start_soon(note, ending, wait)
    return first[0]


@asynccontextmanager
async def running_processes(start: Callable[[], ClusterProcesses]) -> AsyncIterator[ClusterProcesses]:
    """Start Ray's processes by `start`, in a thread, and end them with the block."""
    processes = await trio.to_thread.run_sync(start)
    try:
        yield processes
    finally:
        with trio.CancelScope(shield=True):  # `stop` has a limit of its own
            await trio.to_thread.run_sync(processes.stop)
