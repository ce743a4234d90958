"""`python -m tests.benchmarks http`: events per second through the whole API, with a backend that emits tokens at once.

Owns the options, the list of servers, the table and the JSON document.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
from collections.abc import Mapping, Sequence

import attrs

from tests.benchmarks.http.event_count import EventRate
from tests.benchmarks.http.layer import Command, EventPlan, measure_events, own_command
from tlserve.bench.report import document
from tlserve.cli.bench.arguments import list_of, number_from
from tlserve.cli.bench.table import print_table, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--repeat", type=count, default=3, help="number of times everything is measured")
    parser.add_argument("--clients", type=count, default=32, help="streams that are read at once")
    parser.add_argument("--seconds", type=number_from(float, 0.1), default=4.0, help="length of a run")
    parser.add_argument("--events", type=count, default=512, help="events in an answer")
    parser.add_argument("--ready", type=list_of(count), default=(1, 16), help="tokens that become ready together")
    parser.add_argument(
        "--beside",
        type=_command,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another server to measure in the same run (see tests/benchmarks/http/peers)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    plan = EventPlan(
        clients=arguments.clients, events=arguments.events, seconds=arguments.seconds, repeats=arguments.repeat
    )
    commands = {f"tlserve, {ready} ready together": own_command(ready) for ready in arguments.ready}
    commands |= dict(arguments.beside)
    with progress("runs", plan.repeats * len(commands)) as done:
        rates = measure_events(plan, commands, done)
    if arguments.json:
        print(report(plan, rates))
    else:
        print_rates(rates)
    return 0


def report(plan: EventPlan, rates: Mapping[str, Sequence[EventRate]]) -> str:
    """Return the JSON document."""
    runs = [
        {"server": name, "events_per_s": rate.events_per_s, **attrs.asdict(rate)}
        for name, found in rates.items()
        for rate in found
    ]
    return document("tlserve.bench.http/1", plan=attrs.asdict(plan), runs=runs)


def print_rates(rates: Mapping[str, Sequence[EventRate]]) -> None:
    """Print the events per second of every server."""
    rows = []
    for name, found in rates.items():
        each = [rate.events_per_s for rate in found]
        reader = max(rate.reader_share for rate in found)
        rows.append([name, f"{statistics.median(each):.0f}", f"{min(each):.0f} to {max(each):.0f}", f"{reader:.0%}"])
    print_table(["server", "events/s", "lowest to highest", "reader's share of a core"], rows)


def _command(text: str) -> tuple[str, Command]:
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
    return name, shlex.split(command)
