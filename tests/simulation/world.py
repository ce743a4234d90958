"""One simulated run: the real server over memory streams, with clients, faults and signals, at virtual times.

Real are the HTTP server, the API with its door, admission, the backend, the engine and its scheduler, the drain, and for a fleet
the head, the nodes' services and their sessions. In their place stand only: sockets (memory streams), the engine's thread (a
task), the model (a hash of all that it was given, read back through the KV blocks), the network of a fleet (calls that are
delayed, lost, doubled or hung), and time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack
from typing import Any

import attrs
import trio

from tests.kit.fleet.fake_node import FakeFleet, FakeNode, fake_fleet
from tests.kit.http.memory_http import MemoryListener
from tests.kit.virtual_time import run_seeded
from tests.simulation.clients import Played, play
from tests.simulation.faults import harm_engine, harm_node, node_of
from tests.simulation.loop_backend import VOCABULARY, LoopBackend
from tests.simulation.plan import KEYS, Fault, Plan
from tlserve.access.door import Door
from tlserve.access.keys import ApiKey, KeyRing, digest_of
from tlserve.chat.served_model import Served
from tlserve.config.settings import EngineSettings, Settings
from tlserve.endpoints.api import make_api_handler, make_fault_renderer
from tlserve.errors import EngineFailed
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.head.overview import FleetModel
from tlserve.generation import GenerationRequest
from tlserve.http.server import Server
from tlserve.lifecycle.drain import Drain
from tlserve.programs.hosted_model import HostedModel
from tlserve.programs.server import FAILURE_GRACE_S
from tlserve.programs.server_end import ServerEnd
from tlserve.programs.server_objects import Assembled, assemble
from tlserve.telemetry.fleet_figures import FleetFigures
from tlserve.telemetry.request_log import RequestRecord
from tlserve.text.byte_tokenizer import ByteTokenizer

LONGEST_S = 3_000.0
"""Virtual seconds after which a run counts as hung."""

MOST_TURNS = 20_000
"""Turns of tasks at one virtual time after which a run counts as hung; a good one has some hundreds."""

SETTLE_S = 3.0
"""Virtual seconds in which engines learn that their clients have gone: a fault holds one for 2 at most."""

LEASE_S = 5.0

LEASE_SETTLE_S = LEASE_S + 4.0
"""The same in a fleet that loses messages: the leases of sessions end them."""


@attrs.define
class Run:
    """What one run left behind, for the checks."""

    plan: Plan
    played: list[Played] = attrs.field(factory=list)
    records: list[RequestRecord] = attrs.field(factory=list)
    requests: list[GenerationRequest] = attrs.field(factory=list)
    backends: list[LoopBackend] = attrs.field(factory=list)
    nodes: list[FakeNode] = attrs.field(factory=list)
    harmed: list[tuple[str, Fault]] = attrs.field(factory=list)
    figures: FleetFigures | None = None
    exit_code: int | None = None
    failed: bool = False
    hung: bool = False
    assembled: Assembled | None = None
    server: Server | None = None
    door: Door | None = None
    stopped_at: float | None = None
    interrupted: bool = False  # by a signal while clients were there
    stops: list[float] = attrs.field(factory=list)
    left: list[str] = attrs.field(factory=list)
    ended_at: float = 0.0


def simulate(plan: Plan) -> Run:
    """Play `plan`; the same plan gives the same run."""
    run = Run(plan)
    run_seeded(_World(plan, run).play, seed=plan.seed)
    return run


class _TimeGoesOn(trio.abc.Instrument):
    """Cancels a run whose tasks take turns forever at one and the same time."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope
        self._now = -1.0
        self._turns = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        now = trio.current_time()
        self._turns = self._turns + 1 if now == self._now else 0
        self._now = now
        if self._turns > MOST_TURNS:
            self._scope.cancel()


