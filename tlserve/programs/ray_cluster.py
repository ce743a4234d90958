"""The programs of a cluster that are no server: the control process, and a node that is an actor.

Owns their order of start and end. Refuses to know how any of it works; the head, and the node behind HTTP,
are in `tlserve.programs.server`.

A node's life: what Ray needs on this machine (not on 127.0.0.1, where the control process brings it) -> the cluster -> the actor,
in which the model is loaded -> a stop signal, or the loss of the control process -> the drain -> the end of all that was started.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import attrs
import trio

from tlserve.config.model_id import served_model_id
from tlserve.config.settings import EngineSettings, Settings
from tlserve.errors import OperatorError, SettingsError
from tlserve.fleet.node.service import NodeLimits
from tlserve.fleet.ray.cluster import Cluster, ControlLost, join_cluster, wait_unreachable
from tlserve.fleet.ray.processes import ClusterProcesses, start_control, start_member
from tlserve.fleet.ray.settings import RaySettings
from tlserve.lifecycle.drain import EXIT_CUT, EXIT_DRAINED
from tlserve.lifecycle.signals import watch_stop_signals
from tlserve.programs.local_models import find_model_path
from tlserve.programs.node_in_thread import start_node

log = logging.getLogger("tlserve")

LOOK_EVERY_S = 0.5
"""How often the control program looks whether nodes are left, once it has lost its process."""


class Stopping:
    """What ends a program: `stop` once, and once more to cut."""

    def __init__(self) -> None:
        self._asked = trio.Event()
        self.patience = trio.CancelScope()

    def stop(self) -> None:
        """Ask for the end; asked again, cut it short."""
        if self._asked.is_set():
            self.patience.cancel()
        self._asked.set()

    async def wait_asked(self) -> None:
        """Return when the end is asked for."""
        await self._asked.wait()


# --- the control process


async def serve_control(
    settings: RaySettings,
    *,
    port: int = 0,
    handle_signals: bool = True,
    task_status: trio.TaskStatus[tuple[str, Callable[[], None]]] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Hold a cluster's control process until a stop signal; started with its address and what stops it.

    Raises `OperatorError` when it does not start, and `ControlLost` when it ends by itself: then nodes on this machine first get
    the time that the longest answer may take.
    """
    stopping = Stopping()
    async with _holding(partial(start_control, settings, port=port)) as processes, trio.open_nursery() as nursery:
        if handle_signals:
            await nursery.start(watch_stop_signals, stopping.stop, stopping.stop)
        log.info("the control process answers at %s; its logs are in %s", processes.address, processes.directory)
        task_status.started((processes.address, stopping.stop))
        lost = await _first_of(stopping.wait_asked, partial(wait_unreachable, processes.address)) == 1
        if lost:
            log.error("the control process has ended; the nodes of this machine may finish what they have")
            await _first_of(stopping.wait_asked, partial(_wait_actors_ended, processes))
        nursery.cancel_scope.cancel()
    if lost:
        raise ControlLost(f"the control process of the cluster at {processes.address} has ended by itself")
    return EXIT_DRAINED


async def _wait_actors_ended(processes: ClusterProcesses) -> None:
    with trio.move_on_after(processes.settings.wall_s):
        left = await trio.to_thread.run_sync(processes.actor_pids)
        while left:
            await trio.sleep(LOOK_EVERY_S)
            left = await trio.to_thread.run_sync(processes.actor_pids)


@asynccontextmanager
async def _holding(start: Callable[[], ClusterProcesses]) -> AsyncIterator[ClusterProcesses]:
    processes = await trio.to_thread.run_sync(start)
    try:
        yield processes
    finally:
        with trio.CancelScope(shield=True):  # it has a limit of its own
            await trio.to_thread.run_sync(processes.stop)


