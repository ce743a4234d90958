"""`tlserve bench`: prefill and decode rates, times to first token and per token, at several numbers of streams.

Owns the arguments and the printing. By default it starts a server of its own on a free port, with the settings that
`serve` would take; `--url` measures one that runs already.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from urllib.parse import urlsplit

import attrs
import trio

from tlserve import app
from tlserve.bench.figures import Figures
from tlserve.bench.run import Plan, run_bench
from tlserve.cli.bench_table import print_table, progress
from tlserve.cli.settings_arguments import add_settings_arguments, settings_of
from tlserve.config.addresses import Address, parse_address
from tlserve.config.settings import Settings
from tlserve.errors import OperatorError
from tlserve.telemetry.logs import set_up_logs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_settings_arguments(parser)
    parser.add_argument("--url", help="measure the server at this http:// address instead of starting one")
    parser.add_argument("--url-model", default="smol-135m", help="the model to name to that server")
    parser.add_argument("--streams", type=_counts, default=(1, 8, 32), help="numbers of clients, as 1,8,32")
    parser.add_argument("--prefill-words", type=int, default=256, help="words of a prompt in the run of prefills")
    parser.add_argument("--prompt-words", type=int, default=64, help="words of a prompt in the run of answers")
    parser.add_argument("--output-tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=2, help="answers that each client reads")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; return the exit code."""
    settings = None if arguments.url else _for_bench(settings_of(arguments))
    figures = trio.run(partial(_measure, arguments, settings))
    if arguments.json:
        print(json.dumps([attrs.asdict(row) for row in figures]))
    else:
        print_table(figures)
    return 0


def _for_bench(settings: Settings) -> Settings:
    """Listen on free ports of the loopback interface, whatever the settings say, and log only what is wrong."""
    set_up_logs("warning")
    engine = attrs.evolve(settings.engine, http_listen="127.0.0.1:0", health_listen="127.0.0.1:0")
    return attrs.evolve(settings, engine=engine)


async def _measure(arguments: argparse.Namespace, settings: Settings | None) -> list[Figures]:
    if settings is None:
        with progress(_plan(arguments, arguments.url_model)) as (plan, done):
            return await run_bench(plan, _address(arguments.url), None, done)
    async with trio.open_nursery() as nursery:
        running = await nursery.start(partial(app.serve, settings, handle_signals=False))
        backend = running.assembled.backend
        with progress(_plan(arguments, backend.info().model_id)) as (plan, done):
            found = await run_bench(plan, parse_address(running.api_addresses[0]), backend.statistics, done)
        running.stop()
    return found


def _plan(arguments: argparse.Namespace, model: str) -> Plan:
    return Plan(
        model=model,
        streams=arguments.streams,
        prefill_words=arguments.prefill_words,
        prompt_words=arguments.prompt_words,
        output_tokens=arguments.output_tokens,
        rounds=arguments.rounds,
    )


def _address(url: str) -> Address:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise OperatorError(f"{url!r} cannot be measured: give an address like http://127.0.0.1:8000")
    return Address(parts.hostname, parts.port or 80)


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(","))
    if min(counts) < 1:
        raise ValueError(text)
    return counts
