"""How a file stores the slots of a decoder: its names, rows that share a tensor, heads stored half by half, norms less one.

`Storage` is the table, `StoredSlots` reads a file by it as a `weights.TensorSource` of slots. Knows no architecture.

In Hugging Face checkpoints, and in GGUF files of some architectures, components i and i + n / 2 of the n that turn in a head
are rotated together; here 2 i and 2 i + 1 are (see `kernels.reference.rope`). Scores stay the same, because queries and keys
change in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.slots import TensorRole, TensorSlot, slots
from tlserve.model.decoder.weights import TensorSource
from tlserve.model.tensor_shapes import check_shapes

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Rows = TypeVar("Rows", F32, U8)


@attrs.frozen(kw_only=True)
class Storage:
    """How one kind of file stores one architecture.

    `names`: a slot without the number of its layer -> the stem of the tensor's name, in which {} is that number. `fused`: the
    stem of a tensor -> the slots, again without a number, whose rows it holds one after the other. `half_split`: the halves of
    what turns in a head are stored apart. `less_one`: norms are stored less one. `ignored`: how the names of tensors end that no
    slot needs and that may be there.
    """

    names: Mapping[str, str]
    fused: Mapping[str, tuple[str, ...]] = {}
    half_split: bool = False
    less_one: bool = False
    ignored: tuple[str, ...] = ()


@attrs.frozen
class _Home:
    """Where the rows of a slot are: in the tensor `name`, from row `start` on."""

    name: str
    start: int
    slot: TensorSlot


class StoredSlots:
    """A `weights.TensorSource` of the slots of `decoder`, in the order of the record."""

    def __init__(self, file: TensorSource, decoder: Decoder, storage: Storage) -> None:
        self._file = file
        self._storage = storage
        self._homes = dict(_homes(decoder, storage))
        found = file.shapes()
        expected = _expected(self._homes)
        check_shapes(expected, found)
        for name in sorted(found.keys() - expected.keys()):
            if not name.endswith(storage.ignored):  # a forward pass without it would be another model
                raise ModelRefused(
                    f"the tensor {name[:100]!r} is not part of the architecture {decoder.architecture} as served here"
                )

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every slot; one weight for each head is a vector, as the other norms."""
        return {
            name: (math.prod(home.slot.shape),) if home.slot.role is TensorRole.NORM else home.slot.shape
            for name, home in self._homes.items()
        }

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows of a slot as float32, in order; for a vector, the elements."""
        home = self._homes[name]
        count = home.slot.shape[0]
        whole = self._file.rows(home.name, 0, home.start + count)[home.start : home.start + count]
        if self._storage.less_one and home.slot.role is TensorRole.NORM and not name.endswith(".bias"):
            whole = whole + np.float32(1)
        ordered = self._in_order(whole, home.slot)
        return ordered.reshape(-1)[start:end] if home.slot.role is TensorRole.NORM else ordered[start:end]

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's type number of a matrix and the bytes of its rows, in order."""
        home = self._homes[name]
        kind, rows = self._file.stored(home.name)
        return kind, self._in_order(rows[home.start : home.start + home.slot.shape[0]], home.slot)

    def _in_order(self, rows: Rows, slot: TensorSlot) -> Rows:
        if not (self._storage.half_split and slot.turned):
            return rows
        if rows.ndim == 2 and slot.role is TensorRole.NORM:  # one row for each head
            return interleaved(rows.T, slot.head, slot.turned).T
        return interleaved(rows, slot.head, slot.turned)


def interleaved(heads: Rows, head_size: int, turned: int) -> Rows:
    """Return whole heads of rows, with rows i and i + turned / 2 of each head at 2 i and 2 i + 1; a copy."""
    order = np.arange(head_size)
    order[0:turned:2], order[1:turned:2] = range(turned // 2), range(turned // 2, turned)
    return heads.reshape(-1, head_size, *heads.shape[1:])[:, order].reshape(heads.shape)


def _homes(decoder: Decoder, storage: Storage) -> Iterator[tuple[str, _Home]]:
    all_slots = slots(decoder)
    shared = {part: (stem, parts) for stem, parts in storage.fused.items() for part in parts}
    for name, slot in all_slots.items():
        layer, part = _without_layer(name)
        base = part.removesuffix(".bias")
        ending = ".bias" if part.endswith(".bias") else ".weight"
        stem, parts = shared.get(base, ("", (base,)))
        if not stem and base not in storage.names:
            raise ModelRefused(f"{decoder.architecture} has no name for the tensor {name}")
        before = parts[: parts.index(base)]
        numbers = [f"{layer}.{p}{'.bias' if ending == '.bias' else ''}" for p in before]
        start = sum(all_slots[number].shape[0] for number in numbers)
        yield name, _Home((stem or storage.names[base]).format(layer) + ending, start, slot)


def _without_layer(name: str) -> tuple[str, str]:
    layer, _, part = name.partition(".")
    return (layer, part) if layer.isdigit() else ("", name)


def _expected(homes: Mapping[str, _Home]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the file: the rows of all the slots in it."""
    found: dict[str, tuple[int, ...]] = {}
    for home in homes.values():
        rows = home.slot.shape[0] + found.get(home.name, (0,))[0]
        found[home.name] = (rows, *home.slot.shape[1:])
    return found
