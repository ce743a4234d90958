"""A server: settings become objects, and objects become the nursery tree.

Owns which parts exist and the order of their start; the end is `tlserve.programs.server_end`. Knows nothing of how the parts
work.

The nursery tree of a server:

    serve
    |- watch_stop_signals        SIGTERM, SIGINT -> Drain.stop; a second one cuts
    |- _drain_when               of `until`: the process that started this server is gone
    `- _ServerLife.run
       |- health server          /healthz, /readyz, /metrics; the first to answer, the last to end
       |- watch_files            reads keys and certificates again when their files change
       |- node of a fleet        NodeService.run, if the settings ask for it: one task per session
       |- backend, one a model   its run, for an engine its thread; a failure ends the process after every stream got the error
       |- _drain_when            one a model: it can never take a new request again
       |- API server             http.Server.serve: acceptors, one task per connection
       `- ServerEnd.run          the body: waits for the stop, drains, cuts at the deadline, returns the exit code

Start: keys and certificates are read and addresses bound first (what is wrong with them is reported before a model is loaded),
the health port answers while the model loads, and the API port accepts once the model is ready.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import attrs
import trio

from tlserve.access.door import Door
from tlserve.access.exposure import check_exposure, is_local
from tlserve.access.pages import PageGuard, plan_page_guard
from tlserve.config.addresses import UNIX
from tlserve.config.settings import Settings
from tlserve.config.tables.network import TlsSettings
from tlserve.endpoints.api import make_api_handler, make_fault_renderer
from tlserve.endpoints.context import new_request_id
from tlserve.errors import AddressInUse, EngineFailed, SettingsError
from tlserve.fleet.node.service import NodeService
from tlserve.http.server import Listener, Server
from tlserve.http.sockets.listener import bound_addresses, open_listeners
from tlserve.http.sockets.stream_listener import StreamListener
from tlserve.http.sockets.tls import Certificate, TlsListener
from tlserve.lifecycle.drain import Drain, Phase
from tlserve.lifecycle.reload import watch_files
from tlserve.lifecycle.signals import watch_stop_signals
from tlserve.model.load import LoadedModel
from tlserve.programs.banner import start_event
from tlserve.programs.descriptors import HEALTH_CONNECTIONS, possible_connections, raise_descriptor_limit
from tlserve.programs.hosted_model import HostedBackend, MakeModels, wait_forever
from tlserve.programs.http_node import check_node, make_node, with_node_routes
from tlserve.programs.server_end import ServerEnd
from tlserve.programs.server_objects import (
    Assembled,
    assemble,
    health_handler,
    make_door,
    make_tracer,
    read_keys,
    reloadings,
)
from tlserve.telemetry.tracing import Tracer

log = logging.getLogger("tlserve")

FAILURE_GRACE_S = 5.0
"""How long open requests can still pass on that the engine failed, in seconds."""

TRACES_GRACE_S = 5.0
"""How long the last spans can still reach their collector, in seconds."""


@attrs.frozen(kw_only=True)
class Running:
    """A server that answers: its addresses, its objects, and the function that ends it (call `stop` twice to cut)."""

    api_addresses: tuple[str, ...]
    health_addresses: tuple[str, ...]
    assembled: Assembled
    stop: Callable[[], None]


def run(
    settings: Settings,
    load: Callable[[], MakeModels] | None = None,
    until: Callable[[], Awaitable[str]] = wait_forever,
) -> int:
    """Serve until a stop signal, as `serve` does; return the exit code. Raises `OperatorError` and `EngineFailed`."""
    raise_descriptor_limit()
    return trio.run(partial(serve, settings, load=load, until=until))


async def serve(
    settings: Settings,
    *,
    loaded: LoadedModel | None = None,
    load: Callable[[], MakeModels] | None = None,
    until: Callable[[], Awaitable[str]] = wait_forever,
    handle_signals: bool = True,
    task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Serve until stopped and return the exit code; started once requests are answered.

    `load` loads the models, in a thread; without it the settings name them, and `loaded` replaces the first. When `until`
    returns, with the reason, the server drains. Signals require the main thread.
    """
    async with AsyncExitStack() as stack:
        life = _ServerLife(settings, await _open_entrance(settings, stack))
        async with trio.open_nursery() as nursery:
            if handle_signals:
                await nursery.start(watch_stop_signals, life.drain.stop, life.drain.stop)
            nursery.start_soon(life.drain_when, until)
            code = await life.run(load or _loader(settings, loaded), task_status)
            nursery.cancel_scope.cancel()
        if life.failure is not None:
            raise life.failure
        return code


