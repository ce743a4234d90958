"""From a llama's tensors to the model that runs them: native where it can be, numpy where it cannot.

Owns the choice between the three implementations. Native and `OrderedLlamaModel` give the same bits; `LlamaModel` computes in
float32 with a BLAS, faster than the latter and with bits of its own: it serves f32 activations where native kernels do not.
"""

from __future__ import annotations

import logging

import attrs

from tlserve.errors import SettingsError
from tlserve.kernels.choose import KernelChoice, choose_isa
from tlserve.kernels.interface import Model
from tlserve.kernels.native import load_native
from tlserve.kernels.thread_pool import ThreadPool
from tlserve.model.llama.blas import LlamaModel, LlamaWeights
from tlserve.model.llama.native import NativeLlamaModel
from tlserve.model.llama.numerics import KNOWN_FEATURES, Numerics
from tlserve.model.llama.ordered import OrderedLlamaModel
from tlserve.model.llama.probe import disagreement
from tlserve.model.llama.quantised_source import Q8Source
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.llama.tensors import LlamaTensors, StoredSource, read_tensors
from tlserve.model.llama.weights import load_weights

_log = logging.getLogger("tlserve.kernels")


@attrs.frozen(eq=False)
class BuiltLlama:
    """A model that is ready to run, and the memory of its weights."""

    model: Model
    weights_bytes: int


def build_llama(
    shape: LlamaShape, source: StoredSource, identity: str, choice: KernelChoice, threads: int = 0
) -> BuiltLlama:
    """Make the model that `choice` asks for; raises `ModelRefused`, and `SettingsError` for kernels that are not there."""
    if choice.weights == "q8_0":
        source, identity = Q8Source(source), f"{identity}/q8_0"
    unknown = shape.features - KNOWN_FEATURES
    if unknown:
        return _build_with_blas(
            shape, source, identity, choice, threads, f"they do not know {', '.join(sorted(unknown))}"
        )
    tensors = read_tensors(shape, source, identity)
    activations = choice.activations
    if activations == "auto":
        activations = "int8" if tensors.is_quantised() else "f32"
    numerics = Numerics(activations, choice.kv_precision)
    native = _build_native(shape, tensors, numerics, choice, threads)
    if native is not None:
        return BuiltLlama(native, native.weights_bytes)
    if activations == "int8" and tensors.is_quantised():
        ordered = OrderedLlamaModel(shape, tensors, numerics)
        return BuiltLlama(ordered, ordered.weights_bytes)
    return _build_with_blas(shape, source, identity, attrs.evolve(choice, kernels="reference"), threads, "")


def _build_native(
    shape: LlamaShape, tensors: LlamaTensors, numerics: Numerics, choice: KernelChoice, threads: int
) -> NativeLlamaModel | None:
    """Return the native model, or None where it is not wished for, not there, or disagrees with numpy."""
    isa, native = choose_isa(choice), load_native()
    if isa is None or native is None:
        return None
    differs = disagreement(native, shape, tensors, numerics, isa)
    if not differs:
        return NativeLlamaModel(native, shape, tensors, numerics, isa=isa, threads=threads)
    message = f"the native kernels ({isa}) disagree with numpy in {differs}"
    if choice.kernels == "native":
        raise SettingsError((f'engine.kernels = "native": {message}',))
    _log.warning("%s: numpy computes", message)
    return None


def _build_with_blas(
    shape: LlamaShape, source: StoredSource, identity: str, choice: KernelChoice, threads: int, reason: str
) -> BuiltLlama:
    """Return the model that computes in float32 with numpy's BLAS; `reason`: why native kernels cannot."""
    if reason and choice.kernels == "native":
        raise SettingsError((f'engine.kernels = "native": the native kernels cannot run this model: {reason}',))
    if reason and choice.kernels == "auto":
        _log.warning("the native kernels cannot run this model: %s; numpy computes, in float32", reason)
    weights = load_weights(shape, source, identity, ThreadPool(threads))
    return BuiltLlama(LlamaModel(shape, weights, threads), _blas_weights_bytes(weights))


def _blas_weights_bytes(weights: LlamaWeights) -> int:
    """Return the memory of all arrays; a tied embedding is a view and counts once."""
    arrays = [weights.head, weights.norm]
    if weights.embedding.base is not weights.head:
        arrays.append(weights.embedding)
    for layer in weights.layers:
        arrays += [layer.attention_norm, layer.qkv, layer.output, layer.ffn_norm, layer.gate_up, layer.down]
    return sum(array.nbytes for array in arrays)
