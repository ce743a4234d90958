"""A real fleet on this machine: node processes, a head process, and clients that read many streams at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import attrs
import trio

from tests.kit.cli.processes import ServerProcess, server_process, wait_until
from tests.kit.http.http_calls import get
from tlserve.config.addresses import parse_address
from tlserve.http.client.connection import connect

LIMIT_S = 120.0


@attrs.define(eq=False)
class LoopbackFleet:
    """Nodes and their head; `nodes` in the order of their start."""

    head: ServerProcess
    nodes: list[ServerProcess]

    def states(self) -> dict[str, str]:
        """Return the state of each node, by its address."""
        told = get(self.head.health_address, "/healthz").json["fleet"]
        return {node["node"].removeprefix("http://"): node["state"] for node in told}

    def wait_ready(self) -> None:
        """Wait until every node is ready."""
        wait_until(lambda: set(self.states().values()) == {"ready"})

    def node_log(self, pattern: str) -> list[str]:
        """Return the log lines of the head that match `pattern`."""
        return [line for line in self.head.lines if pattern in line]


def start_node(stack: ExitStack, model: str, *options: str, port: int = 0) -> ServerProcess:
    """Start a node of one thread; it is killed with `stack`."""
    arguments = ("node", "--model", model, "--set", "threads=1", "--set", "kv_memory_bytes=200000000", *options)
    return stack.enter_context(server_process(*arguments, port=port))


@contextmanager
def loopback_fleet(
    model: str, count: int = 3, *options: str, through: Callable[[str], str] = lambda address: address
) -> Iterator[LoopbackFleet]:
    """Start `count` nodes and a head with `options`; `through` gives the address by which the head reaches a node's."""
    with ExitStack() as stack:
        nodes = [start_node(stack, model) for _ in range(count)]
        urls = ",".join(f"http://{through(node.address)}" for node in nodes)
        head = stack.enter_context(server_process("fleet", "--model", model, "--set", f"fleet.nodes={urls}", *options))
        assert head.address
        fleet = LoopbackFleet(head, nodes)
        fleet.wait_ready()
        yield fleet


@attrs.define(eq=False)
class Stream:
    """One answer as it arrives: `entries` are (text, logprob) of each token; `finish` None until it has ended."""

    entries: list[tuple[str, float]] = attrs.field(factory=list)
    finish: str | None = None
    error: Mapping[str, Any] | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        self.error = event.get("error", self.error)
        for choice in event.get("choices", ()):
            logprobs = choice.get("logprobs") or {}
            self.entries += [(entry["token"], entry["logprob"]) for entry in logprobs.get("content") or ()]
            self.finish = choice.get("finish_reason") or self.finish


async def read_stream(address: str, body: Mapping[str, Any], stream: Stream, on_token: Callable[[], None]) -> None:
    """Ask for one stream and read it to its end; a refusal before its first byte is its error."""
    where = parse_address(address)
    async with await connect(where.host, where.port) as client:
        sent = json.dumps({**body, "stream": True, "logprobs": True}).encode()
        answer = await client.open("POST", "/v1/chat/completions", [("Content-Type", "application/json")], sent)
        if answer.status != 200:
            stream.take(json.loads(await answer.read()))
            return
        async for line in answer.lines():
            if line.startswith(b"data: {"):
                before = len(stream.entries)
                stream.take(json.loads(line.removeprefix(b"data: ")))
                if len(stream.entries) > before:
                    on_token()


class Load:
    """Streams of all `bodies` at once; a test waits with `wait_tokens` and then causes a fault."""

    def __init__(self, address: str, bodies: Sequence[Mapping[str, Any]]) -> None:
        self.streams = [Stream() for _ in bodies]
        self._address = address
        self._bodies = bodies
        self._tokens = 0
        self._waiting: list[tuple[int, trio.Event]] = []

    async def run(self) -> None:
        """Read every stream to its end."""
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                for body, stream in zip(self._bodies, self.streams, strict=True):
                    nursery.start_soon(read_stream, self._address, body, stream, self._count)

    def _count(self) -> None:
        self._tokens += 1
        for count, event in self._waiting:
            if self._tokens >= count:
                event.set()

    async def wait_tokens(self, count: int) -> None:
        """Return when all streams together have `count` tokens."""
        event = trio.Event()
        self._waiting.append((count, event))
        if self._tokens >= count:
            return
        with trio.fail_after(LIMIT_S):
            await event.wait()

    def answers(self) -> list[tuple[list[tuple[str, float]], str | None]]:
        """Return the tokens and the end of each stream."""
        assert [stream.error for stream in self.streams] == [None] * len(self.streams)
        return [(stream.entries, stream.finish) for stream in self.streams]


def answers_of(address: str, bodies: Sequence[Mapping[str, Any]]) -> list[tuple[list[tuple[str, float]], str | None]]:
    """Return the answers of a server without faults."""
    load = Load(address, bodies)
    trio.run(load.run)
    return load.answers()
