"""Native products against the same sums in numpy, to the bit, for every stored type and every instruction set of this machine."""

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.model.native_models import (
    ACTIVATIONS,
    BF16,
    F16,
    F32,
    ISAS,
    KIND_NAMES,
    MXFP4,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    QUANTISED,
    SUPER,
    multiply,
    ordered_product,
)
from tlserve.kernels.reference.blocks import BLOCK_FORMATS, as_floats, mxfp4_fits, unpack, values_per_block
from tlserve.kernels.reference.linear import quantise_int8, quantise_int12
from tlserve.kernels.reference.super_blocks import SUPER_FORMATS
from tlserve.model.decoder.native.probe import random_matrix
from tlserve.model.decoder.weights import StoredMatrix

BLOCKS = [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4]
names = KIND_NAMES.get


def same(a, b):
    """Return whether all bits agree; a nan agrees with any nan."""
    return bool(((a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))).all())


@pytest.mark.spec("KER-3", "KER-24")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", BLOCKS, ids=names)
@pytest.mark.parametrize("activations", QUANTISED)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (16, 64), (33, 96), (100, 576)])
def test_products_with_quantised_activations_have_the_bits_of_numpy(isa, kind, activations, outputs, inputs):
    random = np.random.default_rng(outputs)
    matrix = random_matrix(random, kind, outputs, inputs)
    for rows in range(1, 15):
        x = (random.standard_normal((rows, inputs)) * 10.0 ** random.integers(-3, 4, (rows, 1))).astype(np.float32)
        assert same(multiply(matrix, x, activations=activations, isa=isa), ordered_product(matrix, x, activations))


@pytest.mark.spec("KER-20", "KER-26")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", SUPER, ids=names)
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 256), (33, 512), (70, 768)])
def test_products_with_super_blocks_have_the_bits_of_numpy(isa, kind, activations, outputs, inputs):
    random = np.random.default_rng(outputs)
    matrix = random_matrix(random, kind, outputs, inputs)
    for rows in [3] if activations == "f32" else range(1, 15):
        x = (random.standard_normal((rows, inputs)) * 10.0 ** random.integers(-3, 4, (rows, 1))).astype(np.float32)
        assert same(multiply(matrix, x, activations=activations, isa=isa), ordered_product(matrix, x, activations))


@pytest.mark.spec("KER-20", "KER-26")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [*BLOCKS, *SUPER], ids=names)
def test_a_row_has_the_same_bits_among_many(isa, kind):
    """With 24 or 48 rows and more, weights are unpacked once for up to 128 rows, eight blocks of inputs at a time."""
    random = np.random.default_rng(kind)
    matrix = random_matrix(random, kind, 37, 768 if kind in SUPER else 576)
    x = (random.standard_normal((140, matrix.inputs)) * 10.0 ** random.integers(-3, 4, (140, 1))).astype(np.float32)
    truth = ordered_product(matrix, x, "int12")
    for rows in (23, 24, 25, 48, 127, 128, 140):
        assert same(multiply(matrix, x[:rows], activations="int12", isa=isa), truth[:rows])


@pytest.mark.spec("KER-20", "KER-26")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", SUPER, ids=names)
@pytest.mark.parametrize("activations", QUANTISED)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_the_greatest_quants_parts_and_activations_stay_exact(isa, kind, activations, byte):
    """Where every byte is 0x80 (Q6_K: quants of -32, parts of -128), sums of int8 reach 16.6 million: below 2**24.

    2039 is the greatest number of int12.
    """
    layout = SUPER_FORMATS[kind]
    rows = np.full((3, 2, layout.block_bytes), byte, np.uint8)
    for start in layout.unit_starts:
        rows[..., start : start + 2] = np.array([1.0], np.float16).view(np.uint8)
    matrix = StoredMatrix(kind, 3, 512, rows.reshape(3, -1))
    x = 2039 * np.array([np.ones(512), np.where(np.arange(512) % 3, 1, -1)], np.float32)
    truth = gguf.quants.dequantize(matrix.rows, gguf.GGMLQuantizationType(kind)).astype(np.float64) @ x.T.astype(
        np.float64
    )
    got = multiply(matrix, x, activations=activations, isa=isa)
    assert same(got, ordered_product(matrix, x, activations))
    assert got == pytest.approx(truth.T, rel=2e-6, abs=np.abs(truth).max() * 2e-6)


