"""A parser of arguments that reports a mistake in one line, as every other error is reported.

Owns the messages around those of argparse. Knows no argument.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import NoReturn

from tlserve.cli import exit_codes


class OneLineParser(argparse.ArgumentParser):
    """Parse the arguments of `tlserve NAME`; a mistake is one line on standard error and the exit code for usage."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit."""
        line = message if message.endswith("?") else f"{message}; `{self.prog} --help` lists the arguments"
        self.exit(exit_codes.USAGE, f"tlserve: {line}\n")

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse `arguments`; the message about an unknown one names the nearest known one."""
        parsed, unknown = self.parse_known_args(arguments)
        if unknown:
            self.error(f"there is no argument {unknown[0]!r}{self._nearest(unknown[0])}")
        return parsed

    def _nearest(self, unknown: str) -> str:
        known = re.findall(r"--[\w-]+", self.format_help())
        close = difflib.get_close_matches(unknown.partition("=")[0], known, n=1)
        return f", did you mean {close[0]!r}?" if close else ""