class _World:
    def __init__(self, plan: Plan, run: Run) -> None:
        self._plan = plan
        self._run = run
        self._listener = MemoryListener()
        self._fleet: FakeFleet | None = None
        self._drain = Drain(plan.http.drain_timeout_ms / 1000)
        self._all_answered = trio.Event()
        self._all_played = trio.Event()
        self._server_scope = trio.CancelScope()
        self._sockets: list[trio.abc.Stream] = []

    async def play(self) -> None:
        with trio.move_on_after(LONGEST_S) as patience:
            trio.lowlevel.add_instrument(_TimeGoesOn(patience))
            async with AsyncExitStack() as stack:
                await self._serve(await self._backend(stack))
        self._run.hung = patience.cancelled_caught

    # --- the server

    async def _backend(self, stack: AsyncExitStack) -> LoopBackend | FleetBackend:
        if not self._plan.nodes:
            return self._loop_backend()
        plan = self._plan
        self._fleet = await stack.enter_async_context(
            fake_fleet(
                plan.nodes,
                limits=FleetLimits(admission=plan.admission, moves=99, window_events=plan.window_events),
                model=FleetModel(model_id="hash", max_context=512, vocabulary_size=VOCABULARY, embedding_size=8),
                make_backend=self._loop_backend,
                lease_s=LEASE_S,
            )
        )
        for node in self._fleet.nodes.values():
            node.faults.delay_s = plan.link_delay_s
        self._run.nodes = list(self._fleet.nodes.values())
        return self._fleet.backend

    def _loop_backend(self) -> LoopBackend:
        plan = self._plan
        backend = LoopBackend(
            plan.engine, admission=plan.admission, queue_deadline_s=plan.queue_deadline_s, step_s=plan.step_s
        )
        self._run.backends.append(backend)
        return backend

    async def _serve(self, backend: LoopBackend | FleetBackend) -> None:
        """Run the server's process. Clients, faults and signals are outside it: they see its end as that of a real one."""
        server = self._server(backend)
        async with trio.open_nursery() as outside, trio.open_nursery() as process:
            if isinstance(backend, LoopBackend):  # those of a fleet run already
                await process.start(self._run_backend, backend, server)
            await process.start(self._run_server, server)
            outside.start_soon(self._play_clients)
            for fault in self._plan.faults:
                outside.start_soon(self._harm, fault)
            for at in self._plan.stops:
                outside.start_soon(self._stop_at, at)
            end = ServerEnd(server, [backend], None)
            self._run.exit_code = await end.run(self._drain, self._all_answered.wait)
            self._run.ended_at = trio.current_time()
            await self._close_sockets()
            await self._all_played.wait()
            await self._settle()
            process.cancel_scope.cancel()
            outside.cancel_scope.cancel()

    async def _settle(self) -> None:
        """Wait after the last client, and note what is left."""
        if self._fleet is not None:
            self._run.figures = self._fleet.backend.figures()
        await trio.sleep(SETTLE_S if all(map(_loses_nothing, self._plan.faults)) else LEASE_SETTLE_S)
        self._run.left = left_in(self._run)
        if self._fleet is not None:
            self._run.left += left_in_fleet(self._fleet)

    async def _close_sockets(self) -> None:
        """Do what the end of a process does to its connections, and to those that it has not accepted."""
        self._server_scope.cancel()
        for stream in self._sockets:
            await trio.aclose_forcefully(stream)

    def _server(self, backend: LoopBackend | FleetBackend) -> Server:
        served = Served(model_id="hash", backend=backend, tokenizer=ByteTokenizer(), eos_ids=frozenset({3}))
        models = (HostedModel(served=served, backend=backend, description="the hash model"),)
        ring = KeyRing(ApiKey(name=f"k{number}", digest=digest_of(key)) for number, key in enumerate(KEYS[1:]))
        self._run.door = door = Door(ring if self._plan.has_keys else None)
        assembled = assemble(Settings(engine=EngineSettings(), http=self._plan.http), models, door)
        numbers = itertools.count(1)
        api = attrs.evolve(
            assembled.api,
            settings=self._plan.http,
            now_s=lambda: 1e9 + trio.current_time(),
            new_id=lambda: f"own{next(numbers)}",
            draw_seed=lambda: 7,
            log=self._log(assembled.api.log),
        )
        self._run.assembled = assembled
        self._run.server = server = Server(
            self._plan.http, make_api_handler(api), make_fault_renderer(api.new_id, api.log)
        )
        return server

    def _log(self, log: Callable[[RequestRecord], None]) -> Callable[[RequestRecord], None]:
        def keep(record: RequestRecord) -> None:
            self._run.records.append(record)
            log(record)

        return keep

    async def _run_server(self, server: Server, *, task_status: trio.TaskStatus[None]) -> None:
        with self._server_scope:
            await server.serve([self._listener], task_status=task_status)
        self._all_answered.set()

    async def _run_backend(self, backend: LoopBackend, server: Server, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            await backend.run(task_status=task_status)
        except EngineFailed:
            self._run.failed = True
            server.cut(FAILURE_GRACE_S)
            self._drain.stop()

    # --- what happens to it

    async def _stop_at(self, at: float) -> None:
        await trio.sleep(at)
        self._run.interrupted = self._run.interrupted or not self._all_played.is_set()
        self._stop()

    def _stop(self) -> None:
        if self._run.exit_code is not None:
            return
        self._run.stops.append(trio.current_time())
        if self._run.stopped_at is None:
            self._run.stopped_at = trio.current_time()
        self._drain.stop()

    async def _play_clients(self) -> None:
        """Play all clients; when they have gone the server is told to stop, if nobody did so before."""
        async with trio.open_nursery() as clients:
            for client in self._plan.clients:
                clients.start_soon(self._play_client, client)
        self._all_played.set()
        if self._run.stopped_at is None:
            self._stop()

    async def _play_client(self, client: Any) -> None:
        await trio.sleep(client.at)
        lockstep = client.manner == "slow_reader"
        pair = trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
        try:
            stream = self._listener.connect(pair)
        except trio.BrokenResourceError:  # the server has stopped listening
            return
        self._sockets.append(pair[1])
        self._run.played.append(await play(client, stream))

    async def _harm(self, fault: Fault) -> None:
        await trio.sleep(fault.at)
        if self._fleet is None:
            await harm_engine(fault, self._run.backends[0])
        else:
            node = node_of(fault, self._fleet, self._exposed())
            self._run.harmed.append((node.name, fault))
            await harm_node(fault, node, self._fleet)

    def _exposed(self) -> Collection[str]:
        """Return the names of the nodes that the next fault may hit."""
        assert self._fleet is not None
        harmed = {name for name, _ in self._run.harmed}
        all_but_one = self._plan.spares_a_node and len(harmed) == self._plan.nodes - 1
        return harmed if all_but_one else self._fleet.nodes


def _loses_nothing(fault: Fault) -> bool:
    """Say whether every message that ends a session still arrives soon."""
    return fault.kind in ("hold", "drain_node") or (fault.kind == "link" and fault.link[0] == "poll")


def left_in_fleet(fleet: FakeFleet) -> list[str]:
    """Return what the head and the nodes that live still hold, long after the last client has gone."""
    left = [f"node {node.name}: {node.sessions} sessions are left" for node in fleet.nodes.values() if node.sessions]
    if fleet.backend.admitted or fleet.backend._head.sessions:
        left.append(
            f"the head has {fleet.backend.admitted} permits and {len(fleet.backend._head.sessions)} sessions left"
        )
    return left


def left_in(run: Run) -> list[str]:
    """Return what engines that live still hold, long after the last client has gone."""
    left = []
    for number, backend in enumerate(run.backends):
        if backend.admitted:
            left.append(f"backend {number}: {backend.admitted} permits are held at the end")
        if not backend.is_over and (backend.engine.has_work or backend.engine.kv.used):
            left.append(f"backend {number}: {backend.engine.kv.used} blocks are held at the end")
    return left


def requests_of(run: Run) -> Iterable[GenerationRequest]:
    """Return every request that reached an engine."""
    return (request for backend in run.backends for request in backend.requests)
