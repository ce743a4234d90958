"""The arithmetic in C: built with the package where there is a compiler, missing otherwise.

Finds out whether it was built. The extension module `_native` packs weights and runs whole steps; its sources are next to this
file, each with its shapes and its order of sums at the beginning.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_MODULE = "tlserve.kernels.native._native"


def load_native() -> ModuleType | None:
    """Return the extension module, or None where it was not built or does not fit this interpreter."""
    try:
        return importlib.import_module(_MODULE)
    except ImportError:
        return None


def native_isas() -> tuple[str, ...]:
    """Return the instruction sets that this processor and the extension both have, best first; none without the extension."""
    module = load_native()
    return () if module is None else tuple(module.isas())
