"""Wide weights served in 8 bits: the same model for every kernel, near the one of the file, and with its own fingerprint."""

import numpy as np
import pytest

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.tiny_models import ArraySource, tiny_shape, tiny_tensors, write_tiny_gguf
from tlserve.kernels.choose import KernelChoice
from tlserve.model.decoder.quantised_source import Q8_0_KIND, Q8Source
from tlserve.model.load import load_model

MATRIX, VECTOR = "blk.0.ffn_up.weight", "blk.0.ffn_norm.weight"


@pytest.fixture
def source():
    return Q8Source(ArraySource(tiny_tensors(tiny_shape())))


def test_matrices_are_stored_in_blocks_and_vectors_stay(source):
    kind, blocks = source.stored(MATRIX)
    outputs, inputs = source.shapes()[MATRIX]
    assert (kind, blocks.shape, blocks.dtype) == (Q8_0_KIND, (outputs, inputs // 32 * 34), np.uint8)
    assert np.array_equal(source.rows(VECTOR, 0, 32), tiny_tensors(tiny_shape())[VECTOR])


def test_rows_are_the_values_of_the_blocks_and_near_the_files(source):
    given = tiny_tensors(tiny_shape())[MATRIX]
    rows = source.rows(MATRIX, 0, len(given))
    _, blocks = source.stored(MATRIX)
    scale = blocks.reshape(len(given), -1, 34)[:, :, :2].copy().view(np.float16).astype(np.float32)
    values = blocks.reshape(len(given), -1, 34)[:, :, 2:].view(np.int8).astype(np.float32)
    assert np.array_equal(rows, (scale * values).reshape(given.shape))
    assert np.abs(rows - given).max() <= np.abs(given).max() / 127
    assert np.array_equal(source.rows(MATRIX, 3, 9), rows[3:9])


def test_a_matrix_whose_rows_are_not_whole_blocks_stays():
    source = Q8Source(ArraySource({"odd": np.ones((4, 33), np.float32)}))
    assert source.stored("odd")[0] == 0
    assert np.array_equal(source.rows("odd", 0, 4), np.ones((4, 33), np.float32))


@pytest.mark.spec("KER-16", "KER-32")
@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_the_setting_serves_eight_bits_near_the_file_under_another_fingerprint(tmp_path, kernels):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", shape=tiny_shape(hidden=64))
    plain = load_model(path, kernels=KernelChoice(kernels="reference", activations="f32", kv_precision="f32"))
    eight = load_model(path, kernels=KernelChoice(kernels=kernels, weights="q8_0"))
    assert eight.model.spec.numerics != plain.model.spec.numerics
    near, exact = (run_whole(loaded.model, range(40)).logits for loaded in (eight, plain))
    assert not np.array_equal(near, exact)
    assert np.corrcoef(near.ravel(), exact.ravel())[0, 1] > 0.99


@pytest.mark.spec("KER-16")
def test_native_and_numpy_give_the_same_bits_in_eight_bits(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    logits = [
        run_whole(load_model(path, kernels=KernelChoice(kernels=kernels, weights="q8_0")).model, range(40)).logits
        for kernels in ("auto", "reference")
    ]
    assert np.array_equal(*logits)
