"""The Llama family on the native kernels: the bits of ordered numpy, near the float64 truth."""

import numpy as np
import pytest

from tests.kit.engine.schedules import random_schedule, same_bits
from tests.kit.engine.step_batches import run_whole
from tests.kit.model.golden_kin import kin_cases, load_kin
from tests.kit.model.naive_llama import naive_logits
from tests.kit.model.native_models import ISAS, block_shape, native, ordered, stored
from tests.kit.model.tiny_models import KIN, read_arrays, tiny_shape, tiny_tensors
from tlserve.kernels.choose import KernelChoice
from tlserve.model.decoder.numerics import Numerics

SHAPES = KIN | {
    "all there is": KIN["biases"] | {"qk_norm": True, "windows": (0, 33), "unrotated_layers": (0,)},
    "windows of 1 and 16": {"windows": (1, 16)},
}
CASES = kin_cases()
EXACT = KernelChoice(kernels="native", kv_precision="f32")
GOLDEN_BOUND = 5e-4  # logits reach 10; transformers adds in another order
F32_BOUND = 4e-4  # the biases are as large as the products, so the bound is twice that of the plain llama


@pytest.mark.spec("KER-18")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_family_model_has_numpys_bits_on_every_instruction_set(isa, name):
    shape = block_shape(**SHAPES[name])
    tensors = stored(shape, seed=7)
    tokens = np.random.default_rng(7).integers(0, 256, 90)
    for numerics in (Numerics("int12", "f16"), Numerics("int8", "f16"), Numerics("f32", "f32")):
        ours = run_whole(native(shape, tensors, numerics, isa=isa, threads=2), tokens)
        expected = run_whole(ordered(shape, tensors, numerics), tokens)
        assert same_bits(ours.logits, expected.logits)
        assert same_bits(ours.hidden, expected.hidden)


@pytest.mark.spec("KER-18", "KER-25")
@pytest.mark.parametrize("name", SHAPES)
def test_every_family_model_gives_each_sequence_its_bits_in_any_schedule(name):
    shape = block_shape(**SHAPES[name])
    tensors = stored(shape, seed=3)
    alone = ordered(shape, tensors)
    for seed in range(2):
        print(f"seed {seed}")
        random = np.random.default_rng(seed)
        model = native(shape, tensors, isa=str(random.choice(ISAS)), threads=2)
        sequences = [random.integers(0, 256, n) for n in (1, 30, 65, 130)]
        block_size = int(random.choice([5, 16, 48]))
        kv = model.new_kv_store(80, block_size)
        kv.keys[...] = np.inf
        got = random_schedule(model, kv, sequences, random, block_size, 80, int(random.choice([1, 20, 130])))
        for tokens, logits in zip(sequences, got, strict=True):
            assert same_bits(logits, run_whole(alone, tokens).logits)


@pytest.mark.spec("KER-19")
@pytest.mark.parametrize("name", SHAPES)
def test_logits_of_every_family_model_are_near_the_float64_truth(name):
    shape = tiny_shape(**SHAPES[name])
    arrays = tiny_tensors(shape, seed=5)
    model = native(shape, read_arrays(shape, arrays)[1], Numerics("f32", "f32"), threads=2)
    tokens = np.random.default_rng(5).integers(0, shape.vocabulary, 150)
    assert np.abs(run_whole(model, tokens).logits - naive_logits(arrays, shape, tokens)).max() < F32_BOUND


@pytest.mark.spec("KER-28")
@pytest.mark.parametrize("name", CASES)
def test_logits_of_every_golden_checkpoint_are_those_of_transformers(tmp_path, name):
    case = CASES[name]
    logits = run_whole(load_kin(tmp_path, case, EXACT), case.ids).logits
    assert np.abs(logits[case.rows] - case.logits).max() < GOLDEN_BOUND
