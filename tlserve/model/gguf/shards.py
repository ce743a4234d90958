"""A model that is split over several files: which files they are, and whether they belong together.

Reads metadata, opens nothing. Source: the loader of llama.cpp (`llama-model-loader.cpp`), which knows the keys `split.*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tlserve.errors import ModelRefused
from tlserve.model.fields import Fields
from tlserve.model.gguf.shard_names import shard_names

COUNT, NUMBER, TENSORS = "split.count", "split.no", "split.tensors.count"
MOST_SHARDS = 1024
MOST_NUMBER = 65_535


def other_shards(path: Path, metadata: Mapping[str, object]) -> list[str]:
    """Return the names of the files after the first one, `path`; raises `ModelRefused` where one is missing."""
    fields = Fields(metadata, "")
    count = fields.integer(COUNT, 0, MOST_NUMBER, default=1)
    if count <= 1:
        return []
    if count > MOST_SHARDS:
        raise fields.refusal(COUNT, f"is {count}; models in at most {MOST_SHARDS} files are served")
    names = shard_names(path.name, count)
    number = fields.integer(NUMBER, 0, MOST_NUMBER)
    if number != 0:
        first = names[0] if names else f"the one whose name ends in -00001-of-{count:05d}.gguf"
        raise ModelRefused(f"this is file {number + 1} of the {count} of a model: give the first one, {first}")
    if names is None or path.name != names[0]:
        raise ModelRefused(
            f"the model is in {count} files, so the name of the first one must end in -00001-of-{count:05d}.gguf"
        )
    missing = [name for name in names[1:] if not path.with_name(name).is_file()]
    if missing:
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelRefused(
            f"the model is in {count} files, of which {len(missing)} are not in the folder: {', '.join(missing[:3])}{rest}"
        )
    return names[1:]


def check_shard(name: str, metadata: Mapping[str, object], number: int, first: Mapping[str, object]) -> None:
    """Refuse the file `name` unless it is the one with this number, counted from 0, of the model of the `first` file."""
    fields = Fields(metadata, f"{name}: ")
    own, count = fields.integer(NUMBER, 0, MOST_NUMBER), fields.integer(COUNT, 0, MOST_NUMBER, default=0)
    if own != number:
        raise fields.refusal(NUMBER, f"is {own}, but this is the file with number {number}: the files are mixed up")
    if count and count != first[COUNT]:
        raise fields.refusal(COUNT, f"is {count}, but the first file has {first[COUNT]}: it is a file of another model")


def check_count(metadata: Mapping[str, object], found: int) -> None:
    """Refuse a split model that has more or fewer tensors than its first file says."""
    fields = Fields(metadata, "")
    if fields.integer(COUNT, 0, MOST_NUMBER, default=1) > 1:
        expected = fields.integer(TENSORS, 0, 1 << 31, default=found)
        if expected != found:
            raise fields.refusal(TENSORS, f"is {expected}, but the files have {found}: fetch all files again")
