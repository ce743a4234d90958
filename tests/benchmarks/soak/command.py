"""`python -m tests.benchmarks soak`: a server under a mixed load with faults for some time, and what it holds afterwards.

Owns the options, the rests in which the server is read, the table and the verdict. Linux only.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import attrs
import trio

from tests.benchmarks.processes import free_port, running
from tests.benchmarks.soak.load import SoakTally, Visitors
from tests.benchmarks.soak.readings import Reading, growth, take_reading
from tlserve.bench.target import parse_target
from tlserve.cli.bench.arguments import number_from
from tlserve.cli.bench.table import print_table, progress

SCHEMA = "tlserve.bench.soak/1"
REST_S = 5.0
"""How long the server has no visitor before it is read."""

SETTINGS = {
    "max_num_seqs": 4,
    "queue_capacity": 8,
    "kv_memory_bytes": 1 << 24,
    "http.write_timeout_ms": 3000,
    "http.body_timeout_ms": 3000,
    "http.header_timeout_ms": 3000,
}
"""Small limits, so that all of them are reached."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    parser.add_argument("--minutes", type=number_from(float, 0.05), default=60.0, help="how long the load lasts")
    parser.add_argument("--visitors", type=count, default=8, help="visitors at once")
    parser.add_argument("--rest-ms", type=number_from(int, 0), default=20, help="rest of a visitor between two visits")
    parser.add_argument(
        "--readings", type=number_from(int, 3), default=5, help="number of readings, start and end included"
    )
    parser.add_argument("--seed", type=int, help="seed of the visits; without it a new one is drawn each time")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")


def run(arguments: argparse.Namespace) -> int:
    """Soak and print; return 0, or 1 if anything grew, was left, or was answered wrongly."""
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    with progress("parts of the soak", arguments.readings) as done, tempfile.TemporaryDirectory() as folder:
        tally, readings = trio.run(partial(_soak, arguments, seed, Path(folder), done))
    faults = [*growth(readings[1:]), *(f"{what}: {count} times" for what, count in tally.wrong.items())]
    (_print_json if arguments.json else _print)(arguments, seed, tally, readings, faults)
    return 1 if faults else 0


async def _soak(
    arguments: argparse.Namespace, seed: int, folder: Path, done: Callable[[], None]
) -> tuple[SoakTally, list[Reading]]:
    api, health = free_port(), free_port()
    settings = [word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}")]
    ports = ("--model", "succ", "--port", str(api), "--health-port", str(health))
    command = [sys.executable, "-m", "tests.benchmarks.soak.server", str(folder / "tasks"), *ports, *settings]
    health_server = parse_target(f"http://127.0.0.1:{health}", name="health")
    tally = SoakTally()
    visitors = Visitors(parse_target(f"http://127.0.0.1:{api}", name="tlserve", model="succ"), tally)
    async with running(command, f"{health_server.url}/readyz") as pid:
        read = partial(take_reading, pid=pid, tasks=folder / "tasks", health=health_server)
        readings = [await read(0.0)]
        part_s = arguments.minutes * 60 / (arguments.readings - 1)
        for part in range(arguments.readings - 1):
            await _visit_for(part_s, visitors, arguments, random.Random(f"{seed} {part}"))
            await trio.sleep(REST_S)
            readings.append(await read((part + 1) * part_s / 60))
            print(readings[-1], file=sys.stderr, flush=True)
            done()
    return tally, readings


async def _visit_for(seconds: float, visitors: Visitors, arguments: argparse.Namespace, chance: random.Random) -> None:
    """Let visitors come for some time, and wait until the last of them has left."""
    end_s = trio.current_time() + seconds

    async def come(own: random.Random) -> None:
        while trio.current_time() < end_s:
            await visitors.visit(own)
            await trio.sleep(arguments.rest_ms / 1000)

    async with trio.open_nursery() as nursery:
        for _ in range(arguments.visitors):
            nursery.start_soon(come, random.Random(chance.random()))


def _print(
    arguments: argparse.Namespace, seed: int, tally: SoakTally, readings: list[Reading], faults: list[str]
) -> None:
    rows = [[name.replace("_", " "), outcome, str(count)] for (name, outcome), count in sorted(tally.outcomes.items())]
    print_table(["visit", "outcome", "number"], rows)
    names = [field.name for field in attrs.fields(Reading)]
    print_table(
        ["", *(f"minute {reading.minute:g}" for reading in readings)],
        [[name.replace("_", " "), *(f"{getattr(reading, name):g}" for reading in readings)] for name in names[1:]],
    )
    print(
        f"seed {seed}, {arguments.minutes:g} minutes, {arguments.visitors} visitors: {sum(tally.outcomes.values())} visits"
    )
    print("\n".join(faults) if faults else "nothing grew, nothing is left, and no answer was wrong")


def _print_json(
    arguments: argparse.Namespace, seed: int, tally: SoakTally, readings: list[Reading], faults: list[str]
) -> None:
    visits = [{"visit": name, "outcome": outcome, "number": count} for (name, outcome), count in tally.outcomes.items()]
    figures = {"visits": visits, "readings": [attrs.asdict(reading) for reading in readings], "verdict": faults}
    print(json.dumps({"schema": SCHEMA, "minutes": arguments.minutes, "seed": seed, **figures}))
