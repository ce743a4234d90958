"""Command lines and exit codes."""

from tlserve.cli.entry import main, trio_run

__all__ = ["main", "trio_run"]
