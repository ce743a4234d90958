"""`tlserve rm NAME`: remove a pulled model from the model cache, all its versions or that of a revision.

Owns the question and the removal. The layout of the cache decides what a name means: nothing outside the cache can be named, and
links are not followed. A model disappears by one rename, before its files are deleted.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import uuid
from pathlib import Path

from tlserve.cli.models import megabytes, size_below
from tlserve.config.hub_names import HubName, parse_hub_name
from tlserve.config.paths import CachedModel, cached_models, model_cache_dir
from tlserve.errors import ModelMissing, OperatorError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "name", help="a name that `tlserve models` lists, with @REVISION for one version of a model of a hub"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(arguments: argparse.Namespace) -> int:
    """Remove the model and return 0, or 1 if the user declined; raises `ModelMissing`."""
    cache = model_cache_dir()
    models = _named(arguments.name, cache)
    folders = [_folder_of(model, cache) for model in models]
    size = sum(size_below(folder) for folder in folders)
    said = f"{arguments.name} ({', '.join(model.version for model in models)}; {megabytes(size)})"
    if not arguments.yes and not _confirmed(f"remove {said} from {cache}?"):
        print("nothing was removed")
        return 1
    for folder in folders:
        _remove(folder, cache)
    print(f"removed {said}")
    return 0


def _named(name: str, cache: Path) -> list[CachedModel]:
    """Return the versions that `name` stands for."""
    hub_name = parse_hub_name(name) or HubName("", "")
    called = hub_name.repository if hub_name.name else name
    models = [model for model in cached_models(cache) if model.name == called]
    if hub_name.revision:
        models = [model for model in models if model.is_of(hub_name.revision)]
    if not models:
        raise ModelMissing(f"there is no model {name!r} in {cache}; `tlserve models` lists the models")
    return models


def _folder_of(model: CachedModel, cache: Path) -> Path:
    """Return the folder of the version; refuses a folder that is a link or outside the cache."""
    folder = model.path if model.path.is_dir() else model.path.parent
    if folder.is_symlink() or folder.parent.is_symlink() or folder.resolve().parent.parent != cache.resolve():
        raise OperatorError(f"{folder} is a link to another place; remove it by hand")
    return folder


def _confirmed(question: str) -> bool:
    """Ask on the terminal; raises `OperatorError` if there is no terminal."""
    if not sys.stdin.isatty():
        raise OperatorError(f"{question} There is no terminal for the answer: use --yes")
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _remove(folder: Path, cache: Path) -> None:
    doomed = cache / ".downloads" / f"removed-{uuid.uuid4().hex}"
    doomed.parent.mkdir(exist_ok=True)
    folder.rename(doomed)
    if not any(folder.parent.iterdir()):
        folder.parent.rmdir()
    shutil.rmtree(doomed)
