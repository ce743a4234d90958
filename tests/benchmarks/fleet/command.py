"""`python -m tests.benchmarks fleet`: heads and nodes of this machine, as Markdown tables or as JSON.

Owns the options, the layout of the tables and the JSON document.
"""

from __future__ import annotations

import argparse
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs
import trio

from tests.benchmarks.fleet.run import PARTS, Affinity, FaultFigures, FleetPlan, FleetReport, measure_fleet
from tests.benchmarks.fleet.throughput import FleetComparison
from tlserve.bench.comparison import Spread
from tlserve.cli.bench.arguments import list_of, number_from
from tlserve.cli.bench.command import own_settings
from tlserve.cli.bench.table import progress
from tlserve.cli.settings_arguments import add_settings_arguments

SCHEMA = "tlserve.bench.fleet/1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    add_settings_arguments(parser)
    parser.add_argument(
        "--parts", type=list_of(_part), default=PARTS, help=f"what to measure, of {','.join(PARTS)} (all)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--repeat", type=count, default=5, help="number of rounds")
    parser.add_argument("--streams", type=list_of(count), default=(1, 8, 32), help="numbers of clients, such as 1,8,32")
    parser.add_argument("--rounds", type=count, default=2, help="answers that each client reads")
    parser.add_argument("--output-tokens", type=count, default=64, help="tokens in an answer")
    parser.add_argument("--seed", type=int, help="seed of the prompts; without it a new one is drawn each time")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    plan = fleet_plan(arguments)
    with progress("measurements", plan.total()) as done:
        figures = trio.run(partial(measure_fleet, plan, done))
    document = {"schema": SCHEMA, "plan": attrs.asdict(plan), "figures": attrs.asdict(figures)}
    print(json.dumps(document) if arguments.json else markdown(figures))
    return 0


def fleet_plan(arguments: argparse.Namespace) -> FleetPlan:
    """Return what is measured."""
    return FleetPlan(
        model=own_settings(arguments).engine.model_dir,
        parts=arguments.parts,
        streams=arguments.streams,
        output_tokens=arguments.output_tokens,
        rounds=arguments.rounds,
        repeats=arguments.repeat,
        seed=secrets.randbits(32) if arguments.seed is None else arguments.seed,
    )


def _part(text: str) -> str:
    if text not in PARTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(PARTS)}")
    return text


def markdown(figures: FleetReport) -> str:
    """Return a table for each part that was measured."""
    return "\n\n".join("\n".join(part) for part in _parts(figures))


def _parts(figures: FleetReport) -> Iterator[Iterable[str]]:
    if figures.head:
        yield _comparison("one node through a head, over the node alone", figures.head)
    if figures.cores:
        yield _comparison("two nodes on a core each through a head, over one node on a core", figures.cores)
    if figures.kill or figures.hang:
        yield _faults((("killed", figures.kill), ("hung", figures.hang)))
    if figures.affinity:
        yield _affinity(figures.affinity)


def _comparison(what: str, rows: Sequence[FleetComparison]) -> Iterator[str]:
    yield from _head(
        what, "tokens/s", "alone", "ratio", "head's CPU us a token", "nodes' CPU ms a token", "alone, CPU ms a token"
    )
    for row in rows:
        yield _line(
            f"{row.streams} stream{'s' if row.streams > 1 else ''}",
            f"{row.fleet_tokens_per_s:.0f}",
            f"{row.node_tokens_per_s:.0f}",
            _spread(row.ratio, ".2f"),
            _spread(row.head_us, ".0f"),
            _spread(row.fleet_cpu_ms, ".2f"),
            _spread(row.node_cpu_ms, ".2f"),
        )


def _faults(rows: Sequence[tuple[str, FaultFigures | None]]) -> Iterator[str]:
    yield from _head("a node is", "noticed, ms", "placed again, ms", "next token, ms", "prefill alone, ms")
    for name, row in rows:
        if row is not None:
            spreads = (row.noticed_ms, row.placed_ms, row.next_token_ms, row.prefill_ms)
            yield _line(name, *(_spread(spread, ".0f") for spread in spreads))


def _affinity(row: Affinity) -> Iterator[str]:
    yield from _head("prompt tokens found in a cache", "placed by the head", "at random", "ratio")
    yield _line(
        "conversations over three nodes",
        _spread(row.by_head, ".0%"),
        _spread(row.at_random, ".0%"),
        _spread(row.ratio, ".2f"),
    )


def _head(*names: str) -> Iterator[str]:
    yield _line(*names)
    yield _line(*("---" for _ in names))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(spread: Spread, form: str) -> str:
    return f"{spread.median:{form}} ({spread.low:{form}} to {spread.high:{form}})"
