"""The tensors of an encoder's file as float32 arrays, by the names of their slots.

`decoder.storage.Storage` says how a file stores them. A tensor that is missing, unknown or of a wrong shape refuses the
model; parts that a vector does not need (a pooler, a head that predicts tokens) are ignored by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.model.decoder.slots import TensorRole, TensorSlot
from tlserve.model.decoder.storage import Storage
from tlserve.model.decoder.stored_slots import interleaved
from tlserve.model.decoder.weights import TensorSource
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.slots import encoder_slots
from tlserve.model.tensor_shapes import check_shapes

F32 = NDArray[np.float32]


@attrs.frozen(eq=False)
class EncoderWeights:
    """All arrays by slot; `identity`: a hash of the files that they came from."""

    arrays: Mapping[str, F32]
    identity: str

    @property
    def parameters(self) -> int:
        """Return how many numbers there are."""
        return sum(array.size for array in self.arrays.values())


@attrs.frozen
class _TensorRows:
    """Rows of a tensor: of all the slots in it, this one begins at row `start`."""

    tensor: str
    start: int
    slot: TensorSlot


def read_encoder_weights(
    encoder: Encoder, source: TensorSource, storage: Storage, identity: str, others: frozenset[str] = frozenset()
) -> EncoderWeights:
    """Read every slot; raises `ModelRefused`. `others`: tensors of a head, which are read elsewhere."""
    found = source.shapes()
    prefix = name_prefix(found, storage.names["embedding"])
    places = dict(_places(encoder, storage, prefix))
    expected: dict[str, tuple[int, ...]] = {}
    for place in places.values():
        rows = place.slot.shape[0] + expected.get(place.tensor, (0,))[0]
        expected[place.tensor] = (rows, *place.slot.shape[1:])
    check_shapes(expected, found)
    for name in sorted(found.keys() - expected.keys() - others):
        if not name.endswith(storage.ignored):
            raise ModelRefused(
                f"the tensor {name[:100]!r} is not part of the architecture {encoder.architecture} as served here"
            )
    return EncoderWeights({slot: _read(source, place, storage) for slot, place in places.items()}, identity)


def name_prefix(names: Mapping[str, object], embedding: str) -> str:
    """Return what stands before the names of the encoder's tensors: "" or a name such as "roberta."."""
    tensor = f"{embedding}.weight"
    found = [name for name in names if name == tensor or name.endswith(f".{tensor}")]
    return min(found, key=len).removesuffix(tensor) if found else ""


def _places(encoder: Encoder, storage: Storage, prefix: str) -> Iterator[tuple[str, _TensorRows]]:
    slots = encoder_slots(encoder)
    fused = {part: (stem, parts) for stem, parts in storage.fused.items() for part in parts}
    for name, slot in slots.items():
        layer, part = name.split(".", 1) if name[0].isdigit() else ("", name)
        base, kind = part.removesuffix(".bias"), "bias" if part.endswith(".bias") else "weight"
        stem, parts = fused.get(base, (storage.names.get(base, ""), (base,)))
        before = [f"{layer}.{p}{'.bias' if kind == 'bias' else ''}" for p in parts[: parts.index(base)]]
        start = sum(slots[one].shape[0] for one in before)
        yield name, _TensorRows(f"{prefix}{stem.format(layer)}.{kind}", start, slot)


def _read(source: TensorSource, place: _TensorRows, storage: Storage) -> F32:
    end = place.start + place.slot.shape[0]
    rows = source.rows(place.tensor, 0, end)[place.start :]
    if storage.less_one and place.slot.role is TensorRole.NORM:
        rows = rows + np.float32(1)
    if storage.half_split and place.slot.turned:
        rows = interleaved(rows, place.slot.head, place.slot.turned)
    return np.ascontiguousarray(rows, np.float32)
