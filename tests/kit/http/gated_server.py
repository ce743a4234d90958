"""A whole server in the test's own trio run, over real sockets, whose every engine step waits for the test.

    async with gated_server(max_num_seqs=1) as host:
        stream = await host.stream(chat("a", max_tokens=3, stream=True))      # one connection; its head comes later
        await host.step()                                                     # the engine does one step, then waits again
        host.gate.open_all()                                                  # from now on nothing waits

The gate controls the order of the engine; real time is only used for time-outs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.kit.engine.gated_model import GatedModel
from tests.kit.http.http_calls import parse_events
from tests.kit.model.tiny_models import load_succ
from tlserve.config.addresses import parse_address
from tlserve.generation import EngineStatistics
from tlserve.http.client.connection import HttpClient, HttpResponse, ResponseStream, connect
from tlserve.model.load import LoadedModel
from tlserve.testing import TestServer, serve
from tlserve.worker.local_backend import LocalBackend

CHAT = "/v1/chat/completions"
PATIENCE_S = 20.0

Samples = Mapping[str, float]


def gated(loaded: LoadedModel) -> tuple[GatedModel, LoadedModel]:
    """Put a gate in front of a loaded model."""
    gate = GatedModel(loaded.model)
    return gate, attrs.evolve(loaded, model=gate)


def gated_succ() -> tuple[GatedModel, LoadedModel]:
    """Load the built-in model behind a gate."""
    return gated(load_succ())


async def until(condition: Callable[[], object]) -> None:
    """Let the other tasks run until `condition` holds."""
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.lowlevel.checkpoint()


class Talk:
    """One connection that has sent a request; `answer` and `events` read the response."""

    def __init__(self, client: HttpClient, nursery: trio.Nursery, body: object, path: str) -> None:
        self.client = client
        self._got: HttpResponse | None = None
        self._error: Exception | None = None
        self._ended = trio.Event()
        self._seen = bytearray()
        self._opened: ResponseStream | None = None
        nursery.start_soon(self._read, path, body if isinstance(body, bytes) else json.dumps(body).encode())

    async def _read(self, path: str, body: bytes) -> None:
        async with self.client:
            try:
                self._opened = await self.client.open("POST", path, (), body)
                while part := await self._opened.receive():
                    self._seen += part
            except Exception as error:
                self._error = error
            self._ended.set()

    @property
    def seen(self) -> bytes:
        """Return the body so far."""
        return bytes(self._seen)

    @property
    def status(self) -> int | None:
        """Return the status, None before the head."""
        return None if self._opened is None else self._opened.status

    @property
    def ended(self) -> bool:
        """Say whether the answer has ended, well or not."""
        return self._ended.is_set()

    async def answer(self) -> HttpResponse:
        """Wait for the whole answer; raises the error that broke it."""
        with trio.fail_after(PATIENCE_S):
            await self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._opened is not None
        return HttpResponse(self._opened.status, self._opened.headers, self.seen)

    async def document(self) -> Any:
        """Return the whole answer's JSON."""
        return json.loads((await self.answer()).body)

    async def events(self) -> list[Any]:
        """Return the whole stream's payloads."""
        return parse_events((await self.answer()).body)


@attrs.frozen(eq=False)
class GatedServer:
    """A server, its gate, and ways to talk to it."""

    server: TestServer
    gate: GatedModel
    nursery: trio.Nursery

    @property
    def backend(self) -> LocalBackend:
        backend = self.server.running.assembled.backend
        assert isinstance(backend, LocalBackend)
        return backend

    @property
    def statistics(self) -> EngineStatistics:
        return self.backend.statistics()

    async def connect(self) -> HttpClient:
        """Open a connection to the API."""
        address = parse_address(self.server.address)
        return await connect(address.host, address.port)

    async def raw(self) -> trio.SocketStream:
        """Open a connection to write any bytes to."""
        address = parse_address(self.server.address)
        return await trio.open_tcp_stream(address.host, address.port)

    async def send(self, body: object, path: str = CHAT) -> Talk:
        """Send a request on a new connection; return once the server has it."""
        inside = self.backend.admitted
        talk = Talk(await self.connect(), self.nursery, body, path)
        await until(lambda: self.backend.admitted > inside or talk.ended)
        return talk

    async def wait_step(self) -> None:
        """Return when a step waits at the gate."""
        await trio.to_thread.run_sync(self.gate.wait_for_step)

    async def step(self) -> None:
        """Wait for a step at the gate, let it pass, and wait for its report."""
        await self.wait_step()
        await self.pass_step()

    async def pass_step(self) -> None:
        """Let the step at the gate pass, and wait for its report."""
        before = self.statistics.steps_total
        self.gate.open_one()
        await until(lambda: self.statistics.steps_total > before)

    async def health(self, path: str) -> HttpResponse:
        """Ask the health port over a new connection."""
        address = parse_address(self.server.health_address)
        async with await connect(address.host, address.port) as client:
            return await client.request("GET", path)

    async def get(self, path: str) -> HttpResponse:
        """Ask the API over a new connection."""
        async with await self.connect() as client:
            return await client.request("GET", path)

    async def metrics(self) -> Samples:
        """Scrape /metrics through Prometheus' own parser; series -> value."""
        return parse_metrics((await self.health("/metrics")).body.decode())


def parse_metrics(text: str) -> Samples:
    """Read an exposition; a series is its name with its labels in order. Raises for a repeated series or HELP."""
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value!r}" for name, value in sorted(sample.labels.items()))
            series = f"{sample.name}{{{labels}}}"
            assert series not in samples, f"{series} comes twice"
            samples[series] = sample.value
    helps = [line.split()[2] for line in text.splitlines() if line.startswith("# HELP ")]
    assert len(helps) == len(set(helps)), "HELP comes twice"
    return samples


@asynccontextmanager
async def gated_server(
    made: tuple[GatedModel, LoadedModel] | None = None, model: str = "succ", **settings: str | int | bool
) -> AsyncIterator[GatedServer]:
    """Serve a gated model for the block, by default the built-in one; `settings` with a `__` for the dot, or of [engine]."""
    gate, loaded = made or gated_succ()
    named = {(name.replace("__", ".") if "__" in name else f"engine.{name}"): value for name, value in settings.items()}
    async with serve(model, settings=named, loaded=loaded) as server, trio.open_nursery() as nursery:
        try:
            yield GatedServer(server, gate, nursery)
        finally:
            gate.open_all()
            nursery.cancel_scope.cancel()
