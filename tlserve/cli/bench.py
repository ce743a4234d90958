"""`tlserve bench [load|engine|http]`: what a server does under load, what its engine does alone, what HTTP does alone.

Owns the choice of the three. Refuses to measure and to print: `tlserve.cli.bench_load`, `bench_engine` and `bench_http` do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tlserve.cli import bench_arguments, bench_engine, bench_http, bench_load
from tlserve.telemetry.logs import set_up_logs

KINDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "load": bench_load.run,
    "engine": bench_engine.run,
    "http": bench_http.run,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "kind",
        nargs="?",
        choices=KINDS,
        default="load",
        help="load: a server as its clients meet it; engine: steps without HTTP; http: events per second without an engine",
    )
    bench_arguments.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    set_up_logs("warning")
    return KINDS[arguments.kind](arguments)
