"""A node of a Ray cluster, as a program: it starts the node's actor and ends it.

Owns the order of start and end. The actor runs `tlserve.programs.node_in_thread` in a process of its own. A node that heads
reach over HTTP is a server instead: `tlserve.programs.http_node`.

The order: the Ray processes that this machine needs (none on 127.0.0.1, where the control process provides them); the
connection to the cluster; the actor, which loads the model; a stop signal, or the loss of the control process; the drain; the
end of everything that was started.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial

import attrs
import trio

from tlserve.config.model_id import served_model_id
from tlserve.config.settings import EngineSettings, Settings
from tlserve.errors import OperatorError, SettingsError
from tlserve.fleet.node.service import NodeLimits
from tlserve.fleet.ray.actor import Handle, start_actor
from tlserve.fleet.ray.cluster import Cluster, join_cluster
from tlserve.fleet.ray.link import ActorFailed, ask_actor, ray_link
from tlserve.fleet.ray.processes import start_member
from tlserve.fleet.ray.settings import RaySettings
from tlserve.lifecycle.drain import EXIT_CUT, EXIT_DRAINED
from tlserve.lifecycle.signals import watch_stop_signals
from tlserve.programs.hosted_model import find_model_path
from tlserve.programs.node_in_thread import start_node
from tlserve.programs.ray.program import StopCause, StopRequest, running_processes, wait_first

log = logging.getLogger("tlserve")


@attrs.frozen(kw_only=True)
class RunningNode:
    """A node that heads can find: its name, its process, and the function that ends it (call `stop` twice to cut)."""

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
    """Run the node `node` in the cluster whose control process is at `address`, until stopped; return the exit code.

    Raises `OperatorError` if it cannot start, and `ActorFailed` if it ends by itself.
    """
    engine = actor_settings(settings)
    request = StopRequest()
    async with trio.open_nursery() as nursery:
        if handle_signals:
            await nursery.start(watch_stop_signals, request.stop, request.stop)
        async with _member_processes(cluster, address, node), join_cluster(cluster, address) as joined:
            program = _NodeProgram(settings, node, joined, request)
            code = await program.run(engine, on_member=not cluster.is_loopback, task_status=task_status)
        nursery.cancel_scope.cancel()
    return code


def actor_settings(settings: Settings) -> EngineSettings:
    """Return the engine's settings with the full path of the model: the actor has another working directory.

    Raises `SettingsError` for several models, `ModelMissing` if there is none.
    """
    if settings.models:
        raise SettingsError(("a node serves one model, that of [engine]; remove the [[models]] tables",))
    engine = settings.engine
    path = find_model_path(engine.model_dir).absolute()
    return attrs.evolve(engine, model_dir=str(path), model_id=served_model_id(engine.model_dir, engine.model_id))


def _member_processes(cluster: RaySettings, address: str, node: str) -> AbstractAsyncContextManager[object]:
    if cluster.is_loopback:
        return nullcontext()
    return running_processes(partial(start_member, cluster, address, node))


class _NodeProgram:
    """One node from the start of its actor to its end."""

    def __init__(self, settings: Settings, node: str, cluster: Cluster, request: StopRequest) -> None:
        self._settings = settings
        self._node = node
        self._cluster = cluster
        self._request = request

    async def run(self, engine: EngineSettings, *, on_member: bool, task_status: trio.TaskStatus[RunningNode]) -> int:
        limits = NodeLimits(lease_s=self._settings.fleet.lease_ms / 1000)
        actor = start_actor(partial(start_node, engine, limits), self._node, on_member=on_member)
        pid = await self._wait_started(actor)
        try:
            task_status.started(RunningNode(node=self._node, pid=pid, stop=self._request.stop))
            log.info("the node %s is in the cluster at %s, as process %d", self._node, self._cluster.address, pid)
            await self._wait_ending(actor)
            return await self._drain(actor)
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # it is on this machine; without the control process Ray could not end it

    async def _wait_started(self, actor: Handle) -> int:
        """Return the id of the actor's process once the node can be reached."""
        try:
            pid: int = await ask_actor(actor, "process_id")
            return pid
        except ActorFailed as failure:
            raise OperatorError(f"the node {self._node} did not start: {failure.message}") from None

    async def _wait_ending(self, actor: Handle) -> None:
        node_ended = partial(ask_actor, actor, "wait_ended")
        ending = await wait_first(
            {
                StopCause.STOP: self._request.wait,
                StopCause.CONTROL_LOST: self._cluster.wait_lost,
                StopCause.NODES_ENDED: node_ended,
            }
        )
        if ending is StopCause.CONTROL_LOST:
            log.error("the control process of the cluster at %s is gone: draining", self._cluster.address)

    async def _drain(self, actor: Handle) -> int:
        limit_s = self._settings.http.drain_timeout_ms / 1000
        empty = False
        with self._request.patience:
            await ray_link(self._node, actor).drain()
            empty = await ask_actor(actor, "wait_empty", limit_s)
        return EXIT_DRAINED if empty else EXIT_CUT
