"""`tlserve bench table`: the table of performance beside the peers of peers.toml, as Markdown and as JSON.

Owns the layout of the table. Refuses to measure and to choose.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import trio

from tests.benchmarks.table.load_case import generate, outside_generator
from tests.benchmarks.table.peers import read_peers
from tests.benchmarks.table.rows import ROWS, Finding, Row, findings
from tests.benchmarks.table.run import measure_table
from tlserve.bench.comparison import Spread
from tlserve.bench.report import table_report
from tlserve.cli.bench.arguments import table_plan
from tlserve.cli.bench.output import write_text
from tlserve.cli.bench.table import progress
from tlserve.errors import OperatorError

HEAD = ("load", "ours", "peer", "ratio", "wanted", "aim", "reached")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    if arguments.peers is None:
        raise OperatorError(
            "`tlserve bench table` needs --peers FILE: what to compare with (see docs/how-to/measure.md)"
        )
    peers, plan = read_peers(arguments.peers), table_plan(arguments)
    generating = outside_generator(arguments.load_generator) if arguments.load_generator else generate
    with progress("measurements", plan.total(peers)) as done:
        recorded = trio.run(partial(measure_table, plan, peers, generating, done))
    same_file = peers.server.label(peers.server.same_file) if peers.server and peers.server.same_file else ""
    found = findings(recorded, same_file)
    report = table_report(plan, recorded, found)
    if arguments.output:
        write_text(Path(arguments.output), report + "\n")
    print(report if arguments.json else markdown(found))
    return 0


def markdown(found: Sequence[Finding]) -> str:
    """Return the table; rows that were not measured are named below it."""
    lines = [_line(HEAD), _line("---" for _ in HEAD), *(_line(_cells(finding)) for finding in found)]
    measured = {finding.row for finding in found}
    missing = [row.what for row in ROWS if row not in measured]
    return "\n".join([*lines, *([f"\nNot measured: {'; '.join(missing)}."] if missing else [])])


def _line(cells: Sequence[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(finding: Finding) -> list[str]:
    row = finding.row
    return [
        row.what,
        _number(finding.ours.median),
        f"{_number(finding.theirs.median)} ({finding.peer})",
        _ratio(finding.ratio),
        _bound(row, row.wanted),
        _bound(row, row.aim),
        finding.reached,
    ]


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(ratio: Spread) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _bound(row: Row, bound: float) -> str:
    return f"at most {bound:g}" if row.time else f"{bound:g}"
