"""`tlserve node`: a server that is a node of a fleet, or, with --join, an actor of a Ray cluster.

Owns the two ways to be a node: with the routes that heads use over HTTP, and by joining a cluster. Does not know how they work.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket

import attrs

from tlserve.cli.settings_arguments import add_settings_arguments, settings_of
from tlserve.config.settings import Settings

_STANDARD_INPUT = 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_settings_arguments(parser)
    parser.add_argument(
        "--join",
        metavar="HOST:PORT",
        help="be an actor of the Ray cluster with its control process there, instead of a server",
    )
    parser.add_argument(
        "--name", help="with --join: name of this node for heads (default: the name of this machine and a number)"
    )
    parser.add_argument(
        "--until-stdin-ends",
        action="store_true",
        help="end when standard input ends, so that the node does not outlive the process that started it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until a stop signal and return the exit code; raises `OperatorError` if the node cannot start."""
    settings = as_node(settings_of(arguments))
    from tlserve.telemetry.logs import set_up_logs

    set_up_logs(settings.log.level, form=settings.log.format)
    if arguments.join:
        return _run_actor(settings, arguments.join, arguments.name or _own_name())
    from tlserve.programs.hosted_model import wait_forever
    from tlserve.programs.server import run as run_server

    return run_server(settings, until=stdin_ended if arguments.until_stdin_ends else wait_forever)


def _run_actor(settings: Settings, address: str, name: str) -> int:
    import trio

    from tlserve.programs.ray.node import serve_node
    from tlserve.programs.ray.program import ray_settings

    return trio.run(serve_node, settings, ray_settings(settings.fleet), address, name)


def _own_name() -> str:
    """Return a name that no other node has."""
    return f"{socket.gethostname()}-{secrets.token_hex(3)}"


def as_node(settings: Settings) -> Settings:
    """Return the settings with the routes of the fleet switched on."""
    return attrs.evolve(settings, fleet=attrs.evolve(settings.fleet, internal=True))


async def stdin_ended() -> str:
    """Return when standard input has ended."""
    import trio

    async with trio.lowlevel.FdStream(os.dup(_STANDARD_INPUT)) as stream:
        while await stream.receive_some():
            pass
    return "the process that started this node has ended"
