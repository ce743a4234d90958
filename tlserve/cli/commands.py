"""The table of commands: `tlserve NAME ...`, each in its own module, which is imported when the command is called.

Owns the names and one line about each command. A command's module has `add_arguments(parser)` and `run(arguments) -> exit code`;
a new command is a row here and its module.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Protocol, cast

import attrs


class CommandModule(Protocol):
    """The module of a command."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command and return the exit code; raises `TlserveError` for an error that a person can fix."""


@attrs.frozen
class Command:
    """A row: the module and what the command does."""

    module: str
    about: str

    def load(self) -> CommandModule:
        """Import the module."""
        return cast("CommandModule", importlib.import_module(self.module))


DEFAULT_COMMAND = "serve"

COMMANDS = {
    "serve": Command("tlserve.cli.serve", "start a server (the default command)"),
    "fleet": Command("tlserve.cli.fleet", "start the head of a fleet of nodes, or show the state of its nodes"),
    "node": Command("tlserve.cli.node", "start a node of a fleet"),
    "pull": Command("tlserve.cli.pull.command", "fetch a model into the model cache"),
    "models": Command("tlserve.cli.models", "list the models that can be served by name: pulled and built-in ones"),
    "rm": Command("tlserve.cli.rm", "remove a pulled model from the model cache"),
    "chat": Command("tlserve.cli.chat.command", "talk to a model in the terminal, or line by line through pipes"),
    "bench": Command(
        "tlserve.cli.bench.command", "measure tokens per second and latencies of its own server or a running one"
    ),
    "quality": Command("tlserve.cli.quality", "compare the answers of a model in its settings with those in f32"),
    "check-config": Command("tlserve.cli.check_config", "print the settings in effect and the source of each"),
}
