"""The names of the files of a model that is split over several: `NAME-00001-of-00003.gguf` and so on.

Opens no file. Source: `llama_split_path` of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import TypeVar

_NUMBERS = re.compile(r"-([0-9]{5})-of-([0-9]{5})\.gguf")
_NUMBERS_CHARS = len("-00001-of-00003.gguf")
AnyPath = TypeVar("AnyPath", bound=PurePath)


def shard_names(name: str, count: int) -> list[str] | None:
    """Return the names of all `count` files of the model that the file `name` belongs to; None if it is not called so."""
    found = _model_and_count(name)
    if found is None or found[1] != count:
        return None
    return [f"{found[0]}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]


def all_shards_of(name: str) -> list[str]:
    """Return the names of all files of the model that the file `name` belongs to: itself alone if it is not a shard."""
    found = _model_and_count(name)
    return (shard_names(name, found[1]) if found else None) or [name]


def first_shard(paths: Iterable[AnyPath]) -> AnyPath | None:
    """Return the path of the first shard if all of `paths` are shards of one model, else None."""
    given = sorted(paths)
    models = {_model_and_count(path.name) for path in given}
    if len(models) != 1 or None in models:
        return None
    return given[0].with_name(all_shards_of(given[0].name)[0])


def without_number(name: str) -> str:
    """Return the name of a file without `.gguf` and the number of the shard."""
    found = _model_and_count(name)
    return found[0] if found else name.removesuffix(".gguf")


def _model_and_count(name: str) -> tuple[str, int] | None:
    """Return the name of the model and the number of its files; None for a file that is not called like a shard."""
    found = _NUMBERS.fullmatch(name, max(1, len(name) - _NUMBERS_CHARS))
    return (name[: found.start()], int(found[2])) if found else None
