"""Small models for tests: the successor bigram, and a seeded two-layer llama in memory or as a real GGUF file.

They are real models behind `kernels.interface.Model`, not stand-ins, so they keep the same contract as large ones.
The arrays of `tiny_tensors` are the only source of the llama: `tiny_llama` runs them, `write_tiny_gguf` writes them, and the
naive forward of the parity tests reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import gguf
import numpy as np
from numpy.typing import NDArray

from tests.kit.model.llama_shape import STORAGE, LlamaShape
from tlserve.kernels.reference.blocks import F32_KIND
from tlserve.model.bigram import BigramModel, successor_table
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.reference import ReferenceModel
from tlserve.model.decoder.rope_scaling import DynamicScaling, Llama3Scaling, YarnScaling, yarn_amplitude
from tlserve.model.decoder.stored_slots import StoredSlots
from tlserve.model.decoder.weights import Weights, read_weights
from tlserve.model.load import LoadedModel, builtin_model_path, load_model

Tensors = dict[str, NDArray[np.float32]]


def succ_model(context_tokens: int = 4096, vocabulary_size: int = 256) -> BigramModel:
    """Return the bigram in which token i is followed by token (i + 1) % vocabulary_size."""
    return BigramModel(successor_table(vocabulary_size, 1, 32.0), context_tokens)


def load_succ() -> LoadedModel:
    """Load the built-in model."""
    path = builtin_model_path("succ")
    assert path is not None
    return load_model(path)


def tiny_shape(layers: int = 2, context_tokens: int = 512, **changes: Any) -> LlamaShape:
    """Return the sizes of the tiny llama: a byte vocabulary, four query heads on two key heads."""
    return attrs.evolve(
        LlamaShape(
            layers=layers,
            hidden=32,
            intermediate=64,
            heads=4,
            kv_heads=2,
            head_size=16,
            rotated=16,
            vocabulary=256,
            context_tokens=context_tokens,
            rope_base=10000.0,
            epsilon=1e-5,
        ),
        **changes,
    )


def tiny_tensors(shape: LlamaShape, seed: int = 0, *, tied: bool = False) -> Tensors:
    """Return GGUF's tensors of a llama of `shape`, (outputs, inputs) each, drawn from `seed`."""
    random = np.random.default_rng(seed)

    def matrix(outputs: int, inputs: int, gain: float = 1.0) -> NDArray[np.float32]:
        return (random.standard_normal((outputs, inputs)) * (gain / np.sqrt(inputs))).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return random.uniform(0.5, 1.5, shape.hidden).astype(np.float32)

    tensors = {"token_embd.weight": matrix(shape.vocabulary, shape.hidden, 4.0), "output_norm.weight": norm()}
    if not tied:
        tensors["output.weight"] = matrix(shape.vocabulary, shape.hidden, 3.0)
    for layer in range(shape.layers):
        tensors |= {
            f"blk.{layer}.{name}": value
            for name, value in {
                "attn_norm.weight": norm(),
                "attn_q.weight": matrix(shape.heads * shape.head_size, shape.hidden, 2.0),
                "attn_k.weight": matrix(shape.kv_heads * shape.head_size, shape.hidden, 2.0),
                "attn_v.weight": matrix(shape.kv_heads * shape.head_size, shape.hidden),
                "attn_output.weight": matrix(shape.hidden, shape.heads * shape.head_size),
                "ffn_norm.weight": norm(),
                "ffn_gate.weight": matrix(shape.intermediate, shape.hidden, 2.0),
                "ffn_up.weight": matrix(shape.intermediate, shape.hidden),
                "ffn_down.weight": matrix(shape.hidden, shape.intermediate),
                **_extra_vectors(shape, random),
            }.items()
        }
    return tensors


def _extra_vectors(shape: LlamaShape, random: np.random.Generator) -> Tensors:
    """Return the biases and head norms of one layer of `shape`."""
    sizes = {"q": shape.heads * shape.head_size, "k": shape.kv_heads * shape.head_size}
    vectors: dict[str, NDArray[np.float64]] = {}
    if shape.qkv_bias:
        vectors |= {f"attn_{n}.bias": random.standard_normal(sizes.get(n, sizes["k"])) for n in "qkv"}
    if shape.output_bias:
        vectors["attn_output.bias"] = random.standard_normal(shape.hidden)
    if shape.qk_norm:
        vectors |= {f"attn_{n}_norm.weight": random.uniform(0.5, 2.5, shape.head_size) for n in "qk"}
    return {name: vector.astype(np.float32) for name, vector in vectors.items()}


