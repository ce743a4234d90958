"""`tlserve models`: the models that can be served by name, with their sizes and where they came from.

Owns the columns. No model file is opened.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import attrs

from tlserve.config.paths import CachedModel, cached_models, model_cache_dir


@attrs.frozen
class ListedModel:
    """One model that `--model` takes by name."""

    name: str
    version: str
    size_bytes: int
    source: str
    path: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")


def run(arguments: argparse.Namespace) -> int:
    """Print the models and return 0."""
    cache = model_cache_dir()
    listed = [*_built_in(), *(_cached(model) for model in cached_models(cache))]
    if arguments.json:
        print(json.dumps([attrs.asdict(model) for model in listed], indent=2))
    else:
        _print_table(listed, cache)
    return 0


def _built_in() -> Iterator[ListedModel]:
    import tlserve

    folder = Path(tlserve.__file__).parent / "model" / "builtin"
    for path in sorted(entry for entry in folder.iterdir() if entry.is_dir()):
        yield ListedModel(path.name, "", size_below(path), "built in", str(path))


def _cached(model: CachedModel) -> ListedModel:
    origin = str(model.source.get("from", "unknown"))
    commit = str(model.source.get("commit", ""))
    revision = str(model.source.get("revision", ""))
    said = " ".join(part for part in (origin, revision and f"@{revision}", commit[:12]) if part)
    return ListedModel(model.name, model.version, size_below(model.path), said, str(model.path))


def size_below(path: Path) -> int:
    """Return the size of a file, or of all files in a folder."""
    return path.stat().st_size if path.is_file() else sum(p.stat().st_size for p in path.rglob("*") if p.is_file())


def megabytes(size_bytes: int) -> str:
    """Return a size for people."""
    return f"{size_bytes / 1e6:.1f} MB"


def _print_table(listed: list[ListedModel], cache: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(caption=f"the cache is {cache}", caption_justify="left")
    for heading in ("model", "version", "size", "from"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for model in listed:
        table.add_row(model.name, model.version, megabytes(model.size_bytes), model.source)
    Console().print(table)
