"""`python -m tests.benchmarks restarts`: a server is replaced again and again under load, and no client may notice.

Owns the options, the processes, and the table. Does not know what clients send (`tests.benchmarks.restarts.clients`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import attrs
import trio

from tests.benchmarks.processes import end_process, free_port, last_line, open_process, wait_ready
from tests.benchmarks.restarts.clients import Clients, Tally
from tlserve.bench.target import parse_target
from tlserve.cli.bench.arguments import number_from
from tlserve.cli.bench.table import print_table, progress
from tlserve.config.model_id import served_model_id
from tlserve.errors import OperatorError

SCHEMA = "tlserve.bench.restarts/1"
RESTART_LIMIT_S = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    parser.add_argument("--model", default="succ", help="the model (default succ, built-in)")
    parser.add_argument("--count", type=count, default=200, help="number of restarts")
    parser.add_argument("--streams", type=count, default=8, help="clients that open a connection for each stream")
    parser.add_argument("--kept", type=number_from(int, 0), default=2, help="clients that keep their connection")
    parser.add_argument("--output-tokens", type=count, default=128, help="tokens in an answer")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Restart under load and print the figures; return 0, or 1 if a client noticed."""
    began_s = time.monotonic()
    with progress("restarts", arguments.count) as done, tempfile.TemporaryDirectory() as folder:
        tally = trio.run(partial(_measure, arguments, Path(folder), done))
    figures = {"restarts": arguments.count, "seconds": round(time.monotonic() - began_s, 1), **attrs.asdict(tally)}
    print(json.dumps({"schema": SCHEMA, **figures})) if arguments.json else _print(figures)
    return 1 if tally.faults else 0


def _print(figures: dict[str, Any]) -> None:
    faults = figures.pop("faults")
    rows = [[name, f"{value:g}"] for name, value in figures.items()]
    print_table(["", "number"], [*rows, *([kind, str(number)] for kind, number in faults.items())])
    print("a client noticed" if faults else "no client noticed")


async def _measure(arguments: argparse.Namespace, folder: Path, done: Callable[[], None]) -> Tally:
    servers = _Servers(arguments.model, str(folder / "handover.sock"))
    target = parse_target(servers.api, name="tlserve", model=served_model_id(arguments.model, ""))
    clients = Clients(target, parse_target(servers.health, name="health"), arguments.output_tokens, Tally())
    async with servers.first(), trio.open_nursery() as nursery:
        await clients.learn()
        for number in range(arguments.streams):
            nursery.start_soon(clients.stream, number)
        for number in range(arguments.kept):
            nursery.start_soon(clients.keep, number)
        nursery.start_soon(clients.probe)
        for _ in range(arguments.count):
            await servers.replace()
            done()
        nursery.cancel_scope.cancel()
    return clients.tally


class _Servers:
    """One server after the other, on the same two ports."""

    def __init__(self, model: str, handover: str) -> None:
        api, health = free_port(), free_port()
        self.api, self.health = f"http://127.0.0.1:{api}", f"http://127.0.0.1:{health}"
        ports = ("--port", str(api), "--health-port", str(health))
        more = ("--set", f"http.handover_socket={handover}", "--set", "log.level=warning")
        self._command = [sys.executable, "-m", "tlserve", "serve", "--model", model, *ports, *more]
        self._process: trio.Process | None = None
        self._output: IO[bytes] | None = None

    @asynccontextmanager
    async def first(self) -> AsyncIterator[None]:
        """Run the first server; at the end of the block the one that then serves is ended."""
        await self._start()
        try:
            assert self._process is not None
            assert self._output is not None
            await wait_ready(self._process, self._command, f"{self.health}/readyz", RESTART_LIMIT_S, self._output)
            yield
        finally:
            if self._process is not None:
                await end_process(self._process)
            if self._output is not None:
                self._output.close()

    async def replace(self) -> None:
        """Start the next server, and wait for the end of the one that it replaces; raises `OperatorError`."""
        old = self._process
        assert old is not None
        await self._start()
        with trio.move_on_after(RESTART_LIMIT_S):
            code = await old.wait()
            if code:
                raise OperatorError(f"a server that was replaced ended with code {code}")
            return
        assert self._output is not None
        await end_process(old)
        raise OperatorError(f"a server was not replaced within {RESTART_LIMIT_S:g} s: {last_line(self._output)}")

    async def _start(self) -> None:
        output = tempfile.TemporaryFile()  # noqa: SIM115 - the process writes to it
        if self._output is not None:
            self._output.close()
        self._process, self._output = await open_process(self._command, output), output