async def _first_of(*waits: Callable[[], Any]) -> int:
    """Return the number of the wait that returns first; the others are cancelled."""
    first = -1

    async def note(number: int, wait: Callable[[], Any]) -> None:
        nonlocal first
        await wait()
        first = number
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for number, wait in enumerate(waits):
            nursery.start_soon(note, number, wait)
    return first


# --- a node


@attrs.frozen(kw_only=True)
class RunningNode:
    """A node that heads can find: its name, its process, and what ends it (call `stop` twice to cut)."""

    node: str
    pid: int
    stop: Callable[[], None]


async def serve_node(
    settings: Settings,
    cluster: RaySettings,
    address: str,
    node: str,
    *,
    handle_signals: bool = True,
    task_status: trio.TaskStatus[RunningNode] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Be the node `node` of the cluster whose control process is at `address`, until stopped; return the exit code.

    Raises `OperatorError` for what keeps it from starting, and `ActorFailed` when it ends by itself.
    """
    engine = placed_engine(settings)
    stopping = Stopping()
    async with trio.open_nursery() as nursery:
        if handle_signals:
            await nursery.start(watch_stop_signals, stopping.stop, stopping.stop)
        async with _taking_part(cluster, address, node), join_cluster(cluster, address) as joined:
            life = _NodeLife(settings, engine, node, joined, stopping)
            code = await life.run(not cluster.is_loopback, task_status)
        nursery.cancel_scope.cancel()
    return code


def placed_engine(settings: Settings) -> EngineSettings:
    """Return the engine's settings with the model's files by their whole path: the actor has another working directory.

    Raises `SettingsError` for several models, `ModelMissing` for none.
    """
    if settings.models:
        raise SettingsError(("a node serves one model, that of [engine]: leave the [[models]] out",))
    engine = settings.engine
    path = find_model_path(engine.model_dir).absolute()
    return attrs.evolve(engine, model_dir=str(path), model_id=served_model_id(engine.model_dir, engine.model_id))


def _taking_part(cluster: RaySettings, address: str, node: str) -> AbstractAsyncContextManager[object]:
    if cluster.is_loopback:
        return nullcontext()
    return _holding(partial(start_member, cluster, address, node))


class _NodeLife:
    """One node from the start of its actor to its end."""

    def __init__(
        self, settings: Settings, engine: EngineSettings, node: str, cluster: Cluster, stopping: Stopping
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._node = node
        self._cluster = cluster
        self._stopping = stopping

    async def run(self, on_member: bool, task_status: trio.TaskStatus[RunningNode]) -> int:
        from tlserve.fleet.ray.actor import start_actor
        from tlserve.fleet.ray.link import ActorFailed, ask_actor

        limits = NodeLimits(lease_s=self._settings.fleet.lease_ms / 1000)
        handle = start_actor(partial(start_node, self._engine, limits), self._node, on_member=on_member)
        try:
            pid = await ask_actor(handle, "process_id")
        except ActorFailed as failure:
            raise OperatorError(f"the node {self._node} did not start: {failure.message}") from None
        try:
            task_status.started(RunningNode(node=self._node, pid=pid, stop=self._stopping.stop))
            log.info("the node %s is in the cluster at %s, as process %d", self._node, self._cluster.address, pid)
            return await self._serve(handle)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it is on this machine; without the control process Ray could not end it

    async def _serve(self, handle: Any) -> int:
        from tlserve.fleet.ray.link import ask_actor

        ended = partial(ask_actor, handle, "wait_ended")
        if await _first_of(self._stopping.wait_asked, self._cluster.wait_lost, ended) == 1:
            log.error("the control process of the cluster at %s is gone: draining", self._cluster.address)
        return await self._drain(handle)

    async def _drain(self, handle: Any) -> int:
        from tlserve.fleet.ray.link import ask_actor, ray_link

        limit_s = self._settings.http.drain_timeout_ms / 1000
        empty = False
        with self._stopping.patience:
            await ray_link(self._node, handle).drain()
            empty = await ask_actor(handle, "wait_empty", limit_s)
        return EXIT_DRAINED if empty else EXIT_CUT
