"""Which records the native kernels run, and what is said where they cannot."""

import attrs
import numpy as np
import pytest

from tests.kit.model.llama_shape import STORAGE
from tests.kit.model.mechanism_records import MECHANISMS
from tests.kit.model.tiny_models import ArraySource, tiny_shape, tiny_tensors
from tlserve.errors import SettingsError
from tlserve.kernels.choose import KernelChoice
from tlserve.model.decoder.build import build_decoder
from tlserve.model.decoder.native.form import missing_mechanism
from tlserve.model.decoder.record import Block, Layer, Norm
from tlserve.model.decoder.stored_slots import StoredSlots
from tlserve.model.loaded_model import LoadOptions

LLAMA = tiny_shape().record(tied=False)
SHARED = MECHANISMS["keys of other layers, inputs of layers"]


def with_attention(**changes):
    """Return the tiny llama whose attention differs."""

    def changed(block):
        return attrs.evolve(block, mixers=(attrs.evolve(block.mixers[0], **changes),))

    layers = tuple(Layer(blocks=(changed(layer.blocks[0]), layer.blocks[1])) for layer in LLAMA.layers)
    return attrs.evolve(LLAMA, layers=layers)


@pytest.mark.parametrize("decoder", [LLAMA, *MECHANISMS.values()])
def test_the_native_kernels_run_every_mechanism(decoder):
    assert missing_mechanism(decoder) == ""


HEAD_NORM = Norm(epsilon=1e-5)
MISSING = [
    (with_attention(head_size=1026), "heads of more than 1024 components"),
    (with_attention(q_norm=HEAD_NORM, k_norm=attrs.evolve(HEAD_NORM, per_head=True)), "norms of different kinds"),
    (with_attention(q_norm=attrs.evolve(HEAD_NORM, whole_row=True), norm_after_rope=True), "norms of whole rows after"),
    (with_attention(v_norm=HEAD_NORM), "norms of values with a weight"),
    (
        with_attention(k_norm=attrs.evolve(HEAD_NORM, whole_row=True), v_from_k=True),
        "values from keys that are normed as whole",
    ),
    (with_attention(kv_from=0, both_sides=True), "attention to both sides with the keys of another layer"),
    (attrs.evolve(SHARED, embed_norm=HEAD_NORM), "inputs of layers beside a norm of embeddings"),
    (attrs.evolve(LLAMA, layers=(Layer(blocks=(LLAMA.layers[0].blocks[1],)),)), "models without attention"),
    (
        attrs.evolve(LLAMA, layers=(Layer(blocks=(Block(mixers=LLAMA.layers[0].blocks[0].mixers * 2),)),)),
        "blocks that are not attention",
    ),
]


@pytest.mark.parametrize(("decoder", "named"), MISSING)
def test_a_mechanism_that_the_native_kernels_do_not_have_is_named(decoder, named):
    assert named in missing_mechanism(decoder)


def test_a_record_that_only_numpy_runs_is_logged_and_refused_for_native_kernels(caplog):
    shape = tiny_shape()
    size = shape.heads * shape.head_size
    norms = {f"blk.{i}.attn_q_norm.weight": np.ones(size, np.float32) for i in range(shape.layers)}
    decoder = with_attention(q_norm=attrs.evolve(HEAD_NORM, whole_row=True), norm_after_rope=True)
    source = StoredSlots(ArraySource(tiny_tensors(shape) | norms), decoder, STORAGE)
    model = build_decoder(decoder, source, lambda: "test", LoadOptions(threads=1))
    assert model.spec.kernels.startswith("reference (numpy")
    assert "they do not have norms of whole rows after their rotation: numpy computes" in caplog.text
    with pytest.raises(SettingsError, match="cannot run this llama"):
        build_decoder(decoder, source, lambda: "test", LoadOptions(kernels=KernelChoice(kernels="native")))
