"""`tlserve bench`: a server under load, alone or in turn with a peer.

Owns how the servers are found: one of its own in this process on a free port, with the settings that `serve` would take, or those
at `--url` and `--peer`. Does not measure (`tlserve.bench`) and does not lay out tables (`tlserve.cli.bench.table`).
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import attrs
import trio

from tlserve.bench.comparison import LoadRun, ratios
from tlserve.bench.discover import with_model
from tlserve.bench.picture import picture_of
from tlserve.bench.plot import draw
from tlserve.bench.report import load_report
from tlserve.bench.run import LoadPlan, Statistics, run_bench
from tlserve.bench.target import TargetServer, parse_target
from tlserve.cli.bench.arguments import add_arguments, load_plan
from tlserve.cli.bench.keys import find_key
from tlserve.cli.bench.table import Done, print_ratios, print_runs, progress
from tlserve.cli.settings_arguments import settings_of
from tlserve.config.environment import PEER_KEY, SERVER_KEY, process_environ
from tlserve.config.settings import Settings
from tlserve.config.tables.network import AccessSettings, TlsSettings
from tlserve.errors import OperatorError
from tlserve.programs import server as app
from tlserve.telemetry.logs import set_up_logs

__all__ = ["add_arguments", "own_settings", "run", "write_text"]

NAMES = ("tlserve", "peer")


@attrs.frozen
class MeasuredLoad:
    """What was measured: the plan, the servers and their runs."""

    plan: LoadPlan
    targets: tuple[TargetServer, ...]
    runs: list[LoadRun]


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, draw; return the exit code."""
    set_up_logs("warning")
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


def own_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of `serve` on free ports, with one model and without keys and TLS; raises SettingsError."""
    settings = settings_of(arguments)
    engine = attrs.evolve(settings.engine, http_listen="127.0.0.1:0", health_listen="")
    return attrs.evolve(settings, engine=engine, models=(), access=AccessSettings(), tls=TlsSettings())


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`; raises OperatorError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OperatorError(f"cannot write to {path}: {error.strerror}") from None


async def _measure(arguments: argparse.Namespace, settings: Settings | None) -> MeasuredLoad:
    if settings is None:
        key = find_key(arguments.api_key, arguments.api_key_file, process_environ(), SERVER_KEY)
        return await _run(arguments, _first(arguments, arguments.url, key), {})
    async with trio.open_nursery() as nursery:
        running = await nursery.start(partial(app.serve, settings, handle_signals=False))
        backend = running.assembled.backend
        arguments.url_model = backend.info().model_id
        target = _first(arguments, f"http://{running.api_addresses[0]}")
        measured = await _run(arguments, target, {target.name: backend.statistics})
        running.stop()
    return measured


def _first(arguments: argparse.Namespace, url: str, key: str = "") -> TargetServer:
    name = (arguments.names or NAMES)[0]
    return parse_target(url, name=name, model=arguments.url_model, api_key=key, ca_file=arguments.ca)


def _peer(arguments: argparse.Namespace) -> tuple[TargetServer, ...]:
    if not arguments.peer:
        return ()
    name = (arguments.names or NAMES)[1]
    key = find_key(arguments.peer_api_key, arguments.peer_api_key_file, process_environ(), PEER_KEY)
    return (parse_target(arguments.peer, name=name, model=arguments.peer_model, api_key=key, ca_file=arguments.ca),)


async def _run(arguments: argparse.Namespace, first: TargetServer, statistics: dict[str, Statistics]) -> MeasuredLoad:
    targets = tuple([await with_model(target) for target in (first, *_peer(arguments))])
    plan = load_plan(arguments)
    with _bar(plan, targets) as done:
        return MeasuredLoad(plan, targets, await run_bench(plan, targets, done, statistics))


def _bar(plan: LoadPlan, targets: tuple[TargetServer, ...]) -> AbstractContextManager[Done]:
    return progress("requests to " + " and ".join(target.name for target in targets), plan.total(len(targets)))
