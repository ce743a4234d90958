"""Free what a model has left, and give the memory back to the machine.

Owns both steps. glibc keeps up to 64 MiB of freed memory at the end of the heap of each thread, so its limit is lowered while the
model is freed; then free pages between used ones are given back. Other C libraries need neither. The collector does not run: it
would hold all other threads for a tenth of a second, and a backend that has ended refers to no weights.

Source: mallopt(3) and malloc_trim(3); `heap_trim` of glibc's malloc, which looks at the limit when something is freed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_USUAL_TRIM_BYTES = 64 << 20
_USUAL_MMAP_BYTES = 32 << 20
"""The limits that glibc arrives at by itself once large arrays were freed."""


def release_memory(owned: list[object]) -> None:
    """Free the objects of `owned`, of which the caller has no other reference; for a worker thread, it can take long."""
    libc = ctypes.CDLL(None)
    with _low_limit(libc):
        owned.clear()
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


@contextmanager
def _low_limit(libc: ctypes.CDLL) -> Iterator[None]:
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(_M_MMAP_THRESHOLD, _USUAL_MMAP_BYTES)
    libc.mallopt(_M_TRIM_THRESHOLD, 0)
    try:
        yield
    finally:
        libc.mallopt(_M_TRIM_THRESHOLD, _USUAL_TRIM_BYTES)
