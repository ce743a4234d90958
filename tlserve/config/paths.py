"""The cache of pulled models: its folder, its layout, and finding models in it.

Owns the layout. A model of tlserve's catalogue is `<cache>/<name>/v<number>/<name>.gguf`, or with a config.json the folder
`<cache>/<name>/v<number>/` itself; a model of a hub is the folder `<cache>/<org>--<name>/v<number>/`. Next to the files of each
model is `source.json`, which says where they came from. The folder is put in its place by one rename at the end, so that a model
in the cache is complete. Does not know how a model gets there (`tlserve.cli.pull.fetch_model`, `tlserve.cli.pull.hub_pull`).
Source for the default folder: the XDG base directory specification 0.8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

from tlserve.config.environment import MODEL_CACHE, process_environ
from tlserve.config.hub_names import HubName, parse_hub_name
from tlserve.errors import OperatorError

SOURCE = "source.json"
_MAX_SOURCE_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"v([0-9]{1,9})")


def model_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder of the cache: $TL_MODEL_CACHE, else $XDG_CACHE_HOME/tlserve/models, else under ~/.cache.

    Raises `OperatorError` where there is no home folder either.
    """
    env = process_environ() if environ is None else environ
    if own := env.get(MODEL_CACHE):
        return Path(own).expanduser()
    xdg = env.get("XDG_CACHE_HOME", "")
    # The specification requires that a relative path is ignored.
    base = Path(xdg) if Path(xdg).is_absolute() else _home(env) / ".cache"
    return base / "tlserve" / "models"


def _home(environ: Mapping[str, str]) -> Path:
    if home := environ.get("HOME"):
        return Path(home)
    try:
        return Path.home()
    except RuntimeError:
        raise OperatorError("this user has no home folder for the model cache: set " + MODEL_CACHE) from None


def whole_model(place: Path) -> Path | None:
    """Return the model in the version folder `place`: its GGUF file or the folder itself; None if it is not complete."""
    name = place.parent.name
    gguf = place / f"{name}.gguf"
    if gguf.is_file():
        return gguf
    is_directory = "--" in name or (place / "config.json").is_file()
    return place if is_directory and (place / SOURCE).is_file() else None


@attrs.frozen
class CachedModel:
    """One version of a pulled model. `name` is its name for `--model`, `path` its GGUF file or its folder."""

    name: str
    version: str
    path: Path
    source: Mapping[str, object]

    def is_of(self, revision: str) -> bool:
        """Say whether this version was pulled as `revision`, or from a commit whose hash begins with it."""
        commit = str(self.source.get("commit", ""))
        return self.source.get("revision") == revision or (len(revision) >= 7 and commit.startswith(revision))


def find_model(name: str, environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the GGUF file or the folder of the pulled model `name` in its highest version, or None if there is none.

    A cache that cannot be read counts as empty, so that a model from elsewhere can still be served.
    """
    hub_name = parse_hub_name(name)
    if hub_name is None and not _NAME.fullmatch(name):
        return None
    try:
        cache = model_cache_dir(environ)
        found = versions_of(cache, name if hub_name is None else hub_name.folder)
        matching = (m for m in found if not (hub_name and hub_name.revision) or m.is_of(hub_name.revision))
        return next((model.path for model in matching), None)
    except (OSError, OperatorError):
        return None


def cached_models(cache: Path) -> list[CachedModel]:
    """Return every version of every model in `cache`, by name, highest version first; none if there is no cache."""
    folders = sorted(entry.name for entry in cache.iterdir() if _NAME.fullmatch(entry.name)) if cache.is_dir() else []
    return [model for folder in folders for model in versions_of(cache, folder)]


def versions_of(cache: Path, folder: str) -> Iterator[CachedModel]:
    """Yield the complete versions in one folder of the cache, highest first."""
    org, mark, name = folder.partition("--")
    called = HubName(org, name).repository if mark else folder
    for version in _versions(cache / folder):
        place = cache / folder / version
        path = whole_model(place)
        if path is not None:
            yield CachedModel(called, version, path, _read_source(place / SOURCE))


def next_version(cache: Path, folder: str) -> str:
    """Return the name of a version above all versions in the folder, complete or not."""
    highest = next(iter(_versions(cache / folder)), "v0")
    return f"v{int(highest[1:]) + 1}"


def _read_source(path: Path) -> Mapping[str, object]:
    """Return the contents of source.json; a damaged one counts as empty, because no model of the catalogue depends on it."""
    try:
        document = json.loads(path.read_bytes()[:_MAX_SOURCE_BYTES])
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _versions(folder: Path) -> list[str]:
    """Return the names of the version folders, highest first; none if `folder` is not there."""
    if not folder.is_dir():
        return []
    found = [match for entry in folder.iterdir() if (match := _VERSION.fullmatch(entry.name))]
    return [match[0] for match in sorted(found, key=lambda match: int(match[1]), reverse=True)]
