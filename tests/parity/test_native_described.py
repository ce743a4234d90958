"""Described architectures on the native kernels: the bits of the numpy reference, in any schedule."""

import numpy as np
import pytest

from tests.kit.engine.real_runs import Models, play
from tests.kit.engine.schedules import random_schedule, same_bits
from tests.kit.engine.step_batches import run_whole
from tests.parity.test_described import CASES, EXACT, write_described
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load import load_model


@pytest.mark.spec("KER-18", "MOD-56")
@pytest.mark.parametrize("weights", ["stored", "q8_0"])
@pytest.mark.parametrize("name", CASES)
def test_every_architecture_has_the_bits_of_the_reference_natively(tmp_path, name, weights):
    case = CASES[name]
    path = write_described(tmp_path, case)
    native, numpy = (
        run_whole(
            load_model(
                path, threads=2, kernels=KernelChoice(kernels=kernels, kv_precision="f32", weights=weights)
            ).model,
            case.ids,
        )
        for kernels in ("native", "reference")
    )
    assert same_bits(native.logits, numpy.logits)


@pytest.mark.spec("ENG-1", "MOD-57")
@pytest.mark.parametrize("name", EXACT)
def test_a_sequence_has_its_bits_natively_in_any_chunks_and_next_to_any_neighbours(tmp_path, name):
    path = write_described(tmp_path, CASES[name])
    model = load_model(path, threads=2, kernels=KernelChoice(kernels="native")).model
    random = np.random.default_rng(11)
    sequences = [random.integers(3, 96, n) for n in (1, 17, 40)]
    for _ in range(5):
        got = random_schedule(model, model.new_kv_store(30, 8), sequences, random, 8, 30, 9)
        for tokens, logits in zip(sequences, got, strict=True):
            assert same_bits(logits, run_whole(model, tokens).logits)


@pytest.mark.spec("ENG-1", "MOD-57")
@pytest.mark.parametrize("name", EXACT)
def test_requests_that_are_cached_preempted_and_drafted_keep_their_bits_natively(tmp_path, name):
    path = write_described(tmp_path, CASES[name])
    model = load_model(path, threads=2, kernels=KernelChoice(kernels="native")).model
    play(Models((model,), model, tuple(range(3, 96))), seed=5)
