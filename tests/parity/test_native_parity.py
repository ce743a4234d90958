"""The exactness contract on the native kernels: a row has the bits that ordered numpy gives its sequence alone."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit.engine.schedules import random_schedule, same_bits
from tests.kit.engine.step_batches import Rows, forward_rows, run_whole, step_batch
from tests.kit.model.native_models import (
    ACTIVATIONS,
    BF16,
    F16,
    F32,
    INT8,
    INT12,
    ISAS,
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
    native,
    ordered,
    stored,
    super_shape,
)
from tests.kit.model.tiny_models import read_arrays, tiny_shape, tiny_tensors
from tlserve.kernels.choose import KernelChoice
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.load import load_model

SHAPES = {
    "grouped": block_shape(),
    "one key head": block_shape(kv_heads=1),
    "as many key heads": block_shape(kv_heads=4),
    "three to one, heads of 64": block_shape(heads=6, kv_heads=2, head_size=64, rotated=64),
    "seven to one": block_shape(heads=7, kv_heads=1, head_size=32, rotated=32),
    "shares of a row that are no whole blocks": block_shape(heads=2, kv_heads=2, head_size=16),
    "half of each head turns": block_shape(rotated=8),
    "a vocabulary that is no whole panel": block_shape(vocabulary=101),
    "heads of 80": block_shape(heads=2, kv_heads=1, head_size=80, rotated=80),
}


@pytest.fixture(scope="module", params=[INT8, INT12], ids=str)
def truth(request):
    shape = block_shape()
    return shape, stored(shape), ordered(shape, stored(shape), request.param), request.param


@pytest.mark.spec("KER-1", "KER-22")
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=0)
@settings(max_examples=60)
def test_every_schedule_gives_the_bits_of_each_sequence_alone_in_numpy(truth, seed):
    shape, tensors, alone, numerics = truth
    random = np.random.default_rng(seed)  # hypothesis prints the seed of a failure
    sequences = [random.integers(0, 256, random.integers(1, 120)) for _ in range(random.integers(1, 7))]
    block_size = int(random.choice([1, 3, 8, 16, 32, 48, 64, 100]))
    blocks = sum(-(-len(tokens) // block_size) for tokens in sequences) + 3
    model = native(shape, tensors, numerics, isa=str(random.choice(ISAS)), threads=int(random.integers(1, 4)))
    kv = model.new_kv_store(blocks, block_size)
    kv.values[...] = random.standard_normal(kv.values.shape)  # the content that earlier owners of the blocks left
    kv.keys[...] = random.choice([np.inf, -np.inf, 7.0])
    got = random_schedule(model, kv, sequences, random, block_size, blocks, int(random.choice([1, 7, 40, 200])))
    for tokens, logits in zip(sequences, got, strict=True):
        assert same_bits(logits, run_whole(alone, tokens).logits)


@pytest.mark.spec("KER-2")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("activations", QUANTISED)
@pytest.mark.parametrize("kv_precision", ["f16", "f32"])
def test_every_shape_has_the_bits_of_numpy_on_every_instruction_set(isa, name, activations, kv_precision):
    shape, numerics = SHAPES[name], Numerics(activations, kv_precision)
    tensors = stored(shape, seed=4)
    tokens = np.random.default_rng(4).integers(0, shape.vocabulary, 70)
    ours = run_whole(native(shape, tensors, numerics, isa=isa, threads=2), tokens)
    expected = run_whole(ordered(shape, tensors, numerics), tokens)
    assert same_bits(ours.logits, expected.logits)
    assert same_bits(ours.hidden, expected.hidden)


@pytest.mark.spec("KER-2", "MOD-8")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("windows", [(0, 0), (300, 20)], ids=str)
@pytest.mark.parametrize("kv_precision", ["f16", "f32"])
def test_several_segments_of_keys_have_the_bits_of_numpy_in_all_chunks(isa, windows, kv_precision):
    shape, numerics = (
        block_shape(context_tokens=800, windows=windows, heads=6, kv_heads=2),
        Numerics("int12", kv_precision),
    )
    tensors = stored(shape, seed=5)
    random = np.random.default_rng(5)
    sequences = [random.integers(0, 256, n) for n in (700, 257)]
    model, alone = native(shape, tensors, numerics, isa=isa, threads=2), ordered(shape, tensors, numerics)
    expected = [run_whole(alone, tokens).logits for tokens in sequences]
    for block_size, most_rows in ((16, 300), (7, 40), (64, 1000)):
        blocks = sum(-(-len(tokens) // block_size) for tokens in sequences) + 3
        kv = model.new_kv_store(blocks, block_size)
        got = random_schedule(model, kv, sequences, random, block_size, blocks, most_rows)
        assert all(same_bits(*pair) for pair in zip(got, expected, strict=True)), block_size


@pytest.mark.spec("KER-2")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, F16, BF16, F32], ids=KIND_NAMES.get)
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_every_stored_type_has_the_bits_of_numpy_with_all_activations(isa, kind, activations):
    shape, numerics = block_shape(layers=1), Numerics(activations, "f16")
    tensors = stored(shape, [kind] * 7)
    tokens = np.random.default_rng(kind).integers(0, 256, 21)
    ours = run_whole(native(shape, tensors, numerics, isa=isa, threads=2), tokens)
    assert same_bits(ours.logits, run_whole(ordered(shape, tensors, numerics), tokens).logits)


@pytest.mark.spec("KER-2")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", SUPER, ids=KIND_NAMES.get)
@pytest.mark.parametrize("activations", ACTIVATIONS)
def test_every_kind_of_super_blocks_has_the_bits_of_numpy_with_all_activations(isa, kind, activations):
    shape, numerics = super_shape(layers=1), Numerics(activations, "f16")
    tensors = stored(shape, [kind] * 7)
    tokens = np.random.default_rng(kind).integers(0, 256, 7 if activations == "f32" else 30)
    ours = run_whole(native(shape, tensors, numerics, isa=isa, threads=2), tokens)
    assert same_bits(ours.logits, run_whole(ordered(shape, tensors, numerics), tokens).logits)


@pytest.mark.spec("KER-20")
@pytest.mark.parametrize("numerics", [INT8, INT12], ids=str)
def test_a_mixture_of_super_blocks_gives_the_bits_of_each_sequence_alone_in_numpy(numerics):
    shape = super_shape()
    tensors = stored(shape, SUPER_MIXED, seed=11)
    random = np.random.default_rng(11)
    sequences = [random.integers(0, 256, n) for n in (1, 17, 40)]
    model, alone = native(shape, tensors, numerics, threads=2), ordered(shape, tensors, numerics)
    got = random_schedule(model, model.new_kv_store(30, 8), sequences, random, 8, 30, 9)
    for tokens, logits in zip(sequences, got, strict=True):
        assert same_bits(logits, run_whole(alone, tokens).logits)


@pytest.mark.spec("KER-2")
@pytest.mark.parametrize("isa", ISAS)
def test_sizes_that_are_not_whole_blocks_have_the_bits_of_numpy_in_f32(isa):
    shape = tiny_shape(hidden=27, intermediate=50, head_size=6, rotated=6, vocabulary=101)
    tensors = read_arrays(shape, tiny_tensors(shape, 2))[1]
    numerics = Numerics("f32", "f32")
    ours = run_whole(native(shape, tensors, numerics, isa=isa, threads=2), range(40))
    assert same_bits(ours.logits, run_whole(ordered(shape, tensors, numerics), range(40)).logits)


def test_numpy_gives_the_same_bits_in_chunks_and_next_to_neighbours(truth):
    _, _, alone, _ = truth
    random = np.random.default_rng(9)
    sequences = [random.integers(0, 256, n) for n in (1, 17, 40)]
    got = random_schedule(alone, alone.new_kv_store(30, 8), sequences, random, 8, 30, 9)
    for tokens, logits in zip(sequences, got, strict=True):
        assert same_bits(logits, run_whole(alone, tokens).logits)


def test_hidden_states_and_logits_of_chosen_rows_are_those_of_all_rows(truth):
    shape, tensors, _, numerics = truth
    model = native(shape, tensors, numerics, threads=2)
    batch = step_batch(Rows(range(30), 0, [4, 1]), Rows(range(50, 90), 0, [0, 7, 2]))
    everything = model.forward(batch, model.new_kv_store(8, 16))
    some = type(batch)(
        tokens=batch.tokens,
        positions=batch.positions,
        row_starts=batch.row_starts,
        block_tables=batch.block_tables,
        logit_rows=np.int32([3, 29, 69]),
        hidden_rows=np.int32([0, 45]),
    )
    out = model.forward(some, model.new_kv_store(8, 16))
    assert same_bits(out.logits, everything.logits[[3, 29, 69]])
    assert same_bits(out.hidden, everything.hidden[[0, 45]])


@pytest.mark.parametrize("make", [native, ordered])
def test_a_step_without_requested_rows_still_stores_its_keys(truth, make):
    shape, tensors, alone, numerics = truth
    model = make(shape, tensors, numerics)
    kv, nothing = model.new_kv_store(2, 16), np.empty(0, np.int32)
    batch = step_batch(Rows(range(20), 0, [1, 0]))
    quiet = type(batch)(
        tokens=batch.tokens,
        positions=batch.positions,
        row_starts=batch.row_starts,
        block_tables=batch.block_tables,
        logit_rows=nothing,
        hidden_rows=nothing,
    )
    out = model.forward(quiet, kv)
    assert out.logits.shape == (0, 256)
    assert out.hidden.shape == (0, 64)
    (after,) = forward_rows(model, kv, Rows([5], 20, [1, 0]))
    assert same_bits(after, run_whole(alone, [*range(20), 5]).logits[20:])


@pytest.mark.spec("KER-6")
@pytest.mark.parametrize("token_value", [np.nan, np.inf, 1e30])
def test_a_sequence_whose_numbers_overflow_does_not_affect_its_neighbours(token_value):
    shape = tiny_shape()
    arrays = tiny_tensors(shape, 1)
    arrays["token_embd.weight"][255] = token_value
    tensors = read_arrays(shape, arrays)[1]
    model = native(shape, tensors, Numerics("f32", "f16"), threads=2)
    kv = model.new_kv_store(8, 16)
    broken, whole = forward_rows(model, kv, Rows([1, 255, 2], 0, [0]), Rows([1, 2, 3], 0, [1]))
    assert same_bits(broken[:1], run_whole(model, [1]).logits)
    alone = run_whole(model, [1, 2, 3]).logits
    assert same_bits(whole, alone)
    (reused,) = forward_rows(model, kv, Rows([1, 2, 3], 0, [0]))  # the block of the broken sequence, used again
    assert same_bits(reused, alone)


@pytest.mark.spec("KER-1")
@pytest.mark.parametrize("numerics", [INT8, INT12], ids=str)
def test_a_prompt_in_many_parts_has_the_bits_of_its_tokens_one_by_one(numerics):
    shape = block_shape(context_tokens=700)
    tensors = stored(shape, seed=8)
    tokens = np.random.default_rng(8).integers(0, 256, 600)
    whole = run_whole(native(shape, tensors, numerics, threads=3), tokens).logits
    model = native(shape, tensors, numerics)
    kv = model.new_kv_store(40, 16)
    for position, token in enumerate(tokens.tolist()):
        (row,) = forward_rows(model, kv, Rows([token], position, range(40)))
        assert same_bits(row[0], whole[position])


@pytest.mark.spec("KER-3")
def test_numerics_depend_on_what_decides_bits_not_on_the_kernels(truth):
    shape, tensors, alone, numerics = truth
    same = {
        native(shape, tensors, numerics, isa=isa, threads=threads).spec.numerics for isa in ISAS for threads in (1, 2)
    }
    assert same == {alone.spec.numerics}
    every = {
        native(shape, tensors, Numerics(activations, kv_precision)).spec.numerics
        for activations in ACTIVATIONS
        for kv_precision in ("f16", "f32")
    }
    assert len(every) == 6
    assert same < every
    named = f"native ({ISAS[0]}, {numerics.activations} activations, "
    assert native(shape, tensors, numerics, threads=2).spec.kernels == named + "2 threads)"
    assert native(shape, tensors, numerics).spec.kernels == named + "1 thread)"
    assert MIXED[0] == Q4_1


@pytest.fixture(scope="module", params=QUANTISED)
def smol(smol_path, request):
    """Return the real model on every instruction set, with one and two threads, and in numpy."""

    def loaded(kernels, isa="", threads=1):
        choice = KernelChoice(kernels=kernels, activations=request.param, isa=isa)
        return load_model(smol_path, threads=threads, kernels=choice).model

    reference = loaded("reference")
    fast = [loaded("native", isa, threads) for isa, threads in {(ISAS[0], 1), (ISAS[0], 2), (ISAS[-1], 2)}]
    return reference, fast


@pytest.mark.spec("KER-2")
@pytest.mark.real_model
def test_the_real_model_has_the_bits_of_numpy(smol):
    reference, fast = smol
    tokens = np.random.default_rng(5).integers(0, 49152, 33)
    expected = run_whole(reference, tokens)
    for model in fast:
        out = run_whole(model, tokens)
        assert same_bits(out.logits, expected.logits)
        assert same_bits(out.hidden, expected.hidden)


@pytest.mark.spec("KER-1")
@pytest.mark.real_model
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=5)
def test_the_real_model_gives_each_sequence_its_bits_in_random_schedules(smol, seed):
    _, fast = smol
    random = np.random.default_rng(seed)
    sequences = [random.integers(0, 49152, random.integers(1, 60)) for _ in range(random.integers(1, 5))]
    block_size = int(random.choice([3, 16, 64]))
    blocks = sum(-(-len(tokens) // block_size) for tokens in sequences)
    model = fast[random.integers(len(fast))]
    kv = model.new_kv_store(blocks, block_size)
    got = random_schedule(model, kv, sequences, random, block_size, blocks, int(random.choice([1, 13, 64])))
    for tokens, logits in zip(sequences, got, strict=True):
        assert same_bits(logits, run_whole(fast[0], tokens).logits)
