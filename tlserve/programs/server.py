"""The composition root: settings become objects, objects become the nursery tree.

Owns who exists, who is handed to whom, and the order of start and end. Refuses to know how any of it works.

The nursery tree of a server:

    serve
    |- watch_stop_signals        SIGTERM, SIGINT -> Drain.stop; a second one cuts
    |- health server             /healthz, /readyz, /metrics; the first to answer, the last to go
    |- watch_files               new keys and certificates, if there are files of them
    |- backend, one a model      its run, of an engine the thread; a failure ends the process after every stream was told
    |- _drain_when               of what takes nothing new for ever, and of whoever started this server and is gone
    |- node of a fleet           NodeService.run, if the settings ask for it: one task per session
    |- API server                http.Server.serve: acceptors, one task per connection
    `- Drain.run                 the body: waits for the stop, drains, cuts at the deadline, gives the exit code

Start: keys and certificates are read and addresses bound first (what is wrong with them is told before a model is loaded),
the health port answers while the model loads, and the API port accepts once it is ready.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import attrs
import trio

from tlserve.access.door import Door
from tlserve.access.exposure import check_exposure
from tlserve.config.settings import Settings, TlsSettings
from tlserve.endpoints.api import make_api_handler, make_fault_renderer
from tlserve.endpoints.context import new_request_id
from tlserve.errors import AddressInUse, EngineFailed, SettingsError
from tlserve.fleet.node.service import NodeService
from tlserve.http.server import Listener, Server
from tlserve.http.sockets.listener import BoundListener, bound_addresses, open_listeners
from tlserve.http.sockets.tls import Certificate, TlsListener
from tlserve.lifecycle.drain import CUT_GRACE_S, Drain, Phase
from tlserve.lifecycle.reload import watch_files
from tlserve.lifecycle.signals import watch_stop_signals
from tlserve.model.load import LoadedModel
from tlserve.programs.banner import start_event
from tlserve.programs.hosted_model import HostedBackend, MakeModels, wait_forever
from tlserve.programs.http_node import beside_api, check_node, make_node
from tlserve.programs.local_models import load_models
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
"""What open requests get to pass on the news that the engine died, in seconds."""

CUT_NEWS_S = 1.0
"""What heads get to fetch the ends of their sessions from a node that is cut, in seconds."""

TRACES_GRACE_S = 5.0
"""What the last spans get to reach their collector, in seconds."""


@attrs.frozen(kw_only=True)
class Running:
    """A server that answers: where, what it is made of, and how to end it (call `stop` twice to cut)."""

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

    `load` loads the models, in a thread; without it the settings say which, `loaded` standing for the first. When `until`
    returns, with the reason, the server drains. Signals need the main thread.
    """
    async with AsyncExitStack() as stack:
        door, certificate = make_door(settings.access), _certificate(settings.tls)
        tracer = make_tracer(settings.telemetry)
        if tracer is not None:
            stack.push_async_callback(_close_tracer, tracer)
        ports = await _open_ports(settings, door, certificate, stack)
        load = load or partial(load_models, settings, loaded)
        return await _Host(settings, ports, door, load, tracer, until).run(handle_signals, task_status)


async def _close_tracer(tracer: Tracer) -> None:
    """Hand over the last spans; a collector that does not answer is not waited for longer than the grace."""
    with trio.move_on_after(TRACES_GRACE_S, shield=True):
        await trio.to_thread.run_sync(tracer.close, abandon_on_cancel=True)


def _certificate(settings: TlsSettings) -> Certificate | None:
    if settings.key and not settings.certificate:
        raise SettingsError(("tls.key is given without tls.certificate: give both, or neither",))
    return Certificate(settings.certificate, settings.key) if settings.certificate else None


@attrs.frozen
class _Ports:
    api: Sequence[BoundListener]
    health: Sequence[BoundListener]
    certificate: Certificate | None

    def api_listeners(self) -> list[Listener]:
        """Return the listeners of the API, speaking TLS if there is a certificate."""
        if self.certificate is None:
            return list(self.api)
        return [TlsListener(listener, self.certificate) for listener in self.api]


async def _open_ports(settings: Settings, door: Door, certificate: Certificate | None, stack: AsyncExitStack) -> _Ports:
    """Bind every address, refuse an exposed one; the listeners are closed with `stack`, if nothing else did it."""
    api = await _open(settings.engine.http_listen, settings, stack)
    check_exposure(bound_addresses(api), has_keys=door.wants_keys, allow_public=settings.access.allow_public)
    check_node(settings, bound_addresses(api), read_keys(settings.access))
    return _Ports(api, await _open_health(settings, stack), certificate)


async def _open_health(settings: Settings, stack: AsyncExitStack) -> Sequence[BoundListener]:
    try:
        address = settings.engine.health_listen
        return await _open(address, settings, stack) if address else []
    except AddressInUse as fault:  # a second server meets it without having named this port
        raise AddressInUse(f"{fault.message}; this is the health port: --health-port") from None


async def _open(address: str, settings: Settings, stack: AsyncExitStack) -> Sequence[BoundListener]:
    listeners = await open_listeners(address, unix_mode=int(settings.http.unix_socket_mode, 8))
    for listener in listeners:
        stack.push_async_callback(listener.aclose)
    return listeners


