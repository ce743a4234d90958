"""The arguments of `tlserve bench`, and the plans that they make.

Owns names, defaults and bounds. Refuses to run anything.
"""

from __future__ import annotations

import argparse
import secrets
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.benchmarks.engine.steps import EnginePlan
from tests.benchmarks.fleet import run as fleet_run
from tests.benchmarks.fleet.run import FleetPlan
from tests.benchmarks.http.layer import Command, EventPlan
from tests.benchmarks.table.rows import PARTS
from tests.benchmarks.table.run import TablePlan
from tlserve.bench.load import Closed, Load, Open
from tlserve.bench.run import Plan
from tlserve.bench.workload import Workload
from tlserve.cli.settings_arguments import add_settings_arguments

PREFILL_WORDS = 256

T = TypeVar("T", int, float, str)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare all of them."""
    add_settings_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument(
        "--repeat", type=_from(int, 1), help="how often everything is measured (1; engine, http, table: 3)"
    )
    parser.add_argument("--seed", type=int, help="of prompts and arrivals; a fresh one each time unless it is given")
    _add_targets(parser.add_argument_group("load: what is measured"))
    _add_load(parser.add_argument_group("load: how"))
    _add_engine(parser.add_argument_group("engine"))
    _add_http(parser.add_argument_group("http"))
    _add_table(parser.add_argument_group("table"))
    _add_fleet(parser.add_argument_group("fleet"))


Group = argparse._ArgumentGroup


def _add_targets(group: Group) -> None:
    group.add_argument("--url", help="measure the server at this http:// address instead of starting one")
    group.add_argument("--url-model", default="", help="the model to name to that server (the first that it lists)")
    group.add_argument("--api-key", default="", help="sent to that server as a bearer token")
    group.add_argument("--peer", metavar="URL", help="measure this server in turn with the other, A B A B, and compare")
    group.add_argument("--peer-model", default="", help="the model to name to the peer (the first that it lists)")
    group.add_argument("--peer-api-key", default="", help="sent to the peer as a bearer token")
    group.add_argument("--names", type=_names, metavar="A,B", help="what to call the two in tables, plot and JSON")
    group.add_argument("--plot", metavar="FILE", help="write throughput and latency against the load to this SVG file")


def _add_load(group: Group) -> None:
    count, seconds = _from(int, 1), _from(float, 0.0)
    group.add_argument("--streams", type=_list(count), default=(1, 8, 32), help="numbers of clients, as 1,8,32")
    group.add_argument("--rounds", type=count, help="answers that each client reads (2; table: 2 to 6)")
    group.add_argument(
        "--rate",
        type=_list(_from(float, 0.001)),
        help="arrivals per second, as 1,2,4, instead of clients: an open loop",
    )
    group.add_argument("--requests", type=count, default=64, help="arrivals at each rate")
    group.add_argument("--prompt-words", type=count, default=64, help="words of a prompt")
    group.add_argument("--prompt-tokens", type=count, default=0, help="exact tokens of a prompt, instead of words")
    group.add_argument("--shared-words", type=_from(int, 0), default=0, help="words of a system prompt that all share")
    group.add_argument("--output-tokens", type=count, default=64, help="tokens of an answer")
    group.add_argument(
        "--prefill-words",
        type=_from(int, 0),
        help=f"words of a prompt in a run of prefills before each closed loop ({PREFILL_WORDS}; 0, none, with --url or --peer)",
    )
    group.add_argument("--warm-up", type=_from(int, 0), default=1, help="requests before each run that do not count")
    group.add_argument("--pause-s", type=seconds, default=0.0, help="seconds of rest before each run")
    group.add_argument("--limit-s", type=seconds, default=300.0, help="seconds after which a request has failed")


def _add_engine(group: Group) -> None:
    count = _from(int, 1)
    group.add_argument("--prefill-tokens", type=count, default=512, help="tokens of the prompt that is read")
    group.add_argument("--rows", type=_list(count), default=(1, 8, 32), help="sequences in a step, as 1,8,32")
    group.add_argument("--context-tokens", type=count, default=100, help="tokens before those that are decoded")
    group.add_argument("--steps", type=_from(int, 2), default=64, help="steps that are timed together")
    group.add_argument(
        "--through-http",
        action="store_true",
        help="compare a token through the server with a step, in turn, at one stream",
    )
    group.add_argument(
        "--sampling",
        action="store_true",
        help="compare steps with penalties, biases, masks and log-probabilities with a greedy one, in turn",
    )


def _add_http(group: Group) -> None:
    group.add_argument("--clients", type=_from(int, 1), default=32, help="streams that are read at once")
    group.add_argument("--seconds", type=_from(float, 0.1), default=4.0, help="length of a run")
    group.add_argument("--events", type=_from(int, 1), default=512, help="events of an answer")
    group.add_argument("--ready", type=_list(_from(int, 1)), default=(1, 16), help="tokens that become ready together")
    group.add_argument(
        "--beside",
        type=_command,
        action="append",
        default=[],
        metavar="NAME=COMMAND",
        help="another server to measure in the same run (see tests/bench/peers)",
    )


def _add_table(group: Group) -> None:
    group.add_argument(
        "--peers", type=Path, metavar="FILE", help="a peers.toml: what to start and measure in turn with ours"
    )
    group.add_argument("--only", type=_list(_part), default=PARTS, metavar="PARTS", help="some of " + ",".join(PARTS))
    group.add_argument(
        "--load-generator",
        metavar="COMMAND",
        help="send the loads by this command, with {port}, {streams}, {requests} and so on in it, instead of ourselves",
    )
    group.add_argument("--output", metavar="FILE", help="write the JSON document to this file, too")


def _add_fleet(group: Group) -> None:
    group.add_argument(
        "--parts",
        type=_list(_fleet_part),
        default=fleet_run.PARTS,
        help=f"what to measure, of {','.join(fleet_run.PARTS)} (all)",
    )


def load_plan(arguments: argparse.Namespace) -> Plan:
    """Return what `tlserve bench` measures."""
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    workload = Workload(
        prompt_words=arguments.prompt_words,
        prompt_tokens=arguments.prompt_tokens,
        shared_words=arguments.shared_words,
        output_tokens=arguments.output_tokens,
    )
    return Plan(
        loads=_loads(arguments, seed),
        workload=workload,
        prefill_words=_prefill_words(arguments),
        rounds=arguments.rounds or 2,
        requests=arguments.requests,
        repeats=arguments.repeat or 1,
        warm_up=arguments.warm_up,
        seed=seed,
        limit_s=arguments.limit_s,
        pause_s=arguments.pause_s,
    )


def _loads(arguments: argparse.Namespace, seed: int) -> tuple[Load, ...]:
    if arguments.rate:
        return tuple(Open(rate, seed) for rate in arguments.rate)
    return tuple(Closed(streams) for streams in arguments.streams)


def _prefill_words(arguments: argparse.Namespace) -> int:
    if arguments.prefill_words is not None:
        return int(arguments.prefill_words)
    return 0 if arguments.url or arguments.peer else PREFILL_WORDS


def engine_plan(arguments: argparse.Namespace) -> EnginePlan:
    """Return what `tlserve bench engine` measures."""
    return EnginePlan(
        prefill_tokens=arguments.prefill_tokens,
        rows=arguments.rows,
        prompt_tokens=arguments.context_tokens,
        steps=arguments.steps,
        repeats=arguments.repeat or 3,
        seed=arguments.seed or 0,
    )


def event_plan(arguments: argparse.Namespace) -> EventPlan:
    """Return what `tlserve bench http` measures."""
    return EventPlan(
        clients=arguments.clients, events=arguments.events, seconds=arguments.seconds, repeats=arguments.repeat or 3
    )


def table_plan(arguments: argparse.Namespace) -> TablePlan:
    """Return what `tlserve bench table` measures."""
    return TablePlan(
        rounds=arguments.repeat or 3,
        parts=arguments.only,
        output_tokens=arguments.output_tokens,
        answers=arguments.rounds,
        prefill_tokens=arguments.prefill_tokens,
        steps=arguments.steps,
        seed=secrets.randbits(32) if arguments.seed is None else arguments.seed,
    )


def fleet_plan(arguments: argparse.Namespace, model: str) -> FleetPlan:
    """Return what `tlserve bench fleet` measures."""
    return FleetPlan(
        model=model,
        parts=arguments.parts,
        streams=arguments.streams,
        output_tokens=arguments.output_tokens,
        rounds=arguments.rounds or 2,
        repeats=arguments.repeat or 5,
        seed=secrets.randbits(32) if arguments.seed is None else arguments.seed,
    )


def _from(kind: Callable[[str], T], least: T) -> Callable[[str], T]:
    """Return a reader of numbers from `least` on."""

    def read(text: str) -> T:
        value = kind(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    read.__name__ = "number"
    return read


def _list(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    def read_all(text: str) -> tuple[T, ...]:
        return tuple(read(part) for part in text.split(","))

    read_all.__name__ = "list of numbers"
    return read_all


def _part(text: str) -> str:
    if text not in PARTS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(PARTS)}")
    return text


def _fleet_part(text: str) -> str:
    if text not in fleet_run.PARTS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(fleet_run.PARTS)}")
    return text


def _names(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second) or first == second:
        raise argparse.ArgumentTypeError(f"{text!r} is not two different names with a comma between them")
    return first, second


def _command(text: str) -> tuple[str, Command]:
    name, equals, command = text.partition("=")
    if not (name and equals and command):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
    return name, shlex.split(command)
