"""`tlserve bench [load|engine|http|table|fleet]`: a server under load, its engine, HTTP alone, all beside peers, a fleet.

Owns the choice. Refuses to measure and to print: `tlserve.cli.bench.load` and its kin do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tests.benchmarks.engine import command as bench_engine
from tests.benchmarks.fleet import command as bench_fleet
from tests.benchmarks.http import command as bench_http
from tests.benchmarks.table import command as bench_peers
from tlserve.cli.bench import arguments as bench_arguments
from tlserve.cli.bench import load as bench_load
from tlserve.telemetry.logs import set_up_logs

KINDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "load": bench_load.run,
    "engine": bench_engine.run,
    "http": bench_http.run,
    "table": bench_peers.run,
    "fleet": bench_fleet.run,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "kind",
        nargs="?",
        choices=KINDS,
        default="load",
        help="load: a server as its clients meet it; engine: steps without HTTP; http: events per second without an engine; "
        "table: all of it beside the servers and programs of --peers; fleet: heads and nodes of this machine",
    )
    bench_arguments.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    set_up_logs("warning")
    return KINDS[arguments.kind](arguments)
