"""What a person sees of a bench: a bar while it runs, a table when it is done.

Owns the columns. The bar goes to standard error, the table to standard output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tlserve.bench.figures import Figures
from tlserve.bench.run import Plan

COLUMNS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("streams", lambda row: str(row.streams)),
    ("prefill tokens/s", lambda row: f"{row.prefill_tokens_per_s:.0f}"),
    ("output tokens/s", lambda row: f"{row.decode_tokens_per_s:.1f}"),
    ("first token p50 ms", lambda row: f"{row.first_token_p50_ms:.0f}"),
    ("p99", lambda row: f"{row.first_token_p99_ms:.0f}"),
    ("per token p50 ms", lambda row: f"{row.per_token_p50_ms:.1f}"),
    ("p99", lambda row: f"{row.per_token_p99_ms:.1f}"),
    ("step outside forward", lambda row: "-" if row.outside_forward is None else f"{row.outside_forward:.1%}"),
)


@contextmanager
def progress(plan: Plan) -> Iterator[tuple[Plan, Callable[[], None]]]:
    """Show a bar for the block; give the plan back with the function that moves the bar by one request."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"requests to {plan.model}", total=plan.requests)
        yield plan, lambda: bar.advance(task)


def print_table(rows: Sequence[Figures]) -> None:
    """Print one row for each number of streams."""
    table = Table()
    for name, _ in COLUMNS:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(show(row) for _, show in COLUMNS))
    Console().print(table)
