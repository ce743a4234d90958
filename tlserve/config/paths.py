"""Where pulled models lie: the folder of the cache, its layout, and finding a model in it.

Owns the layout `<cache>/<name>/v<number>/<name>.gguf`, with `source.json` beside it. Refuses to know how a model gets there
(`tlserve.cli.fetch_model`) and what is in it. The GGUF file is put in its place by one rename, last, so that a file that
is there is whole. Source for the default folder: the XDG base directory specification 0.8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tlserve.config.environment import process_environ
from tlserve.errors import OperatorError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"v([0-9]{1,9})")


def model_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the cache: $TL_MODEL_CACHE, else $XDG_CACHE_HOME/tlserve/models, else under ~/.cache.

    Raises `OperatorError` where there is no home folder either.
    """
    env = process_environ() if environ is None else environ
    if own := env.get("TL_MODEL_CACHE"):
        return Path(own).expanduser()
    xdg = env.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path there is to be ignored.
    base = Path(xdg) if Path(xdg).is_absolute() else _home(env) / ".cache"
    return base / "tlserve" / "models"


def _home(environ: Mapping[str, str]) -> Path:
    if home := environ.get("HOME"):
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        raise OperatorError("this user has no home folder to keep models in: set TL_MODEL_CACHE") from None


def model_file(cache: Path, name: str, version: str) -> Path:
    """Return where the GGUF file of `name` in `version` ("v1") lies, whether it is there or not."""
    return cache / name / version / f"{name}.gguf"


def find_model(name: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the GGUF file of the pulled model `name` in its highest version, or None if there is none to be seen.

    A cache that may not be looked into holds nothing for us: a model from elsewhere must still be served.
    """
    if not _NAME.fullmatch(name):
        return None
    try:
        cache = model_cache_dir(environ)
        files = [model_file(cache, name, version) for version in _versions(cache / name)]
        return next((file for file in files if file.is_file()), None)
    except (OSError, OperatorError):
        return None


def _versions(folder: Path) -> list[str]:
    """Return the names of the version folders, highest first; none if `folder` is not there."""
    if not folder.is_dir():
        return []
    found = [match for entry in folder.iterdir() if (match := _VERSION.fullmatch(entry.name))]
    return [match[0] for match in sorted(found, key=lambda match: int(match[1]), reverse=True)]
