"""The CPU time of the HTTP link per token: `python -m tests.benchmarks.fleet.http_link`.

A node in its own process gives every stream one token per step from its event loop, so that no engine is part of the figures.
This process reads all streams through one link, as a head does, and acknowledges them. The time is user and system time of each
process between the first token and the last; the medians of the rounds are printed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from tests.benchmarks.http.stub_backend import StubBackend
from tlserve.config.tables.network import HttpSettings
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.http.node_routes import make_node_handler
from tlserve.fleet.link import WINDOW, Ack, SessionKey
from tlserve.fleet.node.service import NodeService
from tlserve.generation import Finish, GenerationEvent, GenerationRequest, PrefillStarted, TokenEvent
from tlserve.http.server import Server
from tlserve.http.sockets.listener import bound_addresses, open_listeners

WALL_S = 600.0


class PacedBackend(StubBackend):
    """Give each stream one token per step, all in the same turn of the event loop, as an engine's report does."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s
        self._channels: set[trio.MemorySendChannel[int]] = set()

    async def run(self) -> None:
        due = trio.current_time()
        while True:
            due += self._step_s
            await trio.sleep_until(due)
            for channel in tuple(self._channels):
                channel.send_nowait(0)

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[AsyncIterator[Sequence[GenerationEvent]]]:
        send, receive = trio.open_memory_channel[int](request.max_tokens + 1)
        self._channels.add(send)
        try:
            yield _events(receive, request.max_tokens)
        finally:
            self._channels.discard(send)


async def _events(steps: trio.MemoryReceiveChannel[int], count: int) -> AsyncIterator[Sequence[GenerationEvent]]:
    yield [PrefillStarted()]
    for index in range(count):
        await steps.receive()
        finish = Finish.LENGTH if index + 1 == count else None
        yield [TokenEvent(index, 97 + index % 26, -0.25 * index, finish=finish)]


async def serve_node(step_s: float) -> None:
    """Serve until the input ends; print the port as the first line of the output."""
    backend = PacedBackend(step_s)
    service = NodeService(backend, node="node", slots=1024)
    listeners = await open_listeners("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(backend.run)
        await nursery.start(service.run)
        server = Server(HttpSettings(), make_node_handler(service, lambda _: None))
        await nursery.start(server.serve, listeners)
        print(bound_addresses(listeners)[0].rpartition(":")[2], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def read_all(link: HttpLink, streams: int, tokens: int) -> int:
    """Place and read all streams; return the number of polls."""
    have = {SessionKey("bench", time.time_ns() + number, 0): 0 for number in range(streams)}
    for key in have:
        await link.place(key, GenerationRequest(prompt=(97,), max_tokens=tokens, seed=0), WALL_S)
    polls = 0
    while any(count <= tokens for count in have.values()):
        reply = await link.poll("bench", [Ack(key, count, count + WINDOW) for key, count in have.items()], 1)
        polls += 1
        for session in reply.sessions:
            assert session.start == have[session.key]
            have[session.key] += len(session.events)
    await link.cancel(list(have))
    return polls


def cpu_s(pid: int) -> float:
    """Return the user and system time of a process of this machine (Linux)."""
    user, system = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


async def measure(port: int, node: int, arguments: argparse.Namespace) -> list[float]:
    """Return the CPU microseconds per token of node and head, and the tokens per poll, of one round."""
    link = HttpLink(f"http://127.0.0.1:{port}")
    await link.hello()
    total = arguments.streams * arguments.tokens
    node_s, head_s = cpu_s(node), time.process_time()
    polls = await read_all(link, arguments.streams, arguments.tokens)
    figures = [cpu_s(node) - node_s, time.process_time() - head_s]
    await link.aclose()
    return [seconds / total * 1e6 for seconds in figures] + [total / polls]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", action="store_true", help="be the node")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.node:
        trio.run(serve_node, arguments.step_ms / 1000)
        return
    command = [sys.executable, "-m", "tests.benchmarks.fleet.http_link", "--node", "--step-ms", str(arguments.step_ms)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        port = int(process.stdout.readline())
        rounds = [trio.run(measure, port, process.pid, arguments) for _ in range(arguments.rounds)]
        process.stdin.close()
    names = ("node us/token", "head us/token", "tokens/poll")
    medians = (statistics.median(values) for values in zip(*rounds, strict=True))
    print(f"{arguments.streams} streams, a step of {arguments.step_ms:g} ms, {arguments.rounds} rounds")
    print(", ".join(f"{name} {median:.1f}" for name, median in zip(names, medians, strict=True)))


if __name__ == "__main__":
    main()
