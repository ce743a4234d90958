"""From a decoder's record and tensors to the model that runs them: on the native kernels where they can run, else in numpy.

Both have the same bits, so this choice changes only the speed. Where numpy computes although native kernels were allowed, the
log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tlserve.errors import SettingsError
from tlserve.kernels.choose import KernelChoice, find_isa
from tlserve.kernels.native import load_native, native_isas
from tlserve.kernels.reference.chains import blas_adds_in_order
from tlserve.model.decoder.native.form import missing_mechanism
from tlserve.model.decoder.native.model import NativeModel
from tlserve.model.decoder.native.probe import disagreement
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.decoder.quantised_source import Q8Source
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.reference import ReferenceModel
from tlserve.model.decoder.weights import TensorSource, Weights, read_weights
from tlserve.model.loaded_model import LoadOptions

_log = logging.getLogger("tlserve.kernels")

DecoderModel = NativeModel | ReferenceModel


def build_decoder(
    decoder: Decoder, source: TensorSource, hashed: Callable[[], str], options: LoadOptions
) -> DecoderModel:
    """Make the model that `options` ask for over a source of its slots; `hashed` as in `Weights`.

    Raises `ModelRefused`, and `SettingsError` for native kernels that cannot run.
    """
    choice = options.kernels
    if choice.weights == "q8_0":
        stored = hashed
        source, hashed = Q8Source(source), lambda: f"{stored()}/q8_0"
    weights = read_weights(decoder, source, hashed)
    return choose_model(decoder, weights, choice.kv_precision, options)


def choose_model(decoder: Decoder, weights: Weights, kv_precision: str, options: LoadOptions) -> DecoderModel:
    """Make the model that `options` ask for over its weights; raises `SettingsError` for native kernels that cannot run."""
    numerics = Numerics(_activations(options.kernels, weights), kv_precision)
    if options.kernels.kernels != "reference":
        native = _build_native(decoder, weights, numerics, options)
        if native is not None:
            return native
    if (numerics.activations == "f32" or not weights.is_quantised()) and not blas_adds_in_order():
        _log.warning(
            "numpy's BLAS does not add in the native kernels' order: f32 products are emulated, 100 times slower"
        )
    return ReferenceModel(decoder, weights, numerics)


def _activations(choice: KernelChoice, weights: Weights) -> str:
    """Return "int12", "int8" or "f32"."""
    if choice.activations != "auto":
        return choice.activations
    return "int12" if weights.is_quantised() else "f32"


def _build_native(decoder: Decoder, weights: Weights, numerics: Numerics, options: LoadOptions) -> NativeModel | None:
    """Return the native model, or None, and say why, where numpy must compute."""
    isa, native = find_isa(options.kernels.isa), load_native()
    missing = missing_mechanism(decoder)
    if missing:
        reason, advice = f"the native kernels cannot run this {decoder.architecture}: they do not have {missing}", ""
    elif isa is None or native is None:
        reason, advice = _why_not(options.kernels.isa)
    else:
        differs = disagreement(native, decoder, weights, numerics, isa)
        if not differs:
            return NativeModel(native, decoder, weights, numerics, isa=isa, threads=options.threads)
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
