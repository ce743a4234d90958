"""A server in the caller's own trio run, for the length of a block.

Owns the settings that suit it (loopback, free ports, a short drain) and its end: however the block ends, the server is
drained, then cut. Knows nothing of threads.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import attrs
import trio

from tlserve.config.load import load_settings
from tlserve.config.models import additional_model, model_refusals
from tlserve.config.settings import Settings
from tlserve.errors import SettingsError, TlserveError, single_cause
from tlserve.model.load import LoadedModel
from tlserve.programs.fleet_head import load_head
from tlserve.programs.server import Running
from tlserve.programs.server import serve as serve_settings

DRAIN_TIMEOUT_MS = 5000
GRACE_S = 1.0

SettingValue = str | int | bool


@attrs.define(eq=False)
class EmbeddedServer:
    """A server that answers. `exit_code` is set when it has ended."""

    __test__ = False  # users know it as `tlserve.testing.TestServer`; pytest must not collect it

    running: Running
    ended: trio.Event
    exit_code: int | None = None

    @property
    def address(self) -> str:
        """Return "host:port" of the API."""
        return self.running.api_addresses[0]

    @property
    def health_address(self) -> str:
        """Return "host:port" of /healthz, /readyz and /metrics."""
        return self.running.health_addresses[0]

    @property
    def base_url(self) -> str:
        """Return the `base_url` for the official client."""
        scheme = "https" if self.running.assembled.settings.tls.certificate else "http"
        return f"{scheme}://{self.address}/v1"

    def drain(self) -> None:
        """Do what SIGTERM does: refuse new requests and finish the open ones. A second call cuts those."""
        self.running.stop()

    async def join(self) -> int:
        """Wait for the end and return the exit code."""
        await self.ended.wait()
        assert self.exit_code is not None
        return self.exit_code


def embedded_settings(
    model: str, settings: Mapping[str, SettingValue], models: Iterable[Mapping[str, SettingValue]] = ()
) -> Settings:
    """Return the settings of an embedded server; `settings` overrides them, by names like "engine.queue_capacity".

    `models` are the [[models]] tables. Raises `SettingsError`.
    """
    own: dict[str, SettingValue] = {
        "engine.model_dir": model,
        "engine.http_listen": "127.0.0.1:0",
        "engine.health_listen": "127.0.0.1:0",
        "http.drain_timeout_ms": DRAIN_TIMEOUT_MS,
        **settings,
    }
    loaded = load_settings(None, {}, [(name, _spelled(value)) for name, value in own.items()])
    several = attrs.evolve(loaded, models=tuple(additional_model(loaded.engine, table) for table in models))
    if refusals := model_refusals(several):
        raise SettingsError(tuple(refusals))
    return several


def _spelled(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@asynccontextmanager
async def serve(
    model: str | os.PathLike[str] = "succ",
    *,
    settings: Mapping[str, SettingValue] | None = None,
    loaded: LoadedModel | None = None,
    models: Iterable[Mapping[str, SettingValue]] = (),
) -> AsyncIterator[EmbeddedServer]:
    """Serve `model` for the block: a path, a pulled model or a built-in one; or `loaded`, under the name `model`.

    `models` adds more models, as the [[models]] tables of a runtime.toml: `[{"model_dir": "succ", "model_id": "other"}]`. With
    the setting "fleet.nodes" the server is the head of a fleet; a server with "fleet.internal" can be a node of it.

    An error that keeps the server from starting, and an error of the block, is raised as it is, not in an exception group.
    """
    chosen = embedded_settings(os.fspath(model), settings or {}, models)
    try:
        async with trio.open_nursery() as nursery:
            server: EmbeddedServer = await nursery.start(_run, chosen, loaded)
            try:
                yield server
            finally:
                await _end(server)
    except BaseExceptionGroup as group:
        cause = _own_error(group)
        raise cause from cause.__cause__


def _own_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Remove the groups that our nurseries put around an error, but none that the block raised itself."""
    cause = single_cause(group)
    if isinstance(cause, TlserveError):
        return cause
    return group.exceptions[0] if len(group.exceptions) == 1 else group


async def _run(settings: Settings, loaded: LoadedModel | None, *, task_status: trio.TaskStatus[EmbeddedServer]) -> None:
    async with trio.open_nursery() as nursery:
        ended = trio.Event()
        codes: list[int] = []

        async def host(*, task_status: trio.TaskStatus[Running]) -> None:
            load = partial(load_head, settings) if settings.fleet.nodes else None
            serve = partial(serve_settings, settings, loaded=loaded, load=load, handle_signals=False)
            codes.append(await serve(task_status=task_status))

        server = EmbeddedServer(await nursery.start(host), ended)
        task_status.started(server)
    server.exit_code = codes[0]
    ended.set()


async def _end(server: EmbeddedServer) -> None:
    """Drain; cut the requests that the block left open, because nobody reads them."""
    server.drain()
    with trio.move_on_after(GRACE_S):
        await server.ended.wait()
        return
    server.drain()
