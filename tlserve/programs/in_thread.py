"""The embedded server for synchronous code: a trio run of its own in one thread.

Owns the thread, and the calls from other threads into it. `tlserve.programs.embedded` runs the server.
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
        """Return the `base_url` for the official client."""
        return self.server.base_url

    def drain(self) -> None:
        """Do what SIGTERM does: refuse new requests and finish the open ones. A second call cuts those."""
        self._token.run_sync_soon(self.server.drain)

    def ended_within(self, timeout_s: float) -> bool:
        """Wait for the end; return whether the server ended in time."""
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

    Raises `EngineFailed` at the end of the block if the engine failed in it and `join` has not reported that.
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
        except BaseException:  # it failed, took too long, or Ctrl-C came: the start must not be waited for
            _cancel(token, scope)
            raise
        threaded = ThreadedServer(server, token, run)
        try:
            yield threaded
        finally:
            _end(threaded)
    if not threaded.joined:
        run.result()  # a failure of the engine is never hidden


def _cancel(token: trio.lowlevel.TrioToken, scope: trio.CancelScope) -> None:
    with suppress(trio.RunFinishedError):
        token.run_sync_soon(scope.cancel)


def _pass_on(run: Future[None], started: Future[EmbeddedServer]) -> None:
    """Give the waiting thread the error that kept the server from starting."""
    error = run.exception()
    if error is not None and not started.done():
        started.set_exception(error)


def _end(threaded: ThreadedServer) -> None:
    """Drain; cut the requests that the block left open, because nobody reads them."""
    try:
        threaded.drain()
        if not threaded.ended_within(GRACE_S):
            threaded.drain()
    except trio.RunFinishedError:  # the caller has drained it
        return