def _loader(settings: Settings, loaded: LoadedModel | None) -> Callable[[], MakeModels]:
    from tlserve.programs.local_models import load_models  # a head of a fleet loads no engine

    return partial(load_models, settings, loaded)


# --- what is ready before a model is loaded


@attrs.frozen
class _Entrance:
    """Bound addresses, and who may use them."""

    api: Sequence[StreamListener]
    health: Sequence[StreamListener]
    door: Door
    certificate: Certificate | None
    tracer: Tracer | None
    pages: PageGuard

    def api_listeners(self) -> list[Listener]:
        """Return the listeners of the API, with TLS if there is a certificate."""
        if self.certificate is None:
            return list(self.api)
        return [TlsListener(listener, self.certificate) for listener in self.api]


async def _open_entrance(settings: Settings, stack: AsyncExitStack) -> _Entrance:
    """Read the keys and the certificate, bind every address, and refuse an exposed one; `stack` closes the listeners."""
    door, certificate = make_door(settings.access), _certificate(settings.tls)
    tracer = make_tracer(settings.telemetry)
    if tracer is not None:
        stack.push_async_callback(_close_tracer, tracer)
    api = await _bind(settings.engine.http_listen, settings, stack)
    check_exposure(bound_addresses(api), has_keys=door.wants_keys, allow_public=settings.access.allow_public)
    check_node(settings, bound_addresses(api), read_keys(settings.access))
    return _Entrance(
        api, await _bind_health(settings, stack), door, certificate, tracer, _page_guard(settings, api, door)
    )


def _page_guard(settings: Settings, api: Sequence[StreamListener], door: Door) -> PageGuard:
    addresses = [address for address in bound_addresses(api) if not address.startswith(UNIX)]
    return plan_page_guard(
        has_keys=door.wants_keys,
        is_local=bool(addresses) and all(map(is_local, addresses)),  # no browser reaches a Unix socket
        hosts=settings.access.allow_hosts,
        origins=settings.cors.allow_origins,
    )


def _certificate(settings: TlsSettings) -> Certificate | None:
    if settings.key and not settings.certificate:
        raise SettingsError(("tls.key is given without tls.certificate: give both, or neither",))
    return Certificate(settings.certificate, settings.key) if settings.certificate else None


async def _close_tracer(tracer: Tracer) -> None:
    """Hand over the last spans; wait no longer than the grace for a collector that does not answer."""
    with trio.move_on_after(TRACES_GRACE_S, shield=True):
        await trio.to_thread.run_sync(tracer.close, abandon_on_cancel=True)


async def _bind_health(settings: Settings, stack: AsyncExitStack) -> Sequence[StreamListener]:
    try:
        address = settings.engine.health_listen
        return await _bind(address, settings, stack) if address else []
    except AddressInUse as fault:  # a second server meets this error for a port that its user never named
        raise AddressInUse(f"{fault.message}; this is the health port: --health-port") from None


async def _bind(address: str, settings: Settings, stack: AsyncExitStack) -> Sequence[StreamListener]:
    listeners = await open_listeners(address, unix_mode=int(settings.http.unix_socket_mode, 8))
    for listener in listeners:
        stack.push_async_callback(listener.aclose)
    return listeners