class _Host:
    """One server's life, from bound ports to the exit code."""

    def __init__(
        self,
        settings: Settings,
        ports: _Ports,
        door: Door,
        load: Callable[[], MakeModels],
        tracer: Tracer | None,
        until: Callable[[], Awaitable[str]],
    ) -> None:
        self._settings = settings
        self._ports = ports
        self._door = door
        self._load = load
        self._until = until
        self._tracer = tracer
        self._drain = Drain(settings.http.drain_timeout_ms / 1000)
        self._assembled: Assembled | None = None
        self._all_answered = trio.Event()
        self._failure: EngineFailed | None = None

    async def run(self, handle_signals: bool, task_status: trio.TaskStatus[Running]) -> int:
        async with trio.open_nursery() as nursery:
            if handle_signals:
                await nursery.start(watch_stop_signals, self._drain.stop, self._drain.stop)
            nursery.start_soon(self._drain_when, self._until)
            await self._start_health(nursery)
            await nursery.start(watch_files, reloadings(self._settings, self._door, self._ports.certificate))
            make = await self._load_unless_stopped()
            code = 0 if make is None else await self._serve(make, nursery, task_status)
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return code

    # --- start

    async def _start_health(self, nursery: trio.Nursery) -> None:
        metrics_door = self._door if self._settings.access.metrics_need_key else None
        handler = health_handler(lambda: self._assembled, self._not_ready_reason, metrics_door)
        server = Server(self._settings.http, handler, make_fault_renderer(new_request_id))
        await nursery.start(server.serve, self._ports.health)

    async def _load_unless_stopped(self) -> MakeModels | None:
        """Load the models in a thread; None if the server was told to stop meanwhile."""
        make: MakeModels | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_stopped, nursery.cancel_scope)
            make = await trio.to_thread.run_sync(self._load, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        return make

    async def _cancel_when_stopped(self, scope: trio.CancelScope) -> None:
        await self._drain.wait_asked()
        scope.cancel()

    async def _serve(self, make: MakeModels, nursery: trio.Nursery, task_status: trio.TaskStatus[Running]) -> int:
        assembled = assemble(self._settings, make(), self._door, self._tracer)
        handler, render_fault = (
            make_api_handler(assembled.api),
            make_fault_renderer(assembled.api.new_id, assembled.api.log),
        )
        running = self._running(assembled)
        node = make_node(self._settings, running.api_addresses[0], assembled.backend)
        if node is not None:
            handler = beside_api(handler, node, self._settings.fleet)
            await nursery.start(node.run)
        server = Server(self._settings.http, handler, render_fault)
        for model in assembled.models:
            await nursery.start(self._run_backend, model.backend, server)
            nursery.start_soon(self._drain_when, model.wait_unfit)
        await nursery.start(self._run_api, server)
        self._assembled = assembled
        log.info(start_event(assembled, running.api_addresses, running.health_addresses))
        task_status.started(running)
        return await self._run_drain(assembled, server, node, nursery)

    def _running(self, assembled: Assembled) -> Running:
        return Running(
            api_addresses=bound_addresses(self._ports.api),
            health_addresses=bound_addresses(self._ports.health),
            assembled=assembled,
            stop=self._drain.stop,
        )

    # --- work

    async def _run_api(self, server: Server, *, task_status: trio.TaskStatus[None]) -> None:
        await server.serve(self._ports.api_listeners(), task_status=task_status)
        self._all_answered.set()

    async def _run_backend(self, backend: HostedBackend, server: Server, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the backend. When it dies every stream was told so: the server ends when they have passed it on."""
        try:
            await backend.run(task_status=task_status)
        except EngineFailed as failure:
            self._failure = failure
            server.cut(FAILURE_GRACE_S)
            self._drain.stop()

    async def _drain_when(self, wait: Callable[[], Awaitable[str]]) -> None:
        log.error("the server ends: %s", await wait())
        self._drain.stop()

    def _not_ready_reason(self) -> str:
        if self._drain.phase is not Phase.SERVING:
            return "draining"
        if self._assembled is None:
            return "the model is loading"
        return self._assembled.not_ready_reason()

    # --- end

    async def _run_drain(
        self, assembled: Assembled, server: Server, node: NodeService | None, nursery: trio.Nursery
    ) -> int:
        async def close() -> None:
            for model in assembled.models:
                model.backend.close()
            if node is not None:
                node.close()
                nursery.start_soon(_drain_after, node, server)
            if node is None or not node.open_sessions:
                server.drain()

        def open_requests() -> int:
            return server.open_requests + (0 if node is None else node.open_sessions)

        def cut() -> None:
            for model in assembled.models:
                model.backend.cut()
            if node is not None and node.open_sessions:
                nursery.start_soon(_cut_after, node, server)
            else:
                server.cut(CUT_GRACE_S)

        return await self._drain.run(
            close=close, open_requests=open_requests, wait_ended=self._all_answered.wait, cut=cut
        )


async def _drain_after(node: NodeService, server: Server) -> None:
    """Let the heads come for the rest of their sessions: each poll is a new request, which a drained server refuses."""
    await node.wait_empty()
    server.drain()


async def _cut_after(node: NodeService, server: Server) -> None:
    """Let the heads hear how their sessions ended, which is in their next polls."""
    with trio.move_on_after(CUT_NEWS_S):
        await node.wait_empty()
    server.cut(CUT_GRACE_S - CUT_NEWS_S)
