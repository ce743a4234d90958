"""`tlserve bench http`: events per second through the whole API over a backend that emits at once, beside other servers.

Owns the list of the servers. Refuses to measure.
"""

from __future__ import annotations

import argparse

from tests.benchmarks.http.layer import measure_events, own_command
from tlserve.bench.report import http_report
from tlserve.cli.bench.arguments import event_plan
from tlserve.cli.bench.table import print_rates, progress


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    plan = event_plan(arguments)
    commands = {f"tlserve, {ready} ready together": own_command(ready) for ready in arguments.ready}
    commands |= dict(arguments.beside)
    with progress("runs", plan.repeats * len(commands)) as done:
        rates = measure_events(plan, commands, done)
    if arguments.json:
        print(http_report(plan, rates))
    else:
        print_rates(rates)
    return 0
