"""A parser of arguments that says what it does not understand in one line, as every other fault is told.

Owns the words around argparse's own. Refuses to know any argument.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import NoReturn

from tlserve.cli import exit_codes


class OneLineParser(argparse.ArgumentParser):
    """Parse the arguments of `tlserve NAME`; a fault is one line on standard error and the exit code for usage."""

    def error(self, message: str) -> NoReturn:
        """Tell the fault and exit."""
        line = message if message.endswith("?") else f"{message}; `{self.prog} --help` shows what there is"
        self.exit(exit_codes.USAGE, f"tlserve: {line}\n")

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse `arguments`; one that is not known gets the nearest one that is."""
        parsed, unknown = self.parse_known_args(arguments)
        if unknown:
            self.error(f"there is no argument {unknown[0]!r}{self._nearest(unknown[0])}")
        return parsed

    def _nearest(self, unknown: str) -> str:
        known = re.findall(r"--[\w-]+", self.format_help())
        close = difflib.get_close_matches(unknown.partition("=")[0], known, n=1)
        return f", did you mean {close[0]!r}?" if close else ""
