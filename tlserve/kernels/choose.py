"""Which kernels a user asks for, and which instruction sets this processor and this build have.

Knows no models: `model.decoder.native.probe` tries whether native kernels agree with the reference.
"""

from __future__ import annotations

import attrs

from tlserve.kernels.native import native_isas


@attrs.frozen(kw_only=True)
class KernelChoice:
    """What a user asks for. `kernels`: "auto" (native where they were built and agree), "native" or "reference" (numpy).

    `activations`: "int12", "int8" or "f32" for quantised weights; "auto" is int12 where the model has such weights.
    `kv_precision`: "f16" or "f32". `isa`: one name of `native_isas()`, empty for the best. `weights`: "stored" as the files have
    them, or "q8_0": those of 16 and 32 bits in 8.
    """

    kernels: str = "auto"
    activations: str = "auto"
    kv_precision: str = "f16"
    weights: str = "stored"
    isa: str = ""

    @property
    def named(self) -> str:
        """Return the value of the setting `engine.kernels` that makes this choice."""
        return self.isa or self.kernels


def choose_kernels(name: str, **more: str) -> KernelChoice:
    """Return the choice for a value of the setting `engine.kernels`: "auto", "native", "reference" or an instruction set."""
    if name in {"auto", "native", "reference"}:
        return KernelChoice(kernels=name, **more)
    return KernelChoice(kernels="native", isa=name, **more)


def find_isa(name: str = "") -> str | None:
    """Return the instruction set `name`, or the best one where it is empty; None where native kernels cannot run on it."""
    found = native_isas()
    if not name:
        return found[0] if found else None
    return name if name in found else None
