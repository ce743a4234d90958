"""The kit of native models: its extension is there, its weights repeat."""

import numpy as np

from tests.kit.engine.schedules import same_bits
from tests.kit.engine.step_batches import run_whole
from tests.kit.model.native_models import ISAS, MIXED, Q4_1, block_shape, multiply, native, ordered, stored
from tlserve.kernels.native import native_isas


def test_the_extension_is_built_and_has_kernels_for_this_processor() -> None:
    assert native_isas() == ISAS


def test_the_same_seed_gives_the_same_weights_of_the_requested_kinds() -> None:
    shape = block_shape()
    one, two = stored(shape, seed=1), stored(shape, seed=1)
    assert [m.kind for slot, m in one.matrices.items() if slot.startswith("1.")] == MIXED
    assert one.matrices["embedding"].kind == Q4_1
    first, again = (weights.matrices["0.ffn.gate"].rows for weights in (one, two))
    assert np.array_equal(first, again)


def test_native_and_ordered_models_agree_and_multiply_is_their_product() -> None:
    shape = block_shape(layers=1)
    tensors = stored(shape)
    assert same_bits(
        run_whole(native(shape, tensors), [1, 2]).logits, run_whole(ordered(shape, tensors), [1, 2]).logits
    )
    x = np.ones((2, 64), np.float32)
    assert multiply(tensors.head, x, activations="int8").shape == (2, 256)