class _ServerLife:
    """One server, from bound addresses to the exit code. `failure` is why a backend failed, if one did."""

    def __init__(self, settings: Settings, entrance: _Entrance) -> None:
        self.drain = Drain(settings.http.drain_timeout_ms / 1000)
        self.failure: EngineFailed | None = None
        self._settings = settings
        self._entrance = entrance
        self._assembled: Assembled | None = None
        self._server: Server | None = None
        self._all_answered = trio.Event()

    async def run(self, load: Callable[[], MakeModels], task_status: trio.TaskStatus[Running]) -> int:
        """Load the models by `load`, serve until stopped, and return the exit code."""
        entrance = self._entrance
        async with trio.open_nursery() as nursery:
            await self._start_health(nursery)
            await nursery.start(watch_files, reloadings(self._settings, entrance.door, entrance.certificate))
            make = await self._load_unless_stopped(load)
            code = 0 if make is None else await self._serve(make, nursery, task_status)
            nursery.cancel_scope.cancel()
        return code

    async def drain_when(self, wait: Callable[[], Awaitable[str]]) -> None:
        """Begin the drain when `wait` returns, with the reason."""
        log.error("shutting down: %s", await wait())
        self.drain.stop()

    # --- start

    async def _start_health(self, nursery: trio.Nursery) -> None:
        metrics_door = self._entrance.door if self._settings.access.metrics_need_key else None
        handler = health_handler(lambda: self._assembled, self._not_ready_reason, self._connections, metrics_door)
        limits = attrs.evolve(
            self._settings.http,
            max_connections=HEALTH_CONNECTIONS,
            max_connections_per_address=HEALTH_CONNECTIONS,  # all probes can come from one address
        )
        server = Server(limits, handler, make_fault_renderer(new_request_id))
        await nursery.start(server.serve, self._entrance.health)

    async def _load_unless_stopped(self, load: Callable[[], MakeModels]) -> MakeModels | None:
        """Load the models in a thread; return None if the server was stopped meanwhile."""
        make: MakeModels | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_stopped, nursery.cancel_scope)
            make = await trio.to_thread.run_sync(load, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        return make

    async def _cancel_when_stopped(self, scope: trio.CancelScope) -> None:
        await self.drain.wait_asked()
        scope.cancel()

    async def _serve(self, make: MakeModels, nursery: trio.Nursery, task_status: trio.TaskStatus[Running]) -> int:
        assembled = assemble(self._settings, make(), self._entrance.door, self._entrance.tracer, self._entrance.pages)
        running = self._running(assembled)
        node = make_node(self._settings, running.api_addresses[0], assembled.backend)
        if node is not None:
            await nursery.start(node.run)
        server = self._api_server(assembled, node)
        for model in assembled.models:
            await nursery.start(self._run_backend, model.backend, server)
            nursery.start_soon(self.drain_when, model.wait_unfit)
        await nursery.start(self._run_api, server)
        self._assembled = assembled
        log.info(start_event(assembled, running.api_addresses, running.health_addresses))
        task_status.started(running)
        end = ServerEnd(server, [model.backend for model in assembled.models], node)
        return await end.run(self.drain, self._all_answered.wait)

    def _running(self, assembled: Assembled) -> Running:
        return Running(
            api_addresses=bound_addresses(self._entrance.api),
            health_addresses=bound_addresses(self._entrance.health),
            assembled=assembled,
            stop=self.drain.stop,
        )

    def _api_server(self, assembled: Assembled, node: NodeService | None) -> Server:
        handler = make_api_handler(assembled.api)
        if node is not None:
            handler = with_node_routes(handler, node, self._settings.fleet, self._entrance.pages)
        http = self._settings.http
        limits = attrs.evolve(http, max_connections=possible_connections(http.max_connections))
        new_id, log_fault = assembled.api.new_id, assembled.api.log
        self._server = Server(limits, handler, make_fault_renderer(new_id, log_fault), make_fault_renderer(new_id))
        return self._server

    def _connections(self) -> int:
        return 0 if self._server is None else self._server.open_connections

    # --- work

    async def _run_api(self, server: Server, *, task_status: trio.TaskStatus[None]) -> None:
        await server.serve(self._entrance.api_listeners(), task_status=task_status)
        self._all_answered.set()

    async def _run_backend(self, backend: HostedBackend, server: Server, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the backend. When it fails, every stream gets the error, and the server ends once they have passed it on."""
        try:
            await backend.run(task_status=task_status)
        except EngineFailed as failure:
            self.failure = failure
            server.cut(FAILURE_GRACE_S)
            self.drain.stop()

    def _not_ready_reason(self) -> str:
        if self.drain.phase is not Phase.SERVING:
            return "draining"
        if self._assembled is None:
            return "the model is loading"
        return self._assembled.not_ready_reason()
