"""`python -m tests.benchmarks hostile`: what hostile schemas cost a server, and the streams that it serves meanwhile.

Owns the options, the table and the JSON document.
"""

from __future__ import annotations

import argparse

import attrs
import trio

from tests.benchmarks.hostile.run import HostilePlan, HostileReport, measure_hostile
from tlserve.bench.report import document
from tlserve.cli.bench.arguments import number_from
from tlserve.cli.bench.table import print_table, progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    count = number_from(int, 1)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--model", default="smol-135m", help="model of the server (default smol-135m)")
    parser.add_argument("--count", type=count, default=200, help="hostile schemas that are sent (default 200)")
    parser.add_argument("--streams", type=count, default=2, help="streams that are read meanwhile (default 2)")
    parser.add_argument("--seed", type=number_from(int, 0), default=0, help="seed of the schemas (default 0)")
    parser.add_argument(
        "--warm-s", type=number_from(float, 0.0), default=10.0, help="seconds before the first one (default 10)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    plan = HostilePlan(
        model=arguments.model,
        count=arguments.count,
        streams=arguments.streams,
        seed=arguments.seed,
        warm_s=arguments.warm_s,
    )
    with progress("schemas", plan.count) as done:
        report = trio.run(measure_hostile, plan, done)
    if arguments.json:
        print(document("tlserve.bench.hostile/1", **as_document(plan, report)))
    else:
        print_report(report)
    return 0


def as_document(plan: HostilePlan, report: HostileReport) -> dict[str, object]:
    """Return what the JSON document holds."""
    return {
        "plan": attrs.asdict(plan),
        "sent": [attrs.asdict(sent) for sent in report.sent],
        "worst_growth_mb": report.worst_growth_mb,
        "whole_growth_mb": report.whole_growth_mb,
        "worst_cpu_s": report.worst_cpu_s,
        "quiet_p99_ms": report.quiet_p99_ms,
        "hostile_p99_ms": report.hostile_p99_ms,
        "p99_ratio": report.hostile_p99_ms / report.quiet_p99_ms,
    }


def print_report(report: HostileReport) -> None:
    """Print a row for each kind of schema, and what the whole run did to the server and its streams."""
    rows = []
    for kind in dict.fromkeys(sent.kind for sent in report.sent):
        own = [sent for sent in report.sent if sent.kind == kind]
        served = sum(sent.status == 200 for sent in own)
        cpu_s, growth = max(sent.cpu_s for sent in own), max(sent.growth_mb for sent in own)
        rows.append([kind, str(len(own)), str(served), f"{cpu_s:.2f}", f"{growth:.1f}"])
    print_table(["kind", "sent", "served", "worst CPU s outside", "worst growth MB"], rows)
    print(
        f"worst growth of the server {report.worst_growth_mb:.1f} MB, of the whole run {report.whole_growth_mb:.1f} MB"
    )
    print(f"worst CPU time outside the server {report.worst_cpu_s:.2f} s")
    print(
        f"gap between tokens, p99: {report.quiet_p99_ms:.1f} ms with ordinary schemas, {report.hostile_p99_ms:.1f} ms with "
        f"hostile ones: x{report.hostile_p99_ms / report.quiet_p99_ms:.2f}"
    )
