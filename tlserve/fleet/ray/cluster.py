"""The membership of this process in a cluster: joining, leaving, and noticing that the control process is gone.

Owns the one connection that a process can have to Ray, and the changes to Ray's defaults in this process. Knows nothing of nodes
and sessions.

Without its control process a cluster admits no process and loses its names; actors continue to answer, until Ray ends every
process that has waited too long for it, without warning, including this one. So a head that notices the loss stops admitting,
finishes its streams and ends. Source: ray-project/ray#45570.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import trio

from tlserve.config.addresses import parse_address
from tlserve.config.cluster_environment import set_cluster_variables
from tlserve.config.environment import process_environ
from tlserve.errors import ServerFault
from tlserve.fleet.ray.processes import REMEDY, ClusterRefused
from tlserve.fleet.ray.settings import NAMESPACE, RaySettings

if TYPE_CHECKING:
    from tlserve.fleet.ray.directory import RayDirectory

log = logging.getLogger("tlserve.fleet")

JOIN_LIMIT_S = 30.0
LEAVE_LIMIT_S = 10.0

PROBE_EVERY_S = 2.0
PROBE_LIMIT_S = 1.0
PROBES_FAILED = 2
PROBE_AGAIN_S = 0.5


class ControlLost(ServerFault):
    """The cluster's control process is gone: what runs continues for a while, and nothing can join."""


@attrs.frozen
class Cluster:
    """The cluster that this process is in; `address` is that of its control process."""

    address: str

    def directory(self) -> RayDirectory:
        """Return the directory of the nodes."""
        from tlserve.fleet.ray.actor import list_nodes
        from tlserve.fleet.ray.directory import RayDirectory

        return RayDirectory(list_nodes)

    async def wait_lost(self) -> ControlLost:
        """Return when the control process is gone, with the error for it."""
        await wait_unreachable(self.address)
        return ControlLost(f"the control process of the cluster at {self.address} is gone")


async def wait_unreachable(address: str) -> None:
    """Return when nothing has answered at `address` twice in a row."""
    failed = 0
    while failed < PROBES_FAILED:
        await trio.sleep(PROBE_AGAIN_S if failed else PROBE_EVERY_S)
        failed = 0 if await answers(address) else failed + 1


async def answers(address: str) -> bool:
    """Return whether the process at `address` accepts a connection and sends first, as an HTTP/2 server does."""
    where = parse_address(address)
    with trio.move_on_after(PROBE_LIMIT_S):
        try:
            async with await trio.open_tcp_stream(where.host, where.port) as stream:
                return bool(await stream.receive_some(1))
        except OSError:
            return False
    return False


@asynccontextmanager
async def join_cluster(settings: RaySettings, address: str) -> AsyncIterator[Cluster]:
    """Join the cluster at `address` for the block; a process can do that once.

    Raises `SettingsError` for wrong settings, and `ClusterRefused` if there is no cluster at `address`, or it refuses this
    process.
    """
    settings.check()
    _set_variables(settings.variables())
    await _join(settings, address)
    try:
        yield Cluster(address)
    finally:
        with trio.move_on_after(LEAVE_LIMIT_S, shield=True):
            await trio.to_thread.run_sync(_disconnect, abandon_on_cancel=True)


def _set_variables(variables: Mapping[str, str]) -> None:
    """Set the variables that Ray reads when it is loaded; without them it would look for the cluster at another address."""
    if "ray" in sys.modules and not variables.items() <= process_environ().items():
        raise ClusterRefused(
            "Ray was imported before its variables were set: join the cluster before anything else imports it"
        )
    set_cluster_variables(variables)


async def _join(settings: RaySettings, address: str) -> None:
    if not await answers(address):
        raise ClusterRefused(f"no cluster answers at {address}: start one there, or give another address")
    # in a thread, because in the main one Ray installs its own handler for SIGTERM
    connect = partial(_connect, settings, address)
    with trio.move_on_after(JOIN_LIMIT_S) as limit:
        await trio.to_thread.run_sync(connect, abandon_on_cancel=True)
    if limit.cancelled_caught:
        raise ClusterRefused(f"the cluster at {address} did not accept this process within {JOIN_LIMIT_S:.0f} s")


def _connect(settings: RaySettings, address: str) -> None:
    try:
        import ray
    except ImportError as error:
        raise ClusterRefused(f"the Ray link needs a package that is not installed ({error.name}): {REMEDY}") from error
    _limit_ray()
    if ray.is_initialized():
        raise ClusterRefused("this process is already in a cluster, and Ray allows one only")
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address=settings.node_ip,
        )
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
        reason = f"{_first_line(error)}; does it use the token of {settings.token_file}?"
        raise ClusterRefused(f"cannot join the cluster at {address}: {reason}") from error
    _end_error_listener()


def _limit_ray() -> None:
    """Change what Ray does to this process by default.

    At the end of the interpreter Ray would wait for a control process that is gone: `join_cluster` leaves it instead, within a
    time limit.
    """
    import ray._private.worker

    atexit.unregister(ray._private.worker.shutdown)
    logging.getLogger("ray").setLevel(logging.ERROR)


def _end_error_listener() -> None:
    """End Ray's thread that prints errors of the cluster.

    Calls raise those errors. When the control process is gone, that thread retries without a pause, and takes a whole core.
    """
    import ray._private.worker

    worker: Any = ray._private.worker.global_worker
    try:
        worker.threads_stopped.set()
        worker.gcs_error_subscriber.close()
    except AttributeError:
        log.warning(
            "the error listener of this version of Ray cannot be ended; it may take a whole core when the control process is gone"
        )


def _disconnect() -> None:
    import ray

    ray.shutdown()


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
