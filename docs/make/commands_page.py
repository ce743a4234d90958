"""The page of every command and argument, `docs/reference/cli.md`, made from the parsers.

Owns the text around the tables.
"""

from __future__ import annotations

import argparse

from tlserve.cli.commands import COMMANDS, DEFAULT_COMMAND, Command

_HEAD = f"""\
# Commands

`python -m docs.make` makes this page from the commands. `tlserve COMMAND --help` shows the same. `specs/cli-roles.md` lists the
exit codes.

`tlserve`, `python -m tlserve` and `trio-run tlserve` are the same program. Without a command it runs `tlserve {DEFAULT_COMMAND}`.
`tlserve --version` prints the version.
"""


def commands_page() -> str:
    """Return the page."""
    return _HEAD + "".join(_section(name, command) for name, command in COMMANDS.items())


def _section(name: str, command: Command) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    command.load().add_arguments(parser)
    rows = "".join(_row(action) for action in parser._actions)  # argparse has no public list of them
    table = f"\n| argument | meaning |\n|---|---|\n{rows}" if rows else "\nIt has no arguments.\n"
    epilog = f"\n{parser.epilog}\n" if parser.epilog else ""
    return f"\n## tlserve {name}\n\n{command.about[:1].upper()}{command.about[1:]}.\n{table}{epilog}"


def _row(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}{_value(action)}`" for name in action.option_strings) or f"`{action.dest}`"
    default = "" if action.default in (None, "", False, []) or "default" in (action.help or "") else _default(action)
    return f"| {names} | {(action.help or '').replace('|', chr(92) + '|')}{default} |\n"


def _value(action: argparse.Action) -> str:
    """Return the placeholder of the argument's value, empty for a switch."""
    if action.nargs == 0:
        return ""
    choices = "|".join(map(str, action.choices)) if action.choices else action.dest.upper().replace("_", "-")
    return f" {action.metavar or choices}".replace("|", "\\|")


def _default(action: argparse.Action) -> str:
    shown = ",".join(map(str, action.default)) if isinstance(action.default, tuple) else action.default
    return f" (default `{shown}`)"
