"""What numpy's BLAS must be held to: one thread, because with more the bits would depend on how many.

A BLAS chooses its inner loops by the shape of the whole product, so the bits of a row change with the number of rows next to it.
`chains` and `lanes` therefore use products of few fixed shapes, and each tries them before it relies on them.
"""

from __future__ import annotations

import functools

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits  # type: ignore[import-untyped]


@functools.cache
def pin_to_one_thread() -> None:
    """Set every BLAS of this process to one thread, for as long as it runs."""
    threadpool_limits(limits=1, user_api="blas")


def describe() -> str:
    """Return what of numpy and its BLAS may decide bits: versions and the chosen processor architecture."""
    libraries = sorted(
        f"{info['internal_api']} {info.get('version')} {info.get('architecture')}"
        for info in threadpool_info()
        if info["user_api"] == "blas"
    )
    return f"numpy {np.__version__}, {', '.join(libraries) or 'unknown BLAS'}"
