"""Which kernels run: what was wished for, and what this processor and this build have.

Owns the wish and its words. Refuses to know models: whether kernels agree with the reference is asked by `model.native_probe`.
"""

from __future__ import annotations

import logging

import attrs

from tlserve.errors import SettingsError
from tlserve.kernels.native import native_isas

_log = logging.getLogger("tlserve.kernels")


@attrs.frozen(kw_only=True)
class KernelChoice:
    """A wish. `kernels`: "auto" (native where they are there and agree), "native" or "reference" (numpy).

    `activations`: "int8" or "f32" for quantised weights; "auto" is int8 where the model has such weights. `kv_precision`: "f16"
    or "f32". `isa`: one name of `native_isas()`, empty for the best. `weights`: "stored" as the files have them, or "q8_0":
    those of 16 and 32 bits in 8.
    """

    kernels: str = "auto"
    activations: str = "auto"
    kv_precision: str = "f16"
    weights: str = "stored"
    isa: str = ""


def choose_isa(choice: KernelChoice) -> str | None:
    """Return the instruction set to run natively on, or None for numpy.

    Raises `SettingsError` where native kernels were demanded and are not there.
    """
    if choice.kernels == "reference":
        return None
    found = native_isas()
    if choice.isa in found or (found and not choice.isa):
        return choice.isa or found[0]
    reason = "were not built, or this processor has none of their instruction sets"
    if choice.kernels == "native":
        raise SettingsError(
            (f'engine.kernels = "native": the native kernels {reason}; install with a C compiler, or "auto"',)
        )
    _log.warning("the native kernels %s: numpy computes, with the same answers, slowly", reason)
    return None
