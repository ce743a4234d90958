"""Every path of the kernels agrees with numpy to the bit, on any machine: with stand-ins for the instructions it lacks.

The same sources run on the processor's own instructions in tests/kernels/native and tests/parity, as far as it has them.
"""

import random

import numpy as np
import pytest

from tests.engine.sampling.test_native_sampler import agree, random_row, random_run
from tests.kernels.stand_ins.build import PATHS, build
from tests.kit.engine.schedules import same_bits
from tests.kit.engine.step_batches import run_whole
from tests.kit.model.mechanism_records import MECHANISMS, mechanism_weights
from tests.kit.model.native_models import (
    ACTIVATIONS,
    BF16,
    F16,
    F32,
    KIND_NAMES,
    MIXED,
    MXFP4,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    QUANTISED,
    SUPER,
    SUPER_MIXED,
    block_shape,
    multiply,
    ordered,
    ordered_product,
    stored,
    super_shape,
)
from tlserve.config.settings import KERNELS
from tlserve.model.decoder.native.model import NativeModel
from tlserve.model.decoder.native.probe import random_matrix
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.decoder.reference import ReferenceModel

KINDS = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, *SUPER]
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 70)
LAYERS = {
    "blocks": (block_shape(heads=6, kv_heads=2, vocabulary=101), MIXED),
    "heads of 80": (block_shape(heads=2, kv_heads=1, head_size=80, rotated=80, layers=1), MIXED),
    "windows, biases, norms of heads": (
        block_shape(windows=(9, 0), unrotated_layers=(1,), qkv_bias=True, output_bias=True, qk_norm=True),
        MIXED,
    ),
    "super-blocks": (super_shape(layers=1), SUPER_MIXED),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return build(tmp_path_factory.mktemp("stand_ins"))


def strange(random, rows, inputs):
    """Return rows of many magnitudes, with some numbers that are not finite or too great."""
    x = (random.standard_normal((rows, inputs)) * 10.0 ** random.integers(-3, 4, (rows, 1))).astype(np.float32)
    x.flat[random.integers(0, x.size, 2)] = [np.nan, 3e38]
    return x


def agrees(a, b):
    """Return whether all bits agree; a nan agrees with any nan."""
    return bool(((a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))).all())


def test_the_names_of_the_setting_are_those_of_the_paths(module):
    assert module.isas() == tuple(PATHS) == KERNELS[3:]


@pytest.mark.spec("KER-3", "KER-39", "KER-40")
@pytest.mark.parametrize("kind", KINDS, ids=KIND_NAMES.get)
@pytest.mark.parametrize("activations", QUANTISED)
def test_products_of_quantised_activations_agree_with_numpy_on_every_path(module, kind, activations):
    random = np.random.default_rng(kind)
    matrix = random_matrix(random, kind, 70, 512)
    for rows in ROWS:
        x = strange(random, rows, 512)
        with np.errstate(all="ignore"):
            expected = ordered_product(matrix, x, activations)
        for path in PATHS:
            assert agrees(multiply(matrix, x, activations=activations, isa=path, module=module), expected), (path, rows)


@pytest.mark.spec("KER-3", "KER-39")
@pytest.mark.parametrize("kind", [Q4_1, Q5_0, Q8_0, MXFP4, *SUPER, F16, BF16, F32], ids=KIND_NAMES.get)
def test_products_of_f32_activations_agree_with_numpy_on_every_path(module, kind):
    random = np.random.default_rng(kind)
    matrix = random_matrix(random, kind, 33, 256)
    x = random.standard_normal((9, 256)).astype(np.float32)
    expected = ordered_product(matrix, x, "f32")
    for path in PATHS:
        assert agrees(multiply(matrix, x, activations="f32", isa=path, module=module), expected), path


@pytest.mark.spec("KER-3", "KER-39")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("kv_precision", ["f16", "f32"])
def test_a_whole_model_agrees_with_numpy_on_every_path(module, name, activations, kv_precision):
    (shape, kinds), numerics = LAYERS[name], Numerics(activations, kv_precision)
    tensors = stored(shape, kinds, seed=3)
    tokens = np.random.default_rng(3).integers(0, shape.vocabulary, 37)
    expected = run_whole(ordered(shape, tensors, numerics), tokens)
    for path in PATHS:
        ours = run_whole(NativeModel(module, shape.record(), tensors, numerics, isa=path, threads=2), tokens)
        assert same_bits(ours.logits, expected.logits), path
        assert same_bits(ours.hidden, expected.hidden), path


@pytest.mark.spec("KER-3", "KER-39")
@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_every_mechanism_agrees_with_numpy_on_every_path(module, name, activations):
    decoder, numerics = MECHANISMS[name], Numerics(activations, "f16")
    tensors = mechanism_weights(decoder)
    tokens = np.random.default_rng(4).integers(0, decoder.vocabulary, 37)
    expected = run_whole(ReferenceModel(decoder, tensors, numerics), tokens)
    for path in PATHS:
        ours = run_whole(NativeModel(module, decoder, tensors, numerics, isa=path, threads=2), tokens)
        assert same_bits(ours.logits, expected.logits), path
        assert same_bits(ours.hidden, expected.hidden), path


@pytest.mark.spec("MOD-8", "KER-39")
@pytest.mark.parametrize("kv_precision", ["f16", "f32"])
def test_several_segments_of_keys_agree_with_numpy_on_every_path(module, kv_precision):
    shape = block_shape(context_tokens=300, heads=6, kv_heads=2, layers=1)
    numerics, tensors = Numerics("int8", kv_precision), stored(shape, seed=5)
    tokens = np.random.default_rng(5).integers(0, 256, 290)
    expected = run_whole(ordered(shape, tensors, numerics), tokens)
    for path in PATHS:
        ours = run_whole(NativeModel(module, shape.record(), tensors, numerics, isa=path, threads=2), tokens)
        assert same_bits(ours.logits, expected.logits), path


@pytest.mark.spec("ENG-34", "KER-39")
@pytest.mark.parametrize("widest_bits", [128, 256, 512])
def test_the_sampler_agrees_with_numpy_at_every_width(module, widest_bits):
    for size in (1, 33, 300, 1025):
        for seed in range(4):
            rng = random.Random(f"{size}/{seed}")
            runs = [random_run(rng, size) for _ in range(rng.randrange(1, 12))]
            logits = np.stack([random_row(rng, size) for _ in range(sum(run.rows for run in runs))])
            agree(logits, runs, threads=2, widest_bits=widest_bits, module=module)
