"""`tlserve bench fleet`: what a head costs, what nodes bring, how long faults are felt, as Markdown or as JSON.

Owns the layout of the tables. Refuses to measure.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import attrs
import trio

from tests.benchmarks.fleet.run import Affinity, FaultFigures, FleetFigures, measure_fleet
from tests.benchmarks.fleet.throughput import Beside
from tlserve.bench.comparison import Spread
from tlserve.cli.bench.arguments import fleet_plan
from tlserve.cli.bench.settings import own_settings
from tlserve.cli.bench.table import progress

SCHEMA = "tlserve.bench.fleet/1"


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    plan = fleet_plan(arguments, own_settings(arguments).engine.model_dir)
    with progress("measurements", plan.total()) as done:
        figures = trio.run(partial(measure_fleet, plan, done))
    document = {"schema": SCHEMA, "plan": attrs.asdict(plan), "figures": attrs.asdict(figures)}
    print(json.dumps(document) if arguments.json else markdown(figures))
    return 0


def markdown(figures: FleetFigures) -> str:
    """Return a table for each part that was measured."""
    return "\n\n".join("\n".join(part) for part in _parts(figures))


def _parts(figures: FleetFigures) -> Iterator[Iterable[str]]:
    if figures.head:
        yield _beside("one node through a head, over the node alone", figures.head)
    if figures.cores:
        yield _beside("two nodes on a core each through a head, over one node on a core", figures.cores)
    if figures.kill or figures.hang:
        yield _faults((("killed", figures.kill), ("hung", figures.hang)))
    if figures.affinity:
        yield _affinity(figures.affinity)


def _beside(what: str, rows: Sequence[Beside]) -> Iterator[str]:
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
    yield from _head("a node is", "noticed, ms", "placed anew, ms", "next token, ms", "reading again alone, ms")
    for name, row in rows:
        if row is not None:
            spreads = (row.noticed_ms, row.placed_ms, row.next_token_ms, row.prefill_ms)
            yield _line(name, *(_spread(spread, ".0f") for spread in spreads))


def _affinity(row: Affinity) -> Iterator[str]:
    yield from _head("prompt tokens in a cache", "by the head", "at random", "ratio")
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
