"""`tlserve quality`: how near a model's answers are to those of the same model in f32.

Owns the arguments, the table and the document. Does not compute the figures (`tlserve.quality.comparison`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tlserve.cli.settings_arguments import add_settings_arguments, settings_of
from tlserve.config.settings import ACTIVATIONS, EngineSettings
from tlserve.errors import OperatorError

if TYPE_CHECKING:
    from tlserve.model.loaded_model import LoadedModel
    from tlserve.quality.comparison import Comparison

LEAST_TOKENS = 2


@attrs.frozen
class Row:
    """One line of the table: what was computed with, and its figures."""

    activations: str
    kv_precision: str
    kernels: str
    figures: Comparison


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_settings_arguments(parser)
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="compare on this text, in UTF-8, instead of a built-in one"
    )
    parser.add_argument("--tokens", type=_count, default=4096, help="most tokens of the text")
    parser.add_argument(
        "--activations",
        type=_formats,
        metavar="A,B",
        help=f"compare these types of activations ({', '.join(ACTIVATIONS)}) instead of the setting's",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Compare, print and return 0; raises `OperatorError` for a text or a model that cannot be compared."""
    settings = settings_of(arguments).engine
    text = _text(arguments.text)
    from tlserve.telemetry.logs import set_up_logs

    set_up_logs("warning")
    rows = _compared(settings, arguments.activations or (settings.activations,), text, arguments.tokens)
    if arguments.json:
        print(json.dumps({"model": settings.model_dir, "rows": [attrs.asdict(row) for row in rows]}, indent=2))
    else:
        _print_table(rows)
    return 0


def _compared(settings: EngineSettings, formats: Sequence[str], text: str, most: int) -> list[Row]:
    """Load the model in f32 and in each format, and compare them."""
    from tlserve.quality.comparison import compare, pieces_of
    from tlserve.text.tokenizer import build_tokenizer

    exact = attrs.evolve(settings, activations="f32", kv_precision="f32")
    choices = [exact, *(attrs.evolve(settings, activations=each) for each in formats)]
    loaded = [_loaded(choice) for choice in choices]
    tokens = build_tokenizer(loaded[0].metadata).encode(text)[:most]
    if len(tokens) < LEAST_TOKENS:
        raise OperatorError(
            f"the text has {len(tokens)} tokens, and a comparison needs {LEAST_TOKENS}: give a longer one"
        )
    first, *others = (one.model for one in loaded)
    found = compare(first, others, pieces_of(tokens, first.spec.context_tokens))
    return [
        Row(choice.activations, choice.kv_precision, one.model.spec.kernels, figures)
        for choice, one, figures in zip(choices, loaded, found, strict=True)
    ]


def _loaded(settings: EngineSettings) -> LoadedModel:
    from tlserve.programs.local_models import load

    loaded = load(settings)
    if not loaded.generates:
        raise OperatorError(f"the model {loaded.name} makes vectors, not tokens: there is no answer to compare")
    return loaded


def _print_table(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    caption = f"{rows[0].figures.positions} positions; KL in nats against the first row, mean and 99th percentile"
    table = Table(caption=f"{caption}\n{rows[-1].kernels}", caption_justify="left")
    table.add_column("activations")
    for heading in ("KV", "KL", "p99", "same first choice", "perplexity"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.activations, row.kv_precision, *_cells(row.figures))
    Console().print(table)


def _cells(figures: Comparison) -> tuple[str, ...]:
    return (f"{figures.kl:.6f}", f"{figures.kl_p99:.5f}", f"{figures.agreement:.2%}", f"{figures.perplexity:.6g}")


def _text(path: Path | None) -> str:
    """Return the text of the file, or the built-in one; raises `OperatorError`."""
    if path is None:
        from tlserve.quality.sample import SAMPLE

        return SAMPLE
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OperatorError(f"cannot read --text {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise OperatorError(f"--text {path} is not UTF-8: byte {error.start} is wrong; convert the file") from None


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < LEAST_TOKENS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {LEAST_TOKENS} on")
    return int(text)


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in ACTIVATIONS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(ACTIVATIONS)}")
    return names
