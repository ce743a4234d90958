"""Described architectures on the native kernels: the bits of the numpy reference."""

import pytest

from tests.kit.engine.schedules import same_bits
from tests.kit.engine.step_batches import run_whole
from tests.parity.test_described import CASES, write_described
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load import load_model

NATIVE_CASES = ["seed_oss", "ernie4_5", "phi3", "phi3, window", "phi3, longrope, long"]


@pytest.mark.spec("KER-18", "MOD-56")
@pytest.mark.parametrize("name", NATIVE_CASES)
def test_an_architecture_that_runs_natively_has_the_bits_of_the_reference(tmp_path, name):
    case = CASES[name]
    path = write_described(tmp_path, case)
    native, numpy = (
        run_whole(
            load_model(path, threads=2, kernels=KernelChoice(kernels=kernels, kv_precision="f32")).model, case.ids
        )
        for kernels in ("native", "reference")
    )
    assert same_bits(native.logits, numpy.logits)
