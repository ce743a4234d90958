"""`tlserve serve`: settings from file, environment and arguments, then the server.

Owns the order: settings, logs, the model if it must be fetched, the server. Does not know how a server is built
(`tlserve.programs.server`), which is imported only when the settings are valid.
"""

from __future__ import annotations

import argparse
import gc

from tlserve.cli.settings_arguments import add_settings_arguments, settings_of
from tlserve.config.settings import Settings
from tlserve.errors import SettingsError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_settings_arguments(parser)
    parser.add_argument(
        "--pull", action="store_true", help="fetch the named model first if it is not in the model cache"
    )


def refuse_nodes(settings: Settings) -> None:
    """Refuse settings that only the head of a fleet uses; raises `SettingsError`."""
    fleet = settings.fleet
    given = {"nodes": fleet.nodes, "nodes_dns": fleet.nodes_dns, "ray_address": fleet.ray_address}
    names = [f"fleet.{name}" for name, value in given.items() if value]
    if names:
        raise SettingsError((f"{names[0]} is for the head of a fleet: use `tlserve fleet`, or leave the setting out",))


def run(arguments: argparse.Namespace) -> int:
    """Serve until a stop signal and return the exit code; raises `OperatorError` if the server cannot start."""
    settings = settings_of(arguments)
    refuse_nodes(settings)
    from tlserve.telemetry.logs import set_up_logs

    set_up_logs(settings.log.level, form=settings.log.format)
    if arguments.pull:
        from tlserve.cli.pull.command import pull_if_missing

        pull_if_missing(settings.engine.model_dir)
    gc.disable()  # no module becomes garbage: collections would take a tenth of the time of these imports
    from tlserve.programs.server import run as run_server

    gc.enable()
    return run_server(settings)
