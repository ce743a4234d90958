"""Which records the native kernels run, and what is said where they cannot."""

import attrs
import pytest

from tests.kit.model.llama_shape import STORAGE
from tests.kit.model.tiny_models import ArraySource, tiny_shape, tiny_tensors
from tlserve.errors import SettingsError
from tlserve.kernels.choose import KernelChoice
from tlserve.model.decoder.build import build_decoder
from tlserve.model.decoder.native.form import NativeForm, native_form
from tlserve.model.decoder.record import Block, Layer, Norm, NormKind, Temperature
from tlserve.model.decoder.stored_slots import StoredSlots
from tlserve.model.loaded_model import LoadOptions

LLAMA = tiny_shape().record(tied=False)


def with_attention(**changes):
    """Return the tiny llama whose attention differs."""

    def changed(block):
        return attrs.evolve(block, mixers=(attrs.evolve(block.mixers[0], **changes),))

    layers = tuple(Layer(blocks=(changed(layer.blocks[0]), layer.blocks[1])) for layer in LLAMA.layers)
    return attrs.evolve(LLAMA, layers=layers)


def with_blocks(**changes):
    """Return the tiny llama whose blocks differ."""
    layers = tuple(Layer(blocks=tuple(attrs.evolve(b, **changes) for b in layer.blocks)) for layer in LLAMA.layers)
    return attrs.evolve(LLAMA, layers=layers)


def test_the_native_kernels_run_a_llama():
    form = native_form(LLAMA)
    assert isinstance(form, NativeForm)
    assert form.windows == (0, 0)


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        (attrs.evolve(LLAMA, embed_scale=2.0), "scaled embeddings"),
        (attrs.evolve(LLAMA, logit_cap=30.0), "capped logits"),
        (attrs.evolve(LLAMA, head_bias=True), "bias of the logits"),
        (with_attention(cap=50.0), "capped scores"),
        (with_attention(temperature=Temperature(beta=0.1, original=16)), "temperature"),
        (with_blocks(scale=0.5), "results of a block"),
        (with_blocks(pre=Norm(kind=NormKind.LAYER, epsilon=1e-5)), "RMS norm"),
        (
            attrs.evolve(LLAMA, layers=(Layer(blocks=(Block(mixers=LLAMA.layers[0].blocks[0].mixers),)),)),
            "layers that are not attention",
        ),
    ],
)
def test_a_mechanism_that_the_native_kernels_do_not_have_is_named(decoder, named):
    assert named in str(native_form(decoder))


def test_a_record_that_only_numpy_runs_is_logged_and_refused_for_native_kernels(caplog):
    decoder = with_blocks(scale=0.5)
    source = StoredSlots(ArraySource(tiny_tensors(tiny_shape())), decoder, STORAGE)
    model = build_decoder(decoder, source, "test", LoadOptions(threads=1))
    assert model.spec.kernels.startswith("reference (numpy")
    assert "they do not have scaled or normed results of a block: numpy computes" in caplog.text
    with pytest.raises(SettingsError, match="cannot run this llama"):
        build_decoder(decoder, source, "test", LoadOptions(kernels=KernelChoice(kernels="native")))
