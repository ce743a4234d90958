"""A llama's tensors, as GGUF names and lays them out, become the arrays of the forward pass.

Owns the names, the shapes they must have, and the fusing: queries, keys and values side by side; gate and up in alternating
panels; everything transposed to (inputs, outputs). Refuses to know how a tensor is stored: it asks for rows of float32.
Source: GGUF's naming convention (`gguf.constants`, MODEL_ARCH.LLAMA).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.kernels.reference.linear import gate_columns
from tlserve.kernels.thread_pool import ThreadPool, Unit
from tlserve.model.llama.blas import LlamaLayer, LlamaWeights
from tlserve.model.llama.shape import LlamaShape

F32 = NDArray[np.float32]

_CHUNK_VALUES = 1 << 19  # values made at once: they stay in the cache until they are transposed


class TensorSource(Protocol):
    """Named tensors of (outputs, inputs) or (n,), whatever they are stored as."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows start .. end of a tensor as float32; for a vector, the elements."""


@attrs.frozen
class ArraySource:
    """A `TensorSource` over arrays in memory."""

    arrays: Mapping[str, F32]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every array."""
        return {name: array.shape for name, array in self.arrays.items()}

    def rows(self, name: str, start: int, end: int) -> F32:
        """Return rows of an array."""
        return self.arrays[name][start:end]


def weights_from_tensors(shape: LlamaShape, arrays: Mapping[str, F32], identity: str) -> LlamaWeights:
    """Make the weights of a llama from arrays in memory; raises `ModelRefused` where one is missing or has a wrong shape."""
    return load_weights(shape, ArraySource(arrays), identity, ThreadPool(1))


def load_weights(shape: LlamaShape, source: TensorSource, identity: str, pool: ThreadPool) -> LlamaWeights:
    """Read, fuse and transpose all tensors, several at once; raises `ModelRefused` before the first is read."""
    shapes = source.shapes()
    check_shapes(expected_shapes(shape, tied="output.weight" not in shapes), shapes)
    reader = _Reader(source, pool)
    tied = "output.weight" not in shapes
    head = reader.matrix(("token_embd.weight" if tied else "output.weight"), shape.hidden, shape.vocabulary)
    layers = tuple(_layer(reader, shape, f"blk.{index}.") for index in range(shape.layers))
    embedding = head.T if tied else reader.untransposed("token_embd.weight", shape.vocabulary, shape.hidden)
    reader.finish()
    return LlamaWeights(
        embedding=embedding,
        layers=layers,
        norm=reader.vector("output_norm.weight", shape.hidden),
        head=head,
        rope_factors=read_rope_factors(source, shape),
        identity=identity,
    )


def expected_shapes(shape: LlamaShape, *, tied: bool) -> dict[str, tuple[int, ...]]:
    """Return the tensors that a llama of `shape` must have, and their shapes."""
    whole: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (shape.vocabulary, shape.hidden),
        "output_norm.weight": (shape.hidden,),
    }
    if not tied:
        whole["output.weight"] = (shape.vocabulary, shape.hidden)
    layer = _layer_shapes(shape)
    return whole | {f"blk.{i}.{name}": value for i in range(shape.layers) for name, value in layer.items()}


def _layer_shapes(shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    """Return the tensors of one layer, without its number."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (shape.hidden,),
        "attn_q.weight": (queries, shape.hidden),
        "attn_k.weight": (keys, shape.hidden),
        "attn_v.weight": (keys, shape.hidden),
        "attn_output.weight": (shape.hidden, queries),
        "ffn_norm.weight": (shape.hidden,),
        "ffn_gate.weight": (shape.intermediate, shape.hidden),
        "ffn_up.weight": (shape.intermediate, shape.hidden),
        "ffn_down.weight": (shape.hidden, shape.intermediate),
    }
    if shape.qkv_bias:
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if shape.output_bias:
        layer["attn_output.bias"] = (shape.hidden,)
    if shape.qk_norm:
        layer |= {"attn_q_norm.weight": (shape.head_size,), "attn_k_norm.weight": (shape.head_size,)}
    return layer


