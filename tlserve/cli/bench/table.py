"""What a person sees of a bench: a bar while it runs, tables when it is done.

Owns the columns. The bar goes to standard error, the tables to standard output.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import attrs
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.benchmarks.engine.sampling_costs import SamplingCost
from tests.benchmarks.engine.steps import StepFigures
from tests.benchmarks.engine.through_http import ThroughHttp
from tests.benchmarks.http.event_count import EventRate
from tlserve.bench.comparison import Ratio, Run, Spread, loads_of, select, spread_of_runs
from tlserve.bench.figures import Figures
from tlserve.bench.load import Closed, Load

Done = Callable[[], None]
Measure = Callable[[Figures], float | None]

NOTHING = "-"


@attrs.frozen
class Column:
    """A column of the table of runs: its head, how its numbers are written, and what stands side by side in a cell."""

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
"""Together with a load and a name of ten letters each they fit a terminal of 100 columns."""


@contextmanager
def progress(what: str, total: int) -> Iterator[Done]:
    """Show a bar for the block; give the function that moves it by one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def print_runs(runs: Sequence[Run], targets: Sequence[str]) -> None:
    """Print one row for each load and target: medians over the repeats. Columns without any value are left out."""
    shown = [column for column in COLUMNS if spread_of_runs(runs, column.measures[0]) is not None]
    rows = [
        [_load_name(load), target, *(_cell(select(runs, target, load), column) for column in shown)]
        for load in loads_of(runs)
        for target in targets
    ]
    _print_table(["load", "server", *(column.head for column in shown)], rows)
    _print_errors(runs)
    for target in targets:
        if not all(run.figures.counted for run in runs if run.target == target):
            print(f"{target} reported no usage: its pieces were counted, and its prompts were not")


def _cell(runs: Sequence[Run], column: Column) -> str:
    return " ".join(_median(runs, column.written, measure) for measure in column.measures)


def _median(runs: Sequence[Run], written: Callable[[float], str], measure: Measure) -> str:
    spread = spread_of_runs(runs, measure)
    return NOTHING if spread is None else written(spread.median)


def _load_name(load: Load) -> str:
    return f"{load.streams} clients" if isinstance(load, Closed) else f"{load.rate:g} a second"


def _print_errors(runs: Sequence[Run]) -> None:
    rows = [
        [_load_name(run.load), run.target, kind, str(count), str(run.figures.requests)]
        for run in runs
        for kind, count in run.figures.errors.items()
    ]
    if rows:
        _print_table(["load", "server", "failed with", "requests", "of"], rows)


def print_ratios(ratios: Sequence[Ratio], names: Sequence[str]) -> None:
    """Print how the first target stands to the second."""
    if ratios:
        rows = [[_load_name(ratio.load), ratio.measure, _ratio(ratio.spread)] for ratio in ratios]
        _print_table(["load", "measure", f"{names[0]} / {names[1]}: of medians (lowest to highest)"], rows)


def _ratio(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


def print_steps(steps: Sequence[StepFigures], prefill_tokens: int) -> None:
    """Print what the engine does by itself."""
    rows = [
        [
            f"decode, {step.rows} sequences" if step.rows else f"prefill, {prefill_tokens} tokens",
            f"{step.step_ms.median:.2f} ({step.step_ms.low:.2f} to {step.step_ms.high:.2f})",
            f"{step.tokens_per_s.median:.1f}",
            f"{step.outside_forward.median:.1%}",
        ]
        for step in steps
    ]
    _print_table(["work", "ms per step, or per prompt", "tokens/s", "step outside forward"], rows)


def print_sampling(costs: Sequence[SamplingCost]) -> None:
    """Print what each kind of sampling adds to a step."""
    if costs:
        rows = [[cost.kind, str(cost.rows), f"{cost.step_ms.median:.2f}", _ratio(cost.over_greedy)] for cost in costs]
        _print_table(["sampling", "sequences", "ms per step", "over greedy: of medians (lowest to highest)"], rows)


def print_through_http(found: ThroughHttp | None) -> None:
    """Print what a token costs through the server, over what it costs by itself."""
    if found is not None:
        row = [f"{found.engine_ms:.2f}", f"{found.http_ms:.2f}", _ratio(found.ratio)]
        _print_table(["engine, ms per token", "through HTTP", "ratio of medians (lowest to highest)"], [row])


def print_rates(rates: Mapping[str, Sequence[EventRate]]) -> None:
    """Print the events per second of every server."""
    rows = []
    for name, found in rates.items():
        each = [rate.events_per_s for rate in found]
        reader = max(rate.reader_share for rate in found)
        rows.append([name, f"{statistics.median(each):.0f}", f"{min(each):.0f} to {max(each):.0f}", f"{reader:.0%}"])
    _print_table(["server", "events/s", "lowest to highest", "reader's share of a core"], rows)


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table as wide as it is: one that is piped or narrow is never cut."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, 20 * len(names)) if not console.is_terminal else console.width
    console.print(table)
