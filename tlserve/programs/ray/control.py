"""The control process of a Ray cluster, as a program.

Owns the order of its start and end. Knows nothing of the nodes that join the cluster: those are `tlserve.programs.ray.node`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import trio

from tlserve.fleet.ray.cluster import ControlLost, wait_unreachable
from tlserve.fleet.ray.processes import ClusterProcesses, start_control
from tlserve.fleet.ray.settings import RaySettings
from tlserve.lifecycle.drain import EXIT_DRAINED
from tlserve.lifecycle.signals import watch_stop_signals
from tlserve.programs.ray.program import StopCause, StopRequest, running_processes, wait_first

log = logging.getLogger("tlserve")

LOOK_EVERY_S = 0.5
"""How often the program checks for remaining nodes, once its control process has ended."""


async def serve_control(
    settings: RaySettings,
    *,
    port: int = 0,
    handle_signals: bool = True,
    task_status: trio.TaskStatus[tuple[str, Callable[[], None]]] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Run a cluster's control process until a stop signal; started with its address and the function that stops it.

    Raises `OperatorError` if it does not start, and `ControlLost` if it ends by itself. In that case the nodes on this machine
    first get as much time as the longest answer may take.
    """
    request = StopRequest()
    async with (
        running_processes(partial(start_control, settings, port=port)) as processes,
        trio.open_nursery() as nursery,
    ):
        if handle_signals:
            await nursery.start(watch_stop_signals, request.stop, request.stop)
        log.info("the control process answers at %s; its logs are in %s", processes.address, processes.directory)
        task_status.started((processes.address, request.stop))
        lost = partial(wait_unreachable, processes.address)
        ending = await wait_first({StopCause.STOP: request.wait, StopCause.CONTROL_LOST: lost})
        if ending is StopCause.CONTROL_LOST:
            log.error("the control process has ended; the nodes on this machine may finish their open requests")
            nodes_ended = partial(_wait_actors_ended, processes)
            await wait_first({StopCause.STOP: request.wait, StopCause.NODES_ENDED: nodes_ended})
        nursery.cancel_scope.cancel()
    if ending is StopCause.CONTROL_LOST:
        raise ControlLost(f"the control process of the cluster at {processes.address} has ended by itself")
    return EXIT_DRAINED


async def _wait_actors_ended(processes: ClusterProcesses) -> None:
    with trio.move_on_after(processes.settings.wall_s):
        left = await trio.to_thread.run_sync(processes.actor_pids)
        while left:
            await trio.sleep(LOOK_EVERY_S)
            left = await trio.to_thread.run_sync(processes.actor_pids)
