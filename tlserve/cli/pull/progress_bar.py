"""The progress of a pull on standard error: a bar on a terminal, otherwise a line for each stage."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from tlserve.cli.pull.fetch_model import FETCH, UNPACK, WAIT

_SAID = {WAIT: "waiting for another pull of", FETCH: "fetching", UNPACK: "unpacking"}


class ProgressBar:
    """One bar for each stage of one model: a context manager whose `report` takes the progress."""

    def __init__(self, name: str, console: Console | None = None) -> None:
        self._name = name
        self._console = console or Console(stderr=True)
        self._tasks: dict[str, TaskID] = {}
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        # no thread refreshes the bar: `report` is called often enough
        self._progress = Progress(*columns, console=self._console, auto_refresh=False)

    def __enter__(self) -> ProgressBar:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def report(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` bytes of `stage` are done."""
        if stage not in self._tasks:
            self._begin(stage, total)
        self._progress.update(self._tasks[stage], completed=done, refresh=self._console.is_terminal)

    def _begin(self, stage: str, total: int) -> None:
        said = f"{_SAID[stage]} {self._name}"
        self._tasks[stage] = self._progress.add_task(said, total=total or None)
        if not self._console.is_terminal:
            self._console.print(f"{said} ({total / 1e6:.0f} MB)" if total else said, highlight=False)
