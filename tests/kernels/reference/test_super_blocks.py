"""Files of K-quants: served in the precision that they are stored in, in their own size, with the same bits by every kernel."""

import gguf
import numpy as np
import pytest

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.naive_llama import naive_logits
from tests.kit.model.native_models import QUANTISED
from tests.kit.model.stored_gguf import q4_k_m, write_stored_gguf
from tests.kit.model.tiny_models import tiny_shape
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load import load_model

SIZES = {"hidden": 256, "intermediate": 512, "head_size": 64, "rotated": 64, "layers": 8}
F32_BOUND = 1e-3  # logits reach 20, and eight layers pass them on


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Return a file of the types that llama.cpp chooses for Q4_K_M."""
    shape = tiny_shape(**SIZES, architecture="qwen2", qkv_bias=True)
    return write_stored_gguf(tmp_path_factory.mktemp("super") / "tiny.gguf", shape, q4_k_m(8))


def loaded(path, **wishes):
    return load_model(path, threads=1, kernels=KernelChoice(**wishes))


@pytest.mark.spec("KER-21")
@pytest.mark.parametrize("activations", QUANTISED)
def test_q4_k_m_has_the_same_bits_in_every_kernel(path, activations):
    ours, numpy = (loaded(path, kernels=kernels, activations=activations) for kernels in ("auto", "reference"))
    assert f"{activations} activations" in ours.model.spec.kernels
    assert ours.model.spec.numerics == numpy.model.spec.numerics
    tokens = np.random.default_rng(1).integers(0, 256, 30)
    assert np.array_equal(run_whole(ours.model, tokens).logits, run_whole(numpy.model, tokens).logits)


@pytest.mark.spec("KER-21")
def test_weights_need_as_much_memory_as_in_the_file(path):
    model = loaded(path, kernels="auto")
    if model.model.spec.kernels.startswith("native"):
        assert model.weights_bytes < 1.05 * path.stat().st_size


@pytest.mark.spec("KER-29")
def test_q4_k_m_with_f32_activations_has_the_logits_of_the_float64_truth(path):
    arrays = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        arrays[tensor.name] = _turned(values, tensor.name)
    shape = tiny_shape(**SIZES, architecture="qwen2", qkv_bias=True)
    tokens = np.random.default_rng(2).integers(0, 256, 60)
    logits = run_whole(loaded(path, activations="f32", kv_precision="f32").model, tokens).logits
    truth = naive_logits(arrays, shape, tokens)
    assert np.abs(logits - truth).max() < F32_BOUND * np.abs(truth).max()


def _turned(values, name):
    """Put the rows of queries and keys, stored half by half in a qwen2, into pairs."""
    if not any(part in name for part in ("attn_q.", "attn_k.")):
        return values
    halves = values.reshape(-1, 2, 32, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)
