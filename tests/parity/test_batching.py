"""The exactness contract at the forward pass: the bits of a row depend on its sequence's tokens up to it, and on nothing else.

The truth is each sequence alone, whole, in one step, in consecutive blocks. It is compared with random schedules: mixed with
others, in chunks, one row at a time, at any block size, in any blocks and over the old content of others. Here the reference
computes; `test_native_parity` does the same with the native kernels on several threads.
"""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.kit.engine.schedules import random_schedule, same_bits
from tests.kit.engine.step_batches import Rows, forward_rows, run_whole, step_batch
from tests.kit.model.tiny_models import KIN, tiny_llama
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load import load_model


@pytest.fixture(scope="module")
def alone():
    return tiny_llama()


@pytest.mark.spec("MOD-1", "MOD-39")
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=0)
@settings(max_examples=30)
def test_every_schedule_gives_the_bits_of_each_sequence_alone(alone, seed):
    random = np.random.default_rng(seed)  # hypothesis prints the seed of a failure
    sequences = [random.integers(0, 256, random.integers(1, 160)) for _ in range(random.integers(1, 9))]
    block_size = int(random.choice([1, 3, 8, 16, 64, 100]))
    blocks = sum(-(-len(tokens) // block_size) for tokens in sequences) + 3
    kv = alone.new_kv_store(blocks, block_size)
    for keys, values in zip(kv.keys, kv.values, strict=True):
        values[...] = random.standard_normal(values.shape)  # the content that earlier owners of the blocks left
        keys[...] = np.inf
    got = random_schedule(alone, kv, sequences, random, block_size, blocks, int(random.choice([1, 7, 40, 200])))
    for tokens, logits in zip(sequences, got, strict=True):
        assert same_bits(logits, run_whole(alone, tokens).logits)


@pytest.mark.spec("MOD-21")
@pytest.mark.parametrize("name", KIN)
def test_every_llama_family_model_gives_the_bits_of_each_sequence_alone(name):
    model = tiny_llama(**KIN[name])
    for seed in range(3):
        print(f"seed {seed}")
        random = np.random.default_rng(seed)
        sequences = [random.integers(0, 256, n) for n in (1, 30, 65, 150, 230)]
        kv = model.new_kv_store(40, 16)
        for keys in kv.keys:
            keys[...] = np.inf
        longest_chunk = int(random.choice([1, 20, 200]))
        got = random_schedule(model, kv, sequences, random, 16, 40, longest_chunk)
        for tokens, logits in zip(sequences, got, strict=True):
            assert same_bits(logits, run_whole(model, tokens).logits)


@pytest.mark.spec("MOD-1")
def test_hidden_states_have_the_bits_of_the_sequence_alone(alone):
    kv = alone.new_kv_store(8, 16)
    out = alone.forward(step_batch(Rows(range(30), 0, [4, 1]), Rows(range(50, 90), 0, [0, 7, 2])), kv)
    assert same_bits(out.hidden[30:], run_whole(alone, range(50, 90)).hidden)


@pytest.mark.spec("MOD-2")
def test_a_prefix_from_shared_blocks_gives_the_bits_of_a_cold_run(alone):
    prefix = list(range(48))
    kv = alone.new_kv_store(8, 16)
    alone.forward(step_batch(Rows(prefix, 0, [6, 2, 4])), kv)
    rows = [Rows([9, 8], 48, [6, 2, 4, 0]), Rows([1, 2, 3], 48, [6, 2, 4, 1])]
    first, second = forward_rows(alone, kv, *rows)
    assert same_bits(first, run_whole(alone, [*prefix, 9, 8]).logits[48:])
    assert same_bits(second, run_whole(alone, [*prefix, 1, 2, 3]).logits[48:])


@pytest.mark.spec("MOD-2")
def test_rejected_drafts_leave_no_trace(alone):
    kv = alone.new_kv_store(4, 16)
    forward_rows(alone, kv, Rows(range(20), 0, [3, 1]))
    forward_rows(alone, kv, Rows([200, 201, 202, 203], 20, [3, 1]))  # drafted, then not drawn
    (redone,) = forward_rows(alone, kv, Rows([5, 6], 20, [3, 1]))
    assert same_bits(redone, run_whole(alone, [*range(20), 5, 6]).logits[20:])


@pytest.mark.spec("MOD-3")
def test_a_sequence_of_nans_does_not_affect_its_neighbours():
    model = tiny_llama()
    model._parts.matrix("embedding").values[255] = np.nan  # one token whose row is not a number
    kv = model.new_kv_store(8, 16)
    broken, whole = forward_rows(model, kv, Rows([1, 255, 2], 0, [0]), Rows([1, 2, 3], 0, [1]))
    assert np.isnan(broken[1]).all()
    assert same_bits(broken[:1], run_whole(model, [1]).logits)
    assert same_bits(whole, run_whole(model, [1, 2, 3]).logits)
    (reused,) = forward_rows(model, kv, Rows([1, 2, 3], 0, [0]))  # the block of the broken sequence, used again
    assert same_bits(reused, whole)


@pytest.mark.spec("MOD-1", "MOD-39")
@pytest.mark.real_model
def test_the_real_model_gives_the_same_bits_batched_chunked_and_threaded(smol_path):
    seed = 20240607
    print(f"seed {seed}")
    random = np.random.default_rng(seed)
    one, two = (
        load_model(smol_path, threads=threads, kernels=KernelChoice(activations="f32", kv_precision="f32")).model
        for threads in (1, 2)
    )
    sequences = [random.integers(0, 49152, n) for n in (3, 70, 90)]
    kv = two.new_kv_store(30, 16)
    for tokens, logits in zip(sequences, random_schedule(two, kv, sequences, random, 16, 30, 60), strict=True):
        assert same_bits(logits, run_whole(one, tokens).logits)