@pytest.mark.spec("KER-5")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [*BLOCKS, F16, BF16, F32], ids=names)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 32), (33, 96)])
def test_products_with_f32_activations_are_one_chain_of_fused_multiply_adds(isa, kind, outputs, inputs):
    random = np.random.default_rng(outputs)
    matrix = random_matrix(random, kind, outputs, inputs)
    for rows in (1, 2, 7, 9, 17):
        x = random.standard_normal((rows, inputs)).astype(np.float32)
        assert same(multiply(matrix, x, activations="f32", isa=isa), ordered_product(matrix, x, "f32"))


def test_inputs_of_an_f32_matrix_need_not_be_whole_blocks():
    random = np.random.default_rng(0)
    matrix = random_matrix(random, F32, 19, 27)
    x = random.standard_normal((3, 27)).astype(np.float32)
    assert same(multiply(matrix, x, activations="f32"), ordered_product(matrix, x, "f32"))


STRANGE = [0.0, -0.0, 1e-45, 1e-38, -1e-30, 2.0**-100, 1.0, -1.0, 127.0, 2039.0, 1e30]
STRANGE += [2039 * 2.0**104, 2040 * 2.0**104, 3.4e38, np.inf, -np.inf, np.nan]


@pytest.mark.spec("KER-4", "KER-23", "KER-35")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [Q4_1, Q8_0], ids=names)
@pytest.mark.parametrize("activations", QUANTISED)
@given(picks=st.lists(st.integers(0, len(STRANGE) - 1), min_size=1, max_size=64), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, database=None)
def test_strange_activations_quantise_like_numpy(isa, kind, activations, picks, seed):
    random = np.random.default_rng(seed)
    x = random.standard_normal((2, 64)).astype(np.float32)
    x[0, random.permutation(64)[: len(picks)]] = np.float32(STRANGE)[picks]
    matrix = random_matrix(random, kind, 32, 64)
    with np.errstate(all="ignore"):
        expected = ordered_product(matrix, x, activations)
    got = multiply(matrix, x, activations=activations, isa=isa)
    assert same(got, expected)
    assert np.isfinite(got[1]).all()


@pytest.mark.spec("KER-9")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", BLOCK_FORMATS, ids=names)
@pytest.mark.parametrize("activations", QUANTISED)
def test_every_half_precision_scale_is_read_exactly(isa, kind, activations):
    every = np.arange(1 << 16, dtype=np.uint16)
    every = every[np.isfinite(every.view(np.float16))]
    matrix = random_matrix(np.random.default_rng(0), kind, len(every), 32)
    matrix.rows[:, 0:2] = every.view(np.uint8).reshape(-1, 2)
    x = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    with np.errstate(all="ignore"):
        expected = ordered_product(matrix, x, activations)
    assert same(multiply(matrix, x, activations=activations, isa=isa), expected)


@pytest.mark.spec("KER-9")
@pytest.mark.parametrize("kind", [*BLOCKS, *SUPER, F16, BF16, F32], ids=names)
def test_unpacked_blocks_equal_what_the_gguf_package_reads(kind):
    matrix = random_matrix(np.random.default_rng(kind), kind, 40, 768)
    assert matrix.kind == kind
    truth = gguf.quants.dequantize(matrix.rows, gguf.GGMLQuantizationType(kind))
    assert np.array_equal(unpack(kind, matrix.rows).rows(np.arange(40)), truth)


def test_block_sizes_are_those_of_the_gguf_package():
    for kind, layout in (BLOCK_FORMATS | SUPER_FORMATS).items():
        sizes = (values_per_block(kind), layout.block_bytes)
        assert sizes == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]


