"""From a llama's tensors to the model that runs them: on the native kernels where they can run, else in numpy.

Both have the same bits, so this choice changes only the speed. Where numpy computes although native kernels were allowed, the
log says why.
"""

from __future__ import annotations

import logging

from tlserve.errors import SettingsError
from tlserve.kernels.choose import KernelChoice, find_isa
from tlserve.kernels.native import load_native, native_isas
from tlserve.kernels.reference.chains import blas_adds_in_order
from tlserve.model.llama.native import NativeLlamaModel
from tlserve.model.llama.numerics import Numerics
from tlserve.model.llama.probe import disagreement
from tlserve.model.llama.quantised_source import Q8Source
from tlserve.model.llama.reference import ReferenceLlamaModel
from tlserve.model.llama.shape import LlamaShape
from tlserve.model.llama.tensors import LlamaTensors, TensorSource, read_tensors
from tlserve.model.loaded_model import LoadOptions

_log = logging.getLogger("tlserve.kernels")

LlamaModel = NativeLlamaModel | ReferenceLlamaModel


def build_llama(shape: LlamaShape, source: TensorSource, identity: str, options: LoadOptions) -> LlamaModel:
    """Make the model that `options` ask for; raises `ModelRefused`, and `SettingsError` for native kernels that cannot run."""
    choice = options.kernels
    if choice.weights == "q8_0":
        source, identity = Q8Source(source), f"{identity}/q8_0"
    tensors = read_tensors(shape, source, identity)
    numerics = Numerics(_activations(choice, tensors), choice.kv_precision)
    if choice.kernels != "reference":
        native = _build_native(shape, tensors, numerics, options)
        if native is not None:
            return native
    if (numerics.activations == "f32" or not tensors.is_quantised()) and not blas_adds_in_order():
        _log.warning(
            "numpy's BLAS does not add in the native kernels' order: f32 products are emulated, 100 times slower"
        )
    return ReferenceLlamaModel(shape, tensors, numerics)


def _activations(choice: KernelChoice, tensors: LlamaTensors) -> str:
    """Return "int12", "int8" or "f32"."""
    if choice.activations != "auto":
        return choice.activations
    return "int12" if tensors.is_quantised() else "f32"


def _build_native(
    shape: LlamaShape, tensors: LlamaTensors, numerics: Numerics, options: LoadOptions
) -> NativeLlamaModel | None:
    """Return the native model, or None, and say why, where numpy must compute."""
    isa, native = find_isa(options.kernels.isa), load_native()
    if isa is None or native is None:
        reason, advice = _why_not(options.kernels.isa)
    else:
        differs = disagreement(native, shape, tensors, numerics, isa)
        if not differs:
            return NativeLlamaModel(native, shape, tensors, numerics, isa=isa, threads=options.threads)
        reason, advice = f"the native kernels ({isa}) disagree with numpy in {differs}", ""
    if options.kernels.kernels == "native":
        raise SettingsError((f'engine.kernels = "{options.kernels.named}": {reason}{advice}',))
    _log.warning("%s: numpy computes, with the same answers, slowly", reason)
    return None


def _why_not(isa: str) -> tuple[str, str]:
    """Return why there are no native kernels of the instruction set `isa` (empty: of any), and what to do."""
    if isa and native_isas():
        return "this machine or this build lacks these instructions", f"; it has {', '.join(native_isas())}"
    reason = "the native kernels were not built, or this processor has none of their instruction sets"
    return reason, '; install with a C compiler, or "auto"'