def check_shapes(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a missing tensor, a wrong shape, and a tensor that the forward pass would leave out."""
    for name, shape in expected.items():
        if name not in found:
            raise ModelRefused(f"the tensor {name} is missing")
        if found[name] != shape:
            raise ModelRefused(f"the tensor {name} has the shape {found[name]}, not {shape}")
    unknown = sorted(set(found) - set(expected) - {"rope_freqs.weight"})
    if unknown:
        raise ModelRefused(f"the tensor {unknown[0][:80]!r} is not part of the architecture as it is served here")


def _layer(reader: _Reader, shape: LlamaShape, prefix: str) -> LlamaLayer:
    """Order the reading of one layer."""
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    qkv = np.empty((shape.hidden, queries + 2 * keys), np.float32)
    gate_up = np.empty((shape.hidden, 2 * shape.intermediate), np.float32)
    for name, start, count in (("q", 0, queries), ("k", queries, keys), ("v", queries + keys, keys)):
        reader.fill(f"{prefix}attn_{name}.weight", [(slice(0, count), slice(start, start + count))], qkv)
    for name in ("gate", "up"):
        reader.fill(f"{prefix}ffn_{name}.weight", gate_columns(shape.intermediate, up=name == "up"), gate_up)
    return LlamaLayer(
        attention_norm=reader.vector(f"{prefix}attn_norm.weight", shape.hidden),
        qkv=qkv,
        output=reader.matrix(f"{prefix}attn_output.weight", queries, shape.hidden),
        ffn_norm=reader.vector(f"{prefix}ffn_norm.weight", shape.hidden),
        gate_up=gate_up,
        down=reader.matrix(f"{prefix}ffn_down.weight", shape.intermediate, shape.hidden),
        **_layer_vectors(reader, shape, prefix),
    )


def _layer_vectors(reader: _Reader, shape: LlamaShape, prefix: str) -> dict[str, F32]:
    """Return the biases and head norms that a layer of `shape` has, by the names of `LlamaLayer`."""
    vectors: dict[str, F32] = {}
    if shape.qkv_bias:
        sizes = {"q": shape.heads * shape.head_size, "k": shape.kv_heads * shape.head_size}
        parts = [reader.vector(f"{prefix}attn_{name}.bias", sizes.get(name, sizes["k"])) for name in "qkv"]
        vectors["qkv_bias"] = np.concatenate(parts)
    if shape.output_bias:
        vectors["output_bias"] = reader.vector(f"{prefix}attn_output.bias", shape.hidden)
    if shape.qk_norm:
        vectors["query_norm"] = reader.vector(f"{prefix}attn_q_norm.weight", shape.head_size)
        vectors["key_norm"] = reader.vector(f"{prefix}attn_k_norm.weight", shape.head_size)
    return vectors


def read_rope_factors(source: TensorSource, shape: LlamaShape) -> NDArray[np.float64]:
    """Return what each frequency is divided by: 1, or the tensor that the converter computed; raises `ModelRefused`."""
    shapes, pairs = source.shapes(), shape.rotated // 2
    if "rope_freqs.weight" not in shapes:
        return np.ones(pairs)
    if shapes["rope_freqs.weight"] != (pairs,):
        raise ModelRefused(f"the tensor rope_freqs.weight has the shape {shapes['rope_freqs.weight']}, not ({pairs},)")
    factors = source.rows("rope_freqs.weight", 0, pairs).astype(np.float64)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelRefused("the tensor rope_freqs.weight must hold finite numbers above 0")
    return factors


class _Reader:
    """Collects what is to be read into units, and runs them side by side at the end."""

    def __init__(self, source: TensorSource, pool: ThreadPool) -> None:
        self._source = source
        self._pool = pool
        self._units: list[Unit] = []

    def vector(self, name: str, size: int) -> F32:
        """Return a vector, at once."""
        return np.array(self._source.rows(name, 0, size), np.float32)

    def matrix(self, name: str, inputs: int, outputs: int) -> F32:
        """Return an (inputs, outputs) array that `finish` will fill."""
        target = np.empty((inputs, outputs), np.float32)
        self.fill(name, [(slice(0, outputs), slice(0, outputs))], target)
        return target

    def fill(self, name: str, columns: list[tuple[slice, slice]], target: F32) -> None:
        """Plan to write each (rows of the tensor, columns of `target`) pair, transposed."""
        for source, place in columns:
            self._plan(name, source, target.T[place])

    def untransposed(self, name: str, outputs: int, inputs: int) -> F32:
        """Return an (outputs, inputs) array that `finish` will fill."""
        target = np.empty((outputs, inputs), np.float32)
        self._plan(name, slice(0, outputs), target)
        return target

    def finish(self) -> None:
        """Run everything that was planned."""
        self._pool.run(self._units)

    def _plan(self, name: str, rows: slice, target: F32) -> None:
        """Plan to copy rows of a tensor into the rows of `target`, in chunks that fit the cache."""
        step = max(16, _CHUNK_VALUES // target.shape[1])
        for start in range(rows.start, rows.stop, step):
            end = min(start + step, rows.stop)
            self._units.append(
                _copy(self._source.rows, name, start, end, target[start - rows.start : end - rows.start])
            )


def _copy(read: Callable[[str, int, int], F32], name: str, start: int, end: int, target: F32) -> Unit:
    """Return a unit that reads rows of a tensor into `target`."""

    def unit() -> None:
        target[...] = read(name, start, end)

    return unit