KIN: dict[str, dict[str, Any]] = {
    "biases": {"qkv_bias": True, "output_bias": True},
    "qk norm": {"qk_norm": True},
    "window": {"windows": (70, 70)},
    "short window": {"windows": (9, 9)},
    "window of one layer": {"windows": (0, 20)},
    "unrotated layer": {"unrotated_layers": (1,)},
    "dynamic": {"rope_scaling": DynamicScaling(factor=4.0, original=128)},
    "llama3": {
        "rope_scaling": Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original=64),
    },
    "yarn": {
        "rope_scaling": YarnScaling(
            factor=4.0, original=64, beta_fast=32.0, beta_slow=1.0, truncate=True, amplitude=yarn_amplitude(4.0)
        ),
    },
    "all together": {
        "qkv_bias": True,
        "qk_norm": True,
        "windows": (40, 0),
        "rope_scaling": YarnScaling(
            factor=8.0, original=64, beta_fast=8.0, beta_slow=0.5, truncate=False, amplitude=1.3
        ),
    },
}
"""The additions of the Llama family, one by one and together, as changes of `tiny_shape`."""


@attrs.frozen(eq=False)
class ArraySource:
    """A `TensorSource` over float32 arrays in memory."""

    arrays: Mapping[str, NDArray[np.float32]]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every array."""
        return {name: array.shape for name, array in self.arrays.items()}

    def rows(self, name: str, start: int, end: int) -> NDArray[np.float32]:
        """Return rows of an array."""
        return self.arrays[name][start:end]

    def stored(self, name: str) -> tuple[int, NDArray[np.uint8]]:
        """Return the bytes of an array, as GGML's type F32."""
        return F32_KIND, np.ascontiguousarray(self.arrays[name], np.float32).view(np.uint8)


def tiny_llama(seed: int = 0, layers: int = 2, context_tokens: int = 512, **changes: Any) -> ReferenceModel:
    """Return a seeded llama over bytes, in memory and in single precision; `changes` of its shape can be those of `KIN`."""
    shape = tiny_shape(layers, context_tokens, **changes)
    return reference_llama(shape, tiny_tensors(shape, seed), f"tiny {seed}")


def reference_llama(shape: LlamaShape, tensors: Tensors, identity: str = "tiny") -> ReferenceModel:
    """Return the llama of `shape` over `tensors` in numpy and in single precision."""
    decoder, weights = read_arrays(shape, tensors, identity)
    return ReferenceModel(decoder, weights, Numerics("f32", "f32"))


def read_arrays(shape: LlamaShape, tensors: Tensors, identity: str = "tiny") -> tuple[Decoder, Weights]:
    """Return the record and the weights of the llama of `shape` over `tensors`, which have GGUF's names."""
    factors = tensors.get("rope_freqs.weight")
    decoder = shape.record(
        tied="output.weight" not in tensors, rope_factors=None if factors is None else factors.astype(np.float64)
    )
    return decoder, read_weights(decoder, StoredSlots(ArraySource(tensors), decoder, STORAGE), lambda: identity)


def write_tiny_gguf(
    path: Path,
    seed: int = 0,
    *,
    shape: LlamaShape | None = None,
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    tied: bool = False,
    chat_template: str = "{% for m in messages %}{{ m.content }}{% endfor %}",
    tool_template: str = "",
    tensors_in_a_file: int = 0,
) -> Path:
    """Write the tiny llama as a GGUF file with the byte tokenizer, its matrices as `quantization`; return `path`.

    With `tensors_in_a_file` above 0 it is split over several files; returns the path of the first one.
    """
    shape = shape or tiny_shape()
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors_in_a_file)
    _add_metadata(writer, shape)
    if chat_template:
        writer.add_chat_template(chat_template)
    if tool_template:
        writer.add_string("tokenizer.chat_template.tool_use", tool_template)
    for name, tensor in tiny_tensors(shape, seed, tied=tied).items():
        kind = quantization if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-*-of-*.gguf")) if tensors_in_a_file else path


def _add_metadata(writer: gguf.GGUFWriter, shape: LlamaShape) -> None:
    writer.add_name("tiny")
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    writer.add_rope_dimension_count(shape.rotated)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("bytes")
