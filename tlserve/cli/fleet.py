"""`tlserve fleet`: the head of a fleet; `status`: the state of its nodes; `control`: the control process of a Ray cluster.

Owns the command that starts a node on this machine, and the order: settings, logs, the head. Does not know how a head works
(`tlserve.programs.fleet_head`), which is imported only when the settings are valid.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tlserve.cli.settings_arguments import add_settings_arguments, settings_of
from tlserve.config.machine import SHARE_OF_MEMORY, available_memory_bytes, usable_cores
from tlserve.config.settings import Settings
from tlserve.errors import SettingsError

if TYPE_CHECKING:
    from tlserve.programs.fleet_head import OwnNodes

_MOST_NODES = 64

RAY_WORKER_PORTS = range(10002, 20000)
"""The ports that Ray 2 reserves: minimum and maximum worker port of `ray start`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("serve", "status", "control"),
        default="serve",
        help="start a head, show the state of a head's nodes, or be the control process of a Ray cluster at fleet.ray_address",
    )
    add_settings_arguments(parser)
    parser.add_argument(
        "--nodes",
        type=_count,
        default=0,
        metavar="N",
        help="start this many nodes on this machine, and end them with the head",
    )
    parser.add_argument("--json", action="store_true", help="status: print it as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a stop signal, or print the status; return the exit code. Raises `OperatorError`."""
    settings = settings_of(arguments)
    if arguments.action == "status":
        from tlserve.cli.fleet_status import show_status

        return show_status(settings.engine.health_listen, as_json=arguments.json)
    from tlserve.telemetry.logs import set_up_logs

    set_up_logs(settings.log.level, form=settings.log.format)
    if arguments.action == "control":
        return _run_control(settings)
    from functools import partial

    from tlserve.programs.fleet_head import load_head
    from tlserve.programs.server import run as run_server

    return run_server(settings, partial(load_head, settings, own_nodes(arguments, settings)))


def _run_control(settings: Settings) -> int:
    """Run a control process until a stop signal; write the token's file if there is none."""
    from functools import partial
    from pathlib import Path

    import trio

    from tlserve.config.addresses import parse_address
    from tlserve.fleet.ray.processes import make_token_file
    from tlserve.programs.ray.control import serve_control
    from tlserve.programs.ray.program import ray_settings

    port = parse_address(settings.fleet.ray_address).port if settings.fleet.ray_address else 0
    if port in RAY_WORKER_PORTS:
        raise SettingsError((f"fleet.ray_address: Ray reserves port {port} for its workers; use one such as 6379",))
    if settings.fleet.ray_token_file:
        make_token_file(Path(settings.fleet.ray_token_file))
    return trio.run(partial(serve_control, ray_settings(settings.fleet), port=port))


def own_nodes(arguments: argparse.Namespace, settings: Settings) -> OwnNodes | None:
    """Return the nodes to start here, None for none; together they use the cores and memory of one server."""
    if not arguments.nodes:
        return None
    from tlserve.programs.fleet_head import OwnNodes

    engine = settings.engine
    share = {
        "threads": engine.threads or max(1, usable_cores() // arguments.nodes),
        "kv_memory_bytes": engine.kv_memory_bytes or available_memory_bytes() // SHARE_OF_MEMORY // arguments.nodes,
    }
    command = node_command(arguments, [f"{key}={value}" for key, value in share.items()])
    return OwnNodes(count=arguments.nodes, command=command, key=secrets.token_urlsafe(32))


def node_command(arguments: argparse.Namespace, share: Sequence[str]) -> tuple[str, ...]:
    """Return the command of one node: the head's arguments about the model, on a free port of this machine."""
    given = [f"--config={arguments.config}"] if arguments.config else []
    given += [f"--model={arguments.model}"] if arguments.model else []
    given += [f"--kernels={arguments.kernels}"] if arguments.kernels else []
    given += [f"--set={key}={value}" for key, value in arguments.pairs]
    own = ("http_listen=127.0.0.1:0", "health_listen=", "tls.certificate=", "tls.key=", "log.format=json", *share)
    return (sys.executable, "-m", "tlserve", "node", "--until-stdin-ends", *given, *(f"--set={pair}" for pair in own))


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_NODES):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_MOST_NODES}")
    return int(text)
