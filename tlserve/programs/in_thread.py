"""The same server for synchronous tests: a trio run of its own in one thread.

Owns the thread, through `concurrent.futures`, and the crossing back. Refuses to know how a server is put together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

import attrs
import trio
import trio.lowlevel

from tlserve.model.load import LoadedModel
from tlserve.programs.embedded import GRACE_S, EmbeddedServer, SettingValue, serve

START_TIMEOUT_S = 60.0


@attrs.define(eq=False)
class ThreadedServer:
    """A server that answers from another thread."""

    server: EmbeddedServer
    _token: trio.lowlevel.TrioToken
    _run: Future[None]
    joined: bool = False

    @property
    def address(self) -> str:
        """Return "host:port" of the API."""
        return self.server.address

    @property
    def health_address(self) -> str:
        """Return "host:port" of /healthz, /readyz and /metrics."""
        return self.server.health_address

    @property
    def base_url(self) -> str:
        """Return what the official client takes as `base_url`."""
        return self.server.base_url

    def drain(self) -> None:
        """Do what SIGTERM does; a second call cuts."""
        self._token.run_sync_soon(self.server.drain)

    def ended_within(self, timeout_s: float) -> bool:
        """Wait for the end; return whether it came in time."""
        return bool(wait([self._run], timeout_s).done)

    def join(self, timeout_s: float = 30.0) -> int:
        """Wait for the end and return the exit code; raises TimeoutError after `timeout_s`."""
        if self.ended_within(timeout_s):
            self.joined = True
        self._run.result(0)
        assert self.server.exit_code is not None
        return self.server.exit_code


@contextmanager
def serve_in_thread(
    model: str | os.PathLike[str] = "succ",
    *,
    settings: Mapping[str, SettingValue] | None = None,
    loaded: LoadedModel | None = None,
    models: Iterable[Mapping[str, SettingValue]] = (),
) -> Iterator[ThreadedServer]:
    """Serve `model` for the block, as `serve` does, for code without trio.

    Raises `EngineFailed` at the end of the block if the engine died in it and nobody was told by `join`.
    """
    begun: Future[tuple[trio.lowlevel.TrioToken, trio.CancelScope]] = Future()
    started: Future[EmbeddedServer] = Future()

    async def main() -> None:
        with trio.CancelScope() as scope:
            begun.set_result((trio.lowlevel.current_trio_token(), scope))
            await host()

    async def host() -> None:
        async with serve(model, settings=settings, loaded=loaded, models=models) as server:
            started.set_result(server)
            await server.ended.wait()

    with ThreadPoolExecutor(1, "tlserve-server") as threads:
        run = threads.submit(trio.run, main)
        run.add_done_callback(lambda run: _pass_on(run, started))
        token, scope = begun.result(START_TIMEOUT_S)
        try:
            server = started.result(START_TIMEOUT_S)
        except BaseException:  # it failed, took too long, or Ctrl-C came: what is being started must not be waited for
            _cancel(token, scope)
            raise
        threaded = ThreadedServer(server, token, run)
        try:
            yield threaded
        finally:
            _end(threaded)
    if not threaded.joined:
        run.result()  # an engine that died is not hidden from a test that did not ask


def _cancel(token: trio.lowlevel.TrioToken, scope: trio.CancelScope) -> None:
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(scope.cancel)


def _pass_on(run: Future[None], started: Future[EmbeddedServer]) -> None:
    """Tell the waiting test what kept the server from starting."""
    error = run.exception()
    if error is not None and not started.done():
        started.set_exception(error)


def _end(threaded: ThreadedServer) -> None:
    """Drain; cut what the test left open, for nobody reads it any more."""
    try:
        threaded.drain()
        if not threaded.ended_within(GRACE_S):
            threaded.drain()
    except trio.RunFinishedError:  # the test has drained it
        return
