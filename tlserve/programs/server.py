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
       |- KeptResponses.run      one task for each response in the background
       |- backend, one a model   its run, for an engine its thread; a failure ends the process after every stream got the error
       |- _drain_when            one a model: it can never take a new request again
       |- _load_endpoints        imports the endpoints that the first requests did not need, then ends
       |- API server             http.Server.serve: acceptors, one task per connection
       `- ServerEnd.run          the body: waits for the stop, drains, cuts at the deadline, returns the exit code

Start: keys and certificates are read and addresses bound first (what is wrong with them is reported before a model is loaded),
the health port answers while the model loads, and the API port accepts once the model is ready.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs
import trio

from tlserve.config.environment import process_environ
from tlserve.config.settings import Settings
from tlserve.endpoints.api import USUAL_ENDPOINT, load_endpoint, load_endpoints, make_api_handler, make_fault_renderer
from tlserve.endpoints.context import new_request_id
from tlserve.errors import EngineFailed
from tlserve.http.server import Server
from tlserve.http.sockets.listener import bound_addresses
from tlserve.lifecycle.drain import Drain, Phase
from tlserve.lifecycle.notify import READY, STOPPING, notify
from tlserve.lifecycle.reload import watch_files
from tlserve.lifecycle.signals import watch_stop_signals
from tlserve.model.load import LoadedModel
from tlserve.programs.banner import start_event
from tlserve.programs.descriptors import HEALTH_CONNECTIONS, possible_connections, raise_descriptor_limit
from tlserve.programs.entrance import Entrance, open_entrance
from tlserve.programs.hosted_model import HostedBackend, HostedModel, MakeModels, wait_forever
from tlserve.programs.http_node import make_node, with_node_routes
from tlserve.programs.server_end import ServerEnd
from tlserve.programs.server_objects import Assembled, assemble, health_handler, reloadings

if TYPE_CHECKING:
    from tlserve.fleet.node.service import NodeService

log = logging.getLogger("tlserve")

FAILURE_GRACE_S = 5.0
"""How long open requests can still pass on that the engine failed, in seconds."""

ENDPOINTS_AFTER_S = 1.0
"""When a server imports the endpoints that nobody has requested yet, in seconds after its start: the first requests go first."""


@attrs.frozen(kw_only=True)
class Running:
    """A server that answers: its addresses, its objects, and the function that ends it (call `stop` twice to cut)."""

    api_addresses: tuple[str, ...]
    health_addresses: tuple[str, ...]
    assembled: Assembled
    stop: Callable[[], None]


_NO_SUPERVISOR: Mapping[str, str] = MappingProxyType({})


def run(
    settings: Settings,
    load: Callable[[], MakeModels] | None = None,
    until: Callable[[], Awaitable[str]] = wait_forever,
) -> int:
    """Serve until a stop signal, as `serve` does; return the exit code. Raises `OperatorError` and `EngineFailed`."""
    raise_descriptor_limit()
    return trio.run(partial(serve, settings, load=load, until=until, environ=process_environ()))


async def serve(
    settings: Settings,
    *,
    loaded: LoadedModel | None = None,
    load: Callable[[], MakeModels] | None = None,
    until: Callable[[], Awaitable[str]] = wait_forever,
    handle_signals: bool = True,
    environ: Mapping[str, str] = _NO_SUPERVISOR,
    task_status: trio.TaskStatus[Running] = trio.TASK_STATUS_IGNORED,
) -> int:
    """Serve until stopped and return the exit code; started once requests are answered.

    `load` loads the models, in a thread; without it the settings name them, and `loaded` replaces the first. When `until`
    returns, with the reason, the server drains. Signals require the main thread. `environ` has what a supervisor passes: the
    listening sockets, and the address to notify.
    """
    async with AsyncExitStack() as stack:
        life = _ServerLife(settings, await open_entrance(settings, environ, stack), partial(notify, environ))
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
    from tlserve.programs.residency.models import load_models  # a head of a fleet loads no engine

    return partial(load_models, settings, loaded)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Leave garbage for later: the lists of a vocabulary are many new objects, none of which is garbage in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _ServerLife:
    """One server, from bound addresses to the exit code. `failure` is why a backend failed, if one did."""

    def __init__(self, settings: Settings, entrance: Entrance, notify: Callable[[str], None]) -> None:
        self.drain = Drain(settings.http.drain_timeout_ms / 1000)
        self.failure: EngineFailed | None = None
        self._settings = settings
        self._entrance = entrance
        self._notify = notify
        self._health = self._health_server()
        self._is_handed_over = False
        self._assembled: Assembled | None = None
        self._server: Server | None = None
        self._all_answered = trio.Event()
        self._health_ended = trio.Event()

    async def run(self, load: Callable[[], MakeModels], task_status: trio.TaskStatus[Running]) -> int:
        """Load the models by `load`, serve until stopped, and return the exit code."""
        entrance = self._entrance
        async with trio.open_nursery() as nursery:
            if entrance.predecessor is None:  # else that process answers until this one is ready
                await nursery.start(self._run_health)
            await nursery.start(watch_files, reloadings(self._settings, entrance.door, entrance.certificate))
            models = await self._load_unless_stopped(load)
            code = 0 if models is None else await self._serve(models, nursery, task_status)
            nursery.cancel_scope.cancel()
        return code

    async def drain_when(self, wait: Callable[[], Awaitable[str]]) -> None:
        """Begin the drain when `wait` returns, with the reason."""
        log.error("shutting down: %s", await wait())
        self.drain.stop()

    # --- start

    def _health_server(self) -> Server:
        metrics_door = self._entrance.door if self._settings.access.metrics_need_key else None
        handler = health_handler(lambda: self._assembled, self._not_ready_reason, self._connections, metrics_door)
        limits = attrs.evolve(
            self._settings.http,
            max_connections=HEALTH_CONNECTIONS,
            max_connections_per_address=HEALTH_CONNECTIONS,  # all probes can come from one address
        )
        return Server(limits, handler, make_fault_renderer(new_request_id))

    async def _load_unless_stopped(self, load: Callable[[], MakeModels]) -> tuple[HostedModel, ...] | None:
        """Load the models in a thread and make them here; return None if the server was stopped meanwhile.

        What was only needed to make them, such as the lists of a tokenizer's file, is released with this call.
        """
        with _without_collections():
            make = await self._loaded(load)
            return None if make is None else make()

    async def _loaded(self, load: Callable[[], MakeModels]) -> MakeModels | None:
        make: MakeModels | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_stopped, nursery.cancel_scope)
            nursery.start_soon(trio.to_thread.run_sync, load_endpoint, USUAL_ENDPOINT)
            make = await trio.to_thread.run_sync(load, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()
        return make

    async def _cancel_when_stopped(self, scope: trio.CancelScope) -> None:
        await self.drain.wait_asked()
        scope.cancel()

    async def _serve(
        self, models: tuple[HostedModel, ...], nursery: trio.Nursery, task_status: trio.TaskStatus[Running]
    ) -> int:
        assembled = assemble(self._settings, models, self._entrance.door, self._entrance.tracer, self._entrance.pages)
        running = self._running(assembled)
        node = make_node(self._settings, running.api_addresses[0], assembled.backend)
        if node is not None:
            await nursery.start(node.run)
        server = self._api_server(assembled, node)
        for model in assembled.models:
            await nursery.start(self._run_backend, model.backend, server)
            nursery.start_soon(self.drain_when, model.wait_unfit)
        self._assembled = assembled
        kept = assembled.api.kept
        if kept is not None:
            await nursery.start(kept.run)
        await nursery.start(self._run_api, server)
        await self._take_over(nursery)
        log.info(start_event(assembled, running.api_addresses, running.health_addresses))
        task_status.started(running)
        self._notify(READY)
        nursery.start_soon(self._load_endpoints)
        backends = [model.backend for model in assembled.models]
        in_background = (lambda: 0) if kept is None else (lambda: kept.running)
        end = ServerEnd(server, backends, node, partial(self._living_on, server), in_background)
        return await end.run(self.drain, self._wait_answered)

    async def _take_over(self, nursery: trio.Nursery) -> None:
        """Replace the process that served until now, if there is one, and wait for the one that replaces this process."""
        if self._entrance.predecessor is not None:
            await nursery.start(self._run_health)
            await self._entrance.predecessor.replace()
        if self._entrance.handover is not None:
            nursery.start_soon(self._hand_over)

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

    # --- end

    async def _hand_over(self) -> None:
        await self._entrance.hand_over(self._settings)
        if self.drain.phase is Phase.SERVING:
            log.info("another process serves from now on; this one drains")
            self._is_handed_over = True
            self.drain.stop()

    def _living_on(self, server: Server) -> list[Server]:
        """Return the servers whose listening sockets have another owner: the next process, or a supervisor."""
        self._notify(STOPPING)
        if self._is_handed_over:
            return [self._health, server]
        return [server] if self._entrance.lives_on else []

    async def _wait_answered(self) -> None:
        await self._all_answered.wait()
        if self._assembled is not None and self._assembled.api.kept is not None:
            await self._assembled.api.kept.wait_idle()
        if self._is_handed_over:
            await self._health_ended.wait()

    # --- work

    async def _run_api(self, server: Server, *, task_status: trio.TaskStatus[None]) -> None:
        await server.serve(self._entrance.api_listeners(), task_status=task_status)
        self._all_answered.set()

    async def _load_endpoints(self) -> None:
        await trio.sleep(ENDPOINTS_AFTER_S)
        await trio.to_thread.run_sync(load_endpoints)

    async def _run_health(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self._health.serve(self._entrance.health, task_status=task_status)
        self._health_ended.set()

    async def _run_backend(self, backend: HostedBackend, server: Server, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the backend. When it fails, every stream gets the error, and the server ends once they have passed it on."""
        try:
            await backend.run(task_status=task_status)
        except EngineFailed as failure:
            self.failure = failure
            server.cut(FAILURE_GRACE_S)
            self.drain.stop()

    def _not_ready_reason(self) -> str:
        if self.drain.phase is not Phase.SERVING:  # a probe that reaches this process late asks about the next one
            return "" if self._is_handed_over else "draining"
        if self._assembled is None:
            return "the model is loading"
        return self._assembled.not_ready_reason()
