"""The reference against the naive forward pass in float64: within a stated bound of the truth, for every shape."""

import numpy as np
import pytest

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.llama_shape import shape_of
from tests.kit.model.naive_llama import log_softmax, naive_hidden, naive_logits
from tests.kit.model.tiny_models import KIN, reference_llama, tiny_shape, tiny_tensors

# float32 keeps 24 bits; a logit of the tiny models is about 3 and passes some twenty roundings in a row.
TINY_BOUND = 2e-4

SHAPES = {
    "grouped": tiny_shape(),
    "one key head": tiny_shape(kv_heads=1),
    "as many key heads": tiny_shape(kv_heads=4),
    "three to one": tiny_shape(heads=9, kv_heads=3, head_size=8, rotated=8, hidden=24),
    "half of each head turns": tiny_shape(rotated=8),
    "linear scaling": tiny_shape(rope_linear_factor=4.0),
    "odd sizes": tiny_shape(hidden=27, intermediate=50, head_size=6, rotated=6, vocabulary=101),
    "four layers": tiny_shape(layers=4),
} | {name: tiny_shape(**changes) for name, changes in KIN.items()}


@pytest.mark.spec("MOD-10")
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_and_hidden_states_agree_with_the_naive_forward(name, tied):
    shape = SHAPES[name]
    tensors = tiny_tensors(shape, seed=5, tied=tied)
    tokens = np.random.default_rng(5).integers(0, shape.vocabulary, 150)
    out = run_whole(reference_llama(shape, tensors), tokens)
    assert np.abs(out.logits - naive_logits(tensors, shape, tokens)).max() < TINY_BOUND
    assert np.abs(out.hidden - naive_hidden(tensors, shape, tokens)).max() < TINY_BOUND


@pytest.mark.spec("MOD-10")
def test_rope_factors_divide_the_frequencies():
    plain, scaled = tiny_shape(), tiny_shape(rope_linear_factor=4.0)
    tensors = tiny_tensors(plain)
    tokens = np.arange(100)
    by_tensor = tensors | {"rope_freqs.weight": np.full(plain.rotated // 2, 4.0, np.float32)}
    model = reference_llama(plain, by_tensor)
    assert np.abs(run_whole(model, tokens).logits - naive_logits(tensors, scaled, tokens)).max() < TINY_BOUND


@pytest.mark.spec("MOD-42")
@pytest.mark.real_model
def test_log_probabilities_of_the_real_model_agree_with_the_naive_forward(smol_path):
    import gguf

    from tlserve.kernels.choose import KernelChoice
    from tlserve.model.gguf.facts import gguf_decoder
    from tlserve.model.gguf.tensors import GgufFile
    from tlserve.model.load import load_model

    with GgufFile(smol_path) as file:  # the head by our reader, the tensors by the gguf package's reader
        shape = shape_of(gguf_decoder(file.header.metadata, file.shapes()["token_embd.weight"][0]))
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(smol_path).tensors}
    tokens = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 2]
    ours = log_softmax(
        run_whole(
            load_model(
                smol_path, kernels=KernelChoice(kernels="reference", activations="f32", kv_precision="f32")
            ).model,
            tokens,
        ).logits
    )
    truth = log_softmax(naive_logits(tensors, shape, tokens))
    likely = truth > -15  # the bound is for tokens that can be drawn
    assert np.abs(ours - truth)[likely].max() < 1e-3
