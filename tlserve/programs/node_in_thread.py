"""A node of a fleet without a server: one model, its engine and its node service, in a trio run on a thread of its own.

Owns the thread, what runs on it, and the calls into it from other threads. Knows nothing of HTTP and Ray: something else carries
the calls to this process.

The nursery tree:

    thread
    `- trio.run
       |- engine            LocalBackend.run; when it fails, everything here ends
       |- node service      NodeService.run
       `- system tasks      one a call
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import trio
import trio.from_thread
import trio.lowlevel

from tlserve.config.settings import EngineSettings, Settings
from tlserve.errors import ServerFault, single_cause
from tlserve.fleet.node.service import NodeLimits, NodeService
from tlserve.fleet.remote_node import answer_call
from tlserve.programs.hosted_model import HostedModel
from tlserve.programs.residency.models import load_models

log = logging.getLogger("tlserve")


class NodeEnded(ServerFault):
    """The node has ended."""


class ThreadedNode:
    """A node that runs in another thread of this process; call its methods from any thread but its own."""

    def __init__(self, service: NodeService, token: trio.lowlevel.TrioToken, ends: trio.Event) -> None:
        self._service = service
        self._token = token
        self._ends = ends

    def call(self, name: str, body: bytes) -> bytes:
        """Answer one call of a head; raises `NodeEnded`, and `WireRefused` for a body that cannot be read."""
        try:
            return trio.from_thread.run(answer_call, self._service, name, body, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise NodeEnded("the node has ended") from None

    def wait_empty(self, limit_s: float) -> bool:
        """Wait until the node has no session; return False if it still has one after `limit_s`."""
        try:
            return trio.from_thread.run(self._wait_empty, limit_s, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled):
            return True

    async def _wait_empty(self, limit_s: float) -> bool:
        with trio.move_on_after(limit_s):
            await self._service.wait_empty()
        return self._service.open_sessions == 0

    def wait_ended(self) -> None:
        """Return when the node has ended."""
        with suppress(trio.RunFinishedError, trio.Cancelled):
            trio.from_thread.run(trio.sleep_forever, trio_token=self._token)

    def end(self) -> None:
        """End the node; its sessions are lost."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._ends.set)


def start_node(
    settings: EngineSettings, limits: NodeLimits, node: str, on_end: Callable[[], None] = lambda: None
) -> ThreadedNode:
    """Load the model and return when the node answers; slow. Raises what loading raises.

    `on_end` is called in the node's thread when the node has ended, for any reason.
    """
    started: Future[ThreadedNode] = Future()

    async def main() -> None:
        (model,) = load_models(Settings(engine=settings))()
        async with trio.open_nursery() as nursery:
            await nursery.start(model.backend.run)
            await _serve(nursery, _service(model, settings, limits, node), started)
            nursery.cancel_scope.cancel()

    threads = ThreadPoolExecutor(1, "tlserve-node")
    run = threads.submit(trio.run, main)
    run.add_done_callback(lambda run: _pass_on(run, started, on_end))
    threads.shutdown(wait=False)
    return started.result()


async def _serve(nursery: trio.Nursery, service: NodeService, started: Future[ThreadedNode]) -> None:
    await nursery.start(service.run)
    ends = trio.Event()
    started.set_result(ThreadedNode(service, trio.lowlevel.current_trio_token(), ends))
    await ends.wait()


def _service(model: HostedModel, settings: EngineSettings, limits: NodeLimits, node: str) -> NodeService:
    return NodeService(model.backend, node=node, slots=settings.max_num_seqs, limits=limits)


def _pass_on(run: Future[None], started: Future[ThreadedNode], on_end: Callable[[], None]) -> None:
    error = run.exception()
    if error is not None and not started.done():
        started.set_exception(single_cause(error))
        return
    if error is not None:
        log.error("the node ended", exc_info=error)
    on_end()
