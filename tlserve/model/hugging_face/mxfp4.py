"""Experts in MXFP4, as gpt-oss checkpoints store them, as tensors of GGML's type.

A checkpoint has two tensors of bytes for each part: `<part>_blocks` (experts, rows, blocks, 16), whose byte j has number 2 j in
its low nibble and 2 j + 1 in its high one, and `<part>_scales` (experts, rows, blocks). Here they are one tensor
`<part>_blocks` (experts, rows, inputs), whose rows are those of GGML: of each block the scale, then number j in the low nibble of
byte j and j + 16 in the high one. Knows nothing else of an architecture. Source: the converter of llama.cpp for gpt-oss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.kernels.reference.blocks import BLOCK, MXFP4_BYTES, MXFP4_KIND, as_floats, unpack
from tlserve.model.decoder.weights import TensorSource
from tlserve.model.hugging_face.weights import HfWeights

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
Shape = tuple[int, ...]

_BLOCKS, _SCALES = "_blocks", "_scales"


@attrs.frozen(eq=False)
class Mxfp4Source:
    """A `TensorSource` over `files`, those of a checkpoint. It keeps the two tensors that were asked for last."""

    files: HfWeights
    _kept: dict[str, U8] = attrs.field(factory=dict, init=False)

    def shapes(self) -> Mapping[str, Shape]:
        """Return the shape of every tensor; both of a pair must be there and fit."""
        found = self.files.shapes()
        shapes: dict[str, Shape] = {}
        for name, shape in found.items():
            if name.endswith(_BLOCKS):
                scales = _scales_of(name)
                if len(shape) != 4 or shape[3] != BLOCK // 2 or found.get(scales) != shape[:3]:
                    raise ModelRefused(
                        f"the tensors {name[:100]!r} and {scales[:100]!r} are not blocks and their scales"
                    )
                shapes[name] = (*shape[:2], shape[2] * BLOCK)
            elif not (name.endswith(_SCALES) and name.removesuffix(_SCALES) + _BLOCKS in found):
                shapes[name] = shape
        return shapes

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows as float32."""
        if not name.endswith(_BLOCKS):
            return self.files.rows(name, start, end)
        return as_floats(unpack(MXFP4_KIND, self.stored(name)[1][start:end])).values

    def stored(self, name: str) -> tuple[int, U8]:
        """Return GGML's type number and the bytes of the rows: a copy."""
        if not name.endswith(_BLOCKS):
            return self.files.stored(name)
        if name not in self._kept:
            if len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            self._kept[name] = self._joined(name)
        return MXFP4_KIND, self._kept[name]

    def _joined(self, name: str) -> U8:
        """Return both tensors in GGML's order, (rows, blocks * 17)."""
        experts, count, blocks, _ = self.files.home[name].tensors[name].shape
        pairs = self.files.raw(name).reshape(experts * count, blocks, BLOCK // 2)
        joined = np.empty((*pairs.shape[:2], MXFP4_BYTES), np.uint8)
        joined[..., 0] = self.files.raw(_scales_of(name)).reshape(experts * count, blocks)
        numbers = np.stack([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-1).reshape(*pairs.shape[:2], BLOCK)
        joined[..., 1:] = numbers[..., : BLOCK // 2] | numbers[..., BLOCK // 2 :] << np.uint8(4)
        return joined.reshape(len(joined), math.prod(joined.shape[1:]))


def _scales_of(name: str) -> str:
    return name.removesuffix(_BLOCKS) + _SCALES


def with_mxfp4(files: HfWeights) -> TensorSource:
    """Return the tensors of a checkpoint, with experts in MXFP4 as one tensor each where it has any."""
    return Mxfp4Source(files) if any(name.endswith(_BLOCKS) for name in files.home) else files
