"""The BLAS of numpy."""

import pytest
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from tlserve.kernels.reference import blas


@pytest.mark.spec("MOD-4")
def test_the_blas_runs_on_one_thread_once_pinned():
    blas.pin_to_one_thread()
    assert all(info["num_threads"] == 1 for info in threadpool_info() if info["user_api"] == "blas")