@pytest.mark.spec("KER-34")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", BLOCK_FORMATS, ids=names)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF])
def test_the_greatest_sums_of_int12_are_exact(isa, kind, byte):
    """The products of whole numbers that all have one sign, with scales of 1: every bit of the truth fits a float32."""
    layout = BLOCK_FORMATS[kind]
    rows = np.full((3, 1, layout.block_bytes), byte, np.uint8)
    for start in range(0, 4 if layout.has_minimum else 2, 2):
        rows[..., start : start + 2] = np.array([start == 0], np.float16).view(np.uint8)
    matrix = StoredMatrix(kind, 3, 32, rows.reshape(3, -1))
    truth = 2039 * gguf.quants.dequantize(matrix.rows, gguf.GGMLQuantizationType(kind)).sum(axis=1, dtype=np.float64)
    for sign in (1, -1):
        x = np.full((1, 32), sign * 2039, np.float32)
        assert (multiply(matrix, x, activations="int12", isa=isa) == sign * truth).all()


@pytest.mark.spec("KER-33")
def test_rows_of_int12_are_within_half_a_step_whose_size_is_the_least_power_of_two():
    x = np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32)
    x[0, :2], x[1, 0] = [2039, -2039], 2039.5
    rows = quantise_int12(x)
    assert (np.abs(rows.q * rows.d[..., None] - x.reshape(50, 2, 32)) <= rows.d[..., None] / 2).all()
    assert (np.frexp(rows.d)[0] == 0.5).all()
    greatest = np.abs(x).reshape(50, 2, 32).max(axis=-1) / rows.d
    assert ((greatest <= 2039) & (greatest > 2039 / 2)).all()
    assert (rows.d[0, 0], rows.d[1, 0]) == (1, 2)


@pytest.mark.spec("KER-4")
def test_quantised_rows_are_within_half_a_step_and_keep_their_greatest_value():
    x = np.random.default_rng(1).standard_normal((50, 64)).astype(np.float32)
    rows = quantise_int8(x)
    error = np.abs(rows.q * rows.d[..., None] - x.reshape(50, 2, 32))
    assert (error <= rows.d[..., None] * 0.5001).all()
    assert (np.abs(rows.q).max(axis=-1) == 127).all()


def mxfp4_block(exponent, nibbles=0x17):
    """Return a block of MXFP4 whose numbers are those of one byte."""
    return np.array([[exponent, *[nibbles] * 16]], np.uint8)


@pytest.mark.spec("KER-42")
@pytest.mark.parametrize("exponent", [104, 114, 115, 127, 143])
def test_scales_of_mxfp4_that_half_precision_has_are_packed_exactly(exponent):
    matrix = StoredMatrix(MXFP4, 1, 32, mxfp4_block(exponent))
    truth = gguf.quants.dequantize(matrix.rows, gguf.GGMLQuantizationType.MXFP4)
    assert mxfp4_fits(matrix.rows)
    assert np.array_equal(as_floats(unpack(MXFP4, matrix.rows)).values, truth)
    got = multiply(matrix, np.eye(32, dtype=np.float32), activations="f32")
    assert np.array_equal(got[:, 0], truth[0])


@pytest.mark.spec("KER-42")
def test_a_block_of_zeros_has_any_scale_and_others_are_refused():
    zeros = StoredMatrix(MXFP4, 1, 32, mxfp4_block(0, 0x80))
    assert mxfp4_fits(zeros.rows)
    assert not multiply(zeros, np.ones((1, 32), np.float32), activations="int12").any()
    for exponent in (0, 103, 144, 255):
        matrix = StoredMatrix(MXFP4, 1, 32, mxfp4_block(exponent))
        assert not mxfp4_fits(matrix.rows)
        with pytest.raises(ValueError, match="scales that cannot be packed"):
            multiply(matrix, np.ones((1, 32), np.float32), activations="int12")
