"""The arguments of `tlserve bench`, and the plan that they make.

Owns names, defaults and bounds. Does not run anything.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable
from typing import TypeVar

from tlserve.bench.load import Closed, Load, Open
from tlserve.bench.run import LoadPlan
from tlserve.bench.workload import Workload
from tlserve.cli.settings_arguments import add_settings_arguments
from tlserve.config.environment import PEER_KEY, SERVER_KEY

PREFILL_WORDS = 256

T = TypeVar("T", int, float, str)
Group = argparse._ArgumentGroup


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_settings_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--repeat", type=number_from(int, 1), default=1, help="number of times everything is measured")
    parser.add_argument(
        "--seed", type=int, help="seed of prompts and arrivals; without it a new one is drawn each time"
    )
    _add_targets(parser.add_argument_group("what is measured"))
    _add_load(parser.add_argument_group("how it is measured"))


def _add_targets(group: Group) -> None:
    group.add_argument("--url", help="measure the server at this http:// or https:// address instead of starting one")
    group.add_argument(
        "--url-model", default="", help="name of that server's model; without it the first that it lists"
    )
    _add_key(group, "--api-key", "that server", SERVER_KEY)
    group.add_argument("--peer", metavar="URL", help="measure this server in turn with the other, A B A B, and compare")
    group.add_argument("--peer-model", default="", help="name of the peer's model; without it the first that it lists")
    _add_key(group, "--peer-api-key", "the peer", PEER_KEY)
    group.add_argument(
        "--ca", default="", metavar="FILE", help="PEM file of the certificates that are trusted for https"
    )
    group.add_argument("--names", type=_names, metavar="A,B", help="names of the two in tables, plot and JSON")
    group.add_argument("--plot", metavar="FILE", help="write an SVG plot of throughput and latency against the load")


def _add_key(group: Group, name: str, server: str, variable: str) -> None:
    """Declare the two arguments of a key."""
    group.add_argument(
        f"{name}-file", default="", metavar="FILE", help=f"file of the API key of {server}, instead of {variable}"
    )
    group.add_argument(
        name,
        default="",
        metavar="KEY",
        help=f"API key sent to {server} as a bearer token; other users of the machine can see it here, so that "
        f"the environment variable {variable} or a file is better",
    )


def _add_load(group: Group) -> None:
    count, seconds = number_from(int, 1), number_from(float, 0.0)
    group.add_argument("--streams", type=list_of(count), default=(1, 8, 32), help="numbers of clients, such as 1,8,32")
    group.add_argument("--rounds", type=count, default=2, help="answers that each client reads")
    group.add_argument(
        "--rate",
        type=list_of(number_from(float, 0.001)),
        help="arrivals per second, such as 1,2,4, instead of clients: an open loop",
    )
    group.add_argument("--requests", type=count, default=64, help="arrivals at each rate")
    group.add_argument("--prompt-words", type=count, default=64, help="words in a prompt")
    group.add_argument(
        "--prompt-tokens", type=count, default=0, help="exact number of tokens in a prompt, instead of words"
    )
    group.add_argument(
        "--shared-words", type=number_from(int, 0), default=0, help="words of a system prompt that all requests share"
    )
    group.add_argument("--output-tokens", type=count, default=64, help="tokens in an answer")
    group.add_argument(
        "--prefill-words",
        type=number_from(int, 0),
        help="words in a prompt of the prefill run before each closed loop; 0: no prefill run "
        f"({PREFILL_WORDS}, and 0 with --url or --peer)",
    )
    group.add_argument(
        "--warm-up", type=number_from(int, 0), default=1, help="requests before each run that do not count"
    )
    group.add_argument("--pause-s", type=seconds, default=0.0, help="seconds of rest before each run")
    group.add_argument("--limit-s", type=seconds, default=300.0, help="seconds after which a request counts as failed")


def load_plan(arguments: argparse.Namespace) -> LoadPlan:
    """Return what `tlserve bench` measures."""
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    workload = Workload(
        prompt_words=arguments.prompt_words,
        prompt_tokens=arguments.prompt_tokens,
        shared_words=arguments.shared_words,
        output_tokens=arguments.output_tokens,
    )
    return LoadPlan(
        loads=_loads(arguments, seed),
        workload=workload,
        prefill_words=_prefill_words(arguments),
        rounds=arguments.rounds,
        requests=arguments.requests,
        repeats=arguments.repeat,
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


def number_from(kind: Callable[[str], T], least: T) -> Callable[[str], T]:
    """Return a parser of numbers that are at least `least`."""

    def read(text: str) -> T:
        value = kind(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    read.__name__ = "number"
    return read


def list_of(read: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a parser of values with commas between them."""

    def read_all(text: str) -> tuple[T, ...]:
        return tuple(read(part) for part in text.split(","))

    read_all.__name__ = "list of numbers"
    return read_all


def _names(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second) or first == second:
        raise argparse.ArgumentTypeError(f"{text!r} is not two different names with a comma between them")
    return first, second
