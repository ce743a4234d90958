"""The test at the start: whether the native kernels agree with the reference to the bit, on this machine.

The cases: a product of each kind and depth that the model has, on a few columns; and a whole step of a small decoder with the
model's layers and heads, over random weights of those kinds. They take some milliseconds in total. `build` decides what follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import Model, StepBatch, StepOutput
from tlserve.kernels.reference.blocks import (
    BLOCK,
    BLOCK_FORMATS,
    FLOAT_KINDS,
    KINDS,
    MXFP4_BYTES,
    MXFP4_KIND,
    BlockMatrix,
    unpack,
    values_per_block,
)
from tlserve.kernels.reference.linear import LINEAR, QUANTISE, linear_f32
from tlserve.kernels.reference.super_blocks import SUPER_FORMATS, SUPER_VALUES
from tlserve.model.decoder.native.model import NativeModel
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.decoder.record import Attention, Block, Decoder, Experts, FeedForward, Layer, LayerInput, Mixer
from tlserve.model.decoder.reference import ReferenceModel
from tlserve.model.decoder.slots import TensorRole, slots
from tlserve.model.decoder.weights import StoredMatrix, Weights

F32 = NDArray[np.float32]

_COLUMNS = 48  # of a tested product: more than one pair of panels
_ROWS = 7  # more than one tile of rows
_TOKENS = 19  # more than one tile of keys, and more than one block of the small store
_WINDOW = 5  # so short that rows do not see all keys, nor a whole tile of them
_BLOCK_SIZE = 16
_FLOAT_BYTES = {0: 4, 1: 2, 30: 2}


def disagreement(native: ModuleType, decoder: Decoder, weights: Weights, numerics: Numerics, isa: str) -> str:
    """Return what differs between the native kernels and numpy, or "" where every bit agrees."""
    random = np.random.default_rng(0)
    for matrix in _different(weights):
        if not _products_agree(native, matrix, numerics, isa, random):
            return f"products with weights of GGML type {matrix.kind} and {matrix.inputs} inputs"
    if not _steps_agree(native, decoder, weights, numerics, isa, random):
        return "a step of a small model"
    return ""


def _different(weights: Weights) -> Iterable[StoredMatrix]:
    """Return one matrix for each kind and depth, cut to a few columns."""
    multiplied = [m for name, m in weights.matrices.items() if name != "embedding" or "head" not in weights.matrices]
    found = {(matrix.kind, matrix.inputs): matrix for matrix in multiplied}
    return [
        attrs.evolve(m, outputs=min(m.outputs, _COLUMNS), rows=np.ascontiguousarray(m.rows[:_COLUMNS]))
        for m in found.values()
    ]


def _products_agree(
    native: ModuleType, matrix: StoredMatrix, numerics: Numerics, isa: str, random: np.random.Generator
) -> bool:
    """Compare a product of random rows."""
    reference = unpack(matrix.kind, matrix.rows)
    activations = numerics.activations if isinstance(reference, BlockMatrix) else "f32"
    x = random.standard_normal((1 if activations == "f32" else _ROWS, matrix.inputs)).astype(np.float32)
    out = np.empty((len(x), matrix.outputs), np.float32)
    native.multiply(native.Matrix(matrix.kind, matrix.outputs, matrix.inputs, matrix.rows), x, out, activations, isa)
    with np.errstate(all="ignore"):
        truth = (
            LINEAR[activations](QUANTISE[activations](x), reference)
            if activations != "f32" and isinstance(reference, BlockMatrix)
            else linear_f32(x, reference)
        )
    return _same(out, truth)


def _steps_agree(
    native: ModuleType,
    decoder: Decoder,
    weights: Weights,
    numerics: Numerics,
    isa: str,
    random: np.random.Generator,
) -> bool:
    """Compare a step of a small random decoder with this one's layers and heads, on two threads."""
    kinds = [m.kind for name, m in weights.matrices.items() if name.startswith("0.")]
    small = _small(decoder, *((SUPER_VALUES, SUPER_VALUES) if SUPER_FORMATS.keys() & set(kinds) else (64, 96)))
    drawn = random_weights(small, kinds, random)
    fast = NativeModel(native, small, drawn, numerics, isa=isa, threads=2)
    ours, truth = (_run(model, small) for model in (fast, ReferenceModel(small, drawn, numerics)))
    return _same(ours.logits, truth.logits) and _same(ours.hidden, truth.hidden)


