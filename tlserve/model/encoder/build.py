"""From an encoder's record and arrays to the model that runs them.

A record that decoders' kernels have runs there, natively or in numpy with the same bits; the others in numpy by `forward`.
"""

from __future__ import annotations

from tlserve.errors import SettingsError
from tlserve.kernels.interface import Pooling
from tlserve.model.encoder.as_decoder import has_decoder
from tlserve.model.encoder.forward import EncoderModel
from tlserve.model.encoder.ordered import OrderedEncoder
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.weights import EncoderWeights
from tlserve.model.loaded_model import LoadOptions


def build_encoder(
    encoder: Encoder, weights: EncoderWeights, pooling: Pooling, options: LoadOptions
) -> OrderedEncoder | EncoderModel:
    """Make the model that `options` ask for; raises `SettingsError` for native kernels that cannot run."""
    if has_decoder(encoder):
        return OrderedEncoder(encoder, weights, pooling, options)
    if options.kernels.kernels == "native":
        named = options.kernels.named
        reason = f"the native kernels have no attention by distances, which this {encoder.architecture} has"
        raise SettingsError((f'engine.kernels = "{named}": {reason}; give this model "auto"',))
    return EncoderModel(encoder, weights, pooling, options.threads)
