"""Events per second through HTTP: a server process that emits events at once, and clients that count them.

Owns the server processes and the order of the runs: every server in turn, then all of them again. Each server is a command that
follows the protocol of `tests.benchmarks.http.stub_server`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from tests.benchmarks.http.event_count import EventRate, count_events
from tlserve.config.addresses import Address
from tlserve.errors import OperatorError

Command = Sequence[str]


@attrs.frozen(kw_only=True)
class EventPlan:
    """What is measured: `clients` streams at once, `events` tokens in each answer, `repeats` runs of `seconds`."""

    clients: int = 32
    events: int = 512
    seconds: float = 4.0
    repeats: int = 3


def own_command(batch_tokens: int) -> Command:
    """Return the command of tlserve's own server with the stub backend."""
    return (sys.executable, "-m", "tests.benchmarks.http.stub_server", str(batch_tokens))


def measure_events(
    plan: EventPlan, commands: Mapping[str, Command], done: Callable[[], None]
) -> dict[str, list[EventRate]]:
    """Return the rates of every named server, in the order of the runs; raises OperatorError if one does not start."""
    rates: dict[str, list[EventRate]] = {name: [] for name in commands}
    for _ in range(plan.repeats):
        for name, command in commands.items():
            with _running(command) as address:
                rate = count_events(address, clients=plan.clients, events=plan.events, seconds=plan.seconds)
            rates[name].append(rate)
            done()
    return rates


@contextmanager
def _running(command: Command) -> Iterator[Address]:
    """Run a server for the block; it ends when its input ends, or is killed."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline().strip()
            if not line.isdigit():
                raise OperatorError(f"{' '.join(command)!r} did not print its port number but {line[:100]!r}")
            yield Address("127.0.0.1", int(line))
            process.stdin.close()
            process.wait(10)
        finally:
            process.kill()