def _small(decoder: Decoder, hidden: int, width: int) -> Decoder:
    """Return `decoder` with few small layers, at least one of each kind that it has, and at most two key heads."""
    layers = list(dict.fromkeys(_small_layer(layer, width) for layer in decoder.layers))
    return attrs.evolve(
        decoder,
        layers=_with_sources((layers * 2)[: max(2, len(layers))]),
        hidden=hidden,
        vocabulary=40,
        context_tokens=min(decoder.context_tokens, 64),
        tied=True,
    )


def _small_layer(layer: Layer, width: int) -> Layer:
    def small_mixer(mixer: Mixer) -> Mixer:
        if isinstance(mixer, FeedForward):
            return attrs.evolve(mixer, width=width)
        if isinstance(mixer, Experts):
            return _small_experts(mixer, width)
        if isinstance(mixer, LayerInput):
            return mixer
        kv_heads = min(mixer.kv_heads, 2)
        heads = mixer.heads // mixer.kv_heads * kv_heads
        return attrs.evolve(mixer, heads=heads, kv_heads=kv_heads, window=_WINDOW if mixer.window else 0)

    def small_block(block: Block) -> Block:
        return attrs.evolve(block, mixers=tuple(small_mixer(mixer) for mixer in block.mixers))

    return Layer(blocks=tuple(small_block(block) for block in layer.blocks))


