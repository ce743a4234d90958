"""`tlserve bench`: a server under load, alone or in turn with a peer.

Owns how the targets come about: a server of its own in this process on a free port, with the settings that `serve` would take,
or those at `--url` and `--peer`. Refuses to measure.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import attrs
import trio

from tlserve.bench.comparison import Run, ratios
from tlserve.bench.discover import with_model
from tlserve.bench.picture import picture_of
from tlserve.bench.plot import draw
from tlserve.bench.report import load_report
from tlserve.bench.run import Plan, Statistics, run_bench
from tlserve.bench.target import Target, parse_target
from tlserve.cli.bench.arguments import load_plan
from tlserve.cli.bench.output import write_text
from tlserve.cli.bench.settings import own_settings
from tlserve.cli.bench.table import Done, print_ratios, print_runs, progress
from tlserve.config.settings import Settings
from tlserve.programs import server as app

NAMES = ("tlserve", "peer")


@attrs.frozen
class Measured:
    """The targets and their runs."""

    plan: Plan
    targets: tuple[Target, ...]
    runs: list[Run]


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, draw; return the exit code."""
    settings = None if arguments.url else own_settings(arguments)
    measured = trio.run(partial(_measure, arguments, settings))
    names = [target.name for target in measured.targets]
    compared = ratios(measured.runs, *names) if len(names) > 1 else []
    if arguments.json:
        print(load_report(measured.plan, measured.targets, measured.runs, compared))
    else:
        print_runs(measured.runs, names)
        print_ratios(compared, names)
    if arguments.plot:
        write_text(Path(arguments.plot), draw(picture_of(measured.runs, names)))
    return 0


async def _measure(arguments: argparse.Namespace, settings: Settings | None) -> Measured:
    if settings is None:
        return await _run(arguments, _first(arguments, arguments.url), {})
    async with trio.open_nursery() as nursery:
        running = await nursery.start(partial(app.serve, settings, handle_signals=False))
        backend = running.assembled.backend
        arguments.url_model = backend.info().model_id
        target = _first(arguments, f"http://{running.api_addresses[0]}")
        measured = await _run(arguments, target, {target.name: backend.statistics})
        running.stop()
    return measured


def _first(arguments: argparse.Namespace, url: str) -> Target:
    name = (arguments.names or NAMES)[0]
    return parse_target(url, name=name, model=arguments.url_model, api_key=arguments.api_key)


def _peer(arguments: argparse.Namespace) -> tuple[Target, ...]:
    if not arguments.peer:
        return ()
    name = (arguments.names or NAMES)[1]
    return (parse_target(arguments.peer, name=name, model=arguments.peer_model, api_key=arguments.peer_api_key),)


async def _run(arguments: argparse.Namespace, first: Target, statistics: dict[str, Statistics]) -> Measured:
    targets = tuple([await with_model(target) for target in (first, *_peer(arguments))])
    plan = load_plan(arguments)
    with _bar(plan, targets) as done:
        return Measured(plan, targets, await run_bench(plan, targets, done, statistics))


def _bar(plan: Plan, targets: tuple[Target, ...]) -> AbstractContextManager[Done]:
    return progress("requests to " + " and ".join(target.name for target in targets), plan.total(len(targets)))
