"""`python -m tests.benchmarks table`: tlserve and the peers of peers.toml in turn, as a Markdown table and as JSON.

Owns the options, the layout of the table and the JSON document.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import attrs
import trio

from tests.benchmarks.table.load_case import generate, outside_generator
from tests.benchmarks.table.peers import read_peers
from tests.benchmarks.table.rows import PARTS, PREFILL_TOKENS, ROWS, TableFinding, findings
from tests.benchmarks.table.run import TablePlan, measure_table
from tlserve.bench.report import document
from tlserve.cli.bench.arguments import list_of, number_from
from tlserve.cli.bench.command import write_text
from tlserve.cli.bench.table import progress, written_ratio

HEAD = ("load", "tlserve", "peer", "ratio")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    parser.add_argument("--peers", type=Path, required=True, metavar="FILE", help="a peers.toml: what to compare with")
    parser.add_argument(
        "--only", type=list_of(_part), default=PARTS, metavar="PARTS", help="some of " + ",".join(PARTS)
    )
    parser.add_argument(
        "--load-generator",
        metavar="COMMAND",
        help="send the loads with this command instead of tlserve's own generator; {port}, {streams}, {requests} "
        "and so on are filled in",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    parser.add_argument("--output", metavar="FILE", help="also write the JSON document to this file")
    parser.add_argument("--repeat", type=count, default=3, help="number of rounds")
    parser.add_argument("--rounds", type=count, help="answers that each client reads (2 to 6, by load)")
    parser.add_argument("--output-tokens", type=count, default=64, help="tokens in an answer")
    parser.add_argument(
        "--prefill-tokens",
        type=list_of(count),
        default=PREFILL_TOKENS,
        metavar="TOKENS",
        help="tokens of the prompts of the prefill rows (default 512,4096)",
    )
    parser.add_argument("--steps", type=number_from(int, 2), default=64, help="steps of the bare engine")
    parser.add_argument("--seed", type=int, help="seed of the prompts; without it a new one is drawn each time")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    peers, plan = read_peers(arguments.peers), table_plan(arguments)
    generating = outside_generator(arguments.load_generator) if arguments.load_generator else generate
    with progress("measurements", plan.total(peers)) as done:
        recorded = trio.run(partial(measure_table, plan, peers, generating, done))
    found = findings(recorded, peers.same_files)
    written = report(plan, recorded, found)
    if arguments.output:
        write_text(Path(arguments.output), written + "\n")
    print(written if arguments.json else markdown(found))
    return 0


def table_plan(arguments: argparse.Namespace) -> TablePlan:
    """Return what is measured."""
    return TablePlan(
        rounds=arguments.repeat,
        parts=arguments.only,
        output_tokens=arguments.output_tokens,
        answers=arguments.rounds,
        prefill_tokens=arguments.prefill_tokens,
        steps=arguments.steps,
        seed=secrets.randbits(32) if arguments.seed is None else arguments.seed,
    )


def report(
    plan: TablePlan, recorded: Mapping[str, Mapping[str, Sequence[float]]], found: Sequence[TableFinding]
) -> str:
    """Return the JSON document."""
    values = [
        {"what": what, "who": who, "values": values} for what, by in recorded.items() for who, values in by.items()
    ]
    return document(
        "tlserve.bench.table/3", plan=attrs.asdict(plan), rows=[_row(finding) for finding in found], measured=values
    )


def _row(finding: TableFinding) -> dict[str, object]:
    return {"load": finding.row.what, **attrs.asdict(finding, filter=attrs.filters.exclude("row"))}


def markdown(found: Sequence[TableFinding]) -> str:
    """Return the table; rows that were not measured are named below it."""
    lines = [_line(HEAD), _line("---" for _ in HEAD), *(_line(_cells(finding)) for finding in found)]
    measured = {finding.row for finding in found}
    missing = [row.what for row in ROWS if row not in measured]
    return "\n".join([*lines, *([f"\nNot measured: {'; '.join(missing)}."] if missing else [])])


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(finding: TableFinding) -> list[str]:
    return [
        finding.row.what,
        _number(finding.ours.median),
        f"{_number(finding.theirs.median)} ({finding.peer})",
        written_ratio(finding.ratio),
    ]


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _part(text: str) -> str:
    if text not in PARTS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(PARTS)}")
    return text