def _with_sources(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return `layers`, in which attention without keys of its own takes those of the first one with heads of its sizes."""
    stored: list[tuple[int, int]] = []

    def with_source(mixer: Mixer) -> Mixer:
        if not isinstance(mixer, Attention):
            return mixer
        if mixer.kv_from is not None:
            return attrs.evolve(mixer, kv_from=stored.index((mixer.kv_heads, mixer.head_size)))
        stored.append((mixer.kv_heads, mixer.head_size))
        return mixer

    return tuple(
        Layer(blocks=tuple(attrs.evolve(b, mixers=tuple(map(with_source, b.mixers))) for b in layer.blocks))
        for layer in layers
    )


def _small_experts(mixer: Experts, width: int) -> Experts:
    """Return few small experts, still in groups where they are."""
    router = mixer.router
    groups, kept = (4, 2) if router.groups > 1 else (1, 1)
    return attrs.evolve(
        mixer,
        router=attrs.evolve(router, count=8, chosen=min(router.chosen, 3), groups=groups, kept_groups=kept),
        expert=attrs.evolve(mixer.expert, width=width),
        shared=None if mixer.shared is None else attrs.evolve(mixer.shared, width=width),
    )


def random_weights(decoder: Decoder, kinds: list[int], random: np.random.Generator) -> Weights:
    """Return weights of `decoder` whose matrices of a layer take `kinds` in turn, f32 where the rows are not whole blocks."""
    matrices: dict[str, StoredMatrix] = {}
    vectors: dict[str, F32] = {}
    turn = {"": 0}  # how many matrices of a layer were drawn
    for name, slot in slots(decoder).items():
        layer = name.split(".")[0]
        if slot.role is TensorRole.MATRIX:
            matrices[name] = random_matrix(random, kinds[turn.get(layer, 0) % len(kinds)], *slot.shape)
            turn[layer] = turn.get(layer, 0) + 1
        else:
            vectors[name] = random.uniform(0.5, 1.5, int(np.prod(slot.shape))).astype(np.float32)
    return Weights(matrices=matrices, vectors=vectors, hashed=lambda: "random")


def random_matrix(random: np.random.Generator, kind: int, outputs: int, inputs: int) -> StoredMatrix:
    """Return a matrix of random bytes with usual scales; of type F32 where `kind` is not kept or rows are not whole blocks."""
    if kind not in KINDS or inputs % values_per_block(kind):
        kind = 0
    if kind in FLOAT_KINDS:
        values = (random.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)
        return StoredMatrix(kind, outputs, inputs, _float_rows(kind, values))
    if kind in SUPER_FORMATS:
        return StoredMatrix(kind, outputs, inputs, _super_rows(random, kind, outputs, inputs))
    if kind == MXFP4_KIND:
        blocks = random.integers(0, 256, (outputs, inputs // BLOCK, MXFP4_BYTES), np.uint8)
        blocks[..., 0] = random.integers(120, 123, blocks.shape[:2]) - int(np.log2(inputs)) // 2
        return StoredMatrix(kind, outputs, inputs, blocks.reshape(outputs, -1))
    layout = BLOCK_FORMATS[kind]
    blocks = random.integers(0, 256, (outputs, inputs // BLOCK, layout.block_bytes), np.uint8)
    spread = 2.0 ** (1 - min(layout.bits, 8)) / np.sqrt(inputs)
    for start in range(0, 4 if layout.has_minimum else 2, 2):
        scales = (random.uniform(0.5, 4, blocks.shape[:2]) * (spread if start == 0 else -0.5 / np.sqrt(inputs))).astype(
            np.float16
        )
        blocks[..., start : start + 2] = scales[..., None].view(np.uint8)
    return StoredMatrix(kind, outputs, inputs, blocks.reshape(outputs, -1))


def _super_rows(random: np.random.Generator, kind: int, outputs: int, inputs: int) -> NDArray[np.uint8]:
    """Return random super-blocks. Parts of scales reach 63 (127 in Q6_K), quants half of 2 ** bits on either side."""
    layout = SUPER_FORMATS[kind]
    blocks = random.integers(0, 256, (outputs, inputs // SUPER_VALUES, layout.block_bytes), np.uint8)
    spread = {11: 1 / 64, 12: 1 / 512, 13: 1 / 1024, 14: 1 / 2048}[kind] / np.sqrt(inputs)
    for gain, start in zip(
        (1, 16 if kind == 13 else 8), layout.unit_starts, strict=False
    ):  # minima: half of the greatest quant
        units = (random.uniform(0.5, 4, blocks.shape[:2]) * spread * gain).astype(np.float16)
        blocks[..., start : start + 2] = units[..., None].view(np.uint8)
    return blocks.reshape(outputs, -1)


def _float_rows(kind: int, values: F32) -> NDArray[np.uint8]:
    """Return the rows of a floating-point type as bytes."""
    if _FLOAT_BYTES[kind] == 4:
        return values.view(np.uint8)
    if kind == 1:
        return values.astype(np.float16).view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def _run(model: Model, decoder: Decoder) -> StepOutput:
    """Run one sequence as one step."""
    tokens = np.arange(min(_TOKENS, decoder.context_tokens), dtype=np.int32)
    rows = np.arange(len(tokens), dtype=np.int32)
    blocks = -(-len(tokens) // _BLOCK_SIZE)
    batch = StepBatch(
        tokens=tokens,
        positions=rows,
        row_starts=np.array([0, len(tokens)], np.int32),
        block_tables=(np.arange(blocks, dtype=np.int32)[::-1].copy(),),
        logit_rows=rows,
        hidden_rows=rows,
    )
    return model.forward(batch, model.new_kv_store(blocks, _BLOCK_SIZE))


def _same(a: F32, b: F32) -> bool:
    """Return whether all bits agree; a nan agrees with any nan."""
    return bool(((a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))).all())
