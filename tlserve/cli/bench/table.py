"""What a person sees of a bench: a progress bar while it runs, tables when it is done.

Owns the columns. The bar is written to standard error, the tables to standard output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import attrs
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tlserve.bench.comparison import LoadRun, Ratio, Spread, loads_of, select, spread_of_runs
from tlserve.bench.figures import Figures
from tlserve.bench.load import Closed, Load

Done = Callable[[], None]
Measure = Callable[[Figures], float | None]

NOTHING = "-"


@attrs.frozen
class Column:
    """A column of the table of runs: its head, the format of its numbers, and the measures that share a cell."""

    head: str
    written: Callable[[float], str]
    measures: tuple[Measure, ...]


_WHOLE, _TENTHS, _SHARE = "{:.0f}".format, "{:.1f}".format, "{:.1%}".format


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _times(which: str, *names: str) -> tuple[Measure, ...]:
    return tuple(partial(_time, which, name) for name in names)


def _time(which: str, name: str, run: Figures) -> float | None:
    times = getattr(run, which)
    return None if times is None else getattr(times, name)


COLUMNS = (
    Column("output\ntokens/s", _TENTHS, (lambda run: run.output_tokens_per_s,)),
    Column("prefill\ntokens/s", _WHOLE, (lambda run: run.prefill_tokens_per_s,)),
    Column("first token, ms\np50 p90 p99", _WHOLE, _times("first_token_ms", "p50", "p90", "p99")),
    Column("per token, ms\np50 p90 p99", _three_digits, _times("per_token_ms", "p50", "p90", "p99")),
    Column("whole, ms\np50", _WHOLE, _times("whole_ms", "p50")),
    Column("outside\nforward", _SHARE, (lambda run: run.outside_forward,)),
)
"""With a load and a name of ten letters each, they fit a terminal of 100 columns."""


@contextmanager
def progress(what: str, total: int) -> Iterator[Done]:
    """Show a progress bar for the block; yield the function that advances it by one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def print_runs(runs: Sequence[LoadRun], targets: Sequence[str]) -> None:
    """Print one row for each load and target: medians over the repeats. A column without any value is left out."""
    shown = [column for column in COLUMNS if spread_of_runs(runs, column.measures[0]) is not None]
    rows = [
        [_load_name(load), target, *(_cell(select(runs, target, load), column) for column in shown)]
        for load in loads_of(runs)
        for target in targets
    ]
    print_table(["load", "server", *(column.head for column in shown)], rows)
    _print_errors(runs)
    for target in targets:
        if not all(run.figures.counted for run in runs if run.target == target):
            print(
                f"{target} reported no usage: pieces of text were counted instead of tokens, and prompts were not counted"
            )


def _cell(runs: Sequence[LoadRun], column: Column) -> str:
    return " ".join(_median(runs, column.written, measure) for measure in column.measures)


def _median(runs: Sequence[LoadRun], written: Callable[[float], str], measure: Measure) -> str:
    spread = spread_of_runs(runs, measure)
    return NOTHING if spread is None else written(spread.median)


def _load_name(load: Load) -> str:
    return f"{load.streams} clients" if isinstance(load, Closed) else f"{load.rate:g} a second"


def _print_errors(runs: Sequence[LoadRun]) -> None:
    rows = [
        [_load_name(run.load), run.target, kind, str(count), str(run.figures.requests)]
        for run in runs
        for kind, count in run.figures.errors.items()
    ]
    if rows:
        print_table(["load", "server", "failed with", "requests", "of"], rows)


def print_ratios(ratios: Sequence[Ratio], names: Sequence[str]) -> None:
    """Print the ratios of the first target to the second."""
    if ratios:
        rows = [[_load_name(ratio.load), ratio.measure, written_ratio(ratio.spread)] for ratio in ratios]
        print_table(["load", "measure", f"{names[0]} / {names[1]}: of medians (lowest to highest)"], rows)


def written_ratio(spread: Spread) -> str:
    """Return a ratio of medians with its lowest and its highest value."""
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table at its full width: it is never cut where the output is a pipe or narrow."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, 20 * len(names)) if not console.is_terminal else console.width
    console.print(table)
