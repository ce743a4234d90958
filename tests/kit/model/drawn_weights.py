"""Random weights that follow from the names and shapes of a checkpoint's tensors, so that no weights need to be stored.

Needs numpy only: `tests/golden/make_architectures.py` draws the same ones for transformers.
"""

from __future__ import annotations

import math
import zlib

import numpy as np


def drawn(name: str, shape: tuple[int, ...], *, norms_less_one: bool = False) -> np.ndarray:
    """Return the tensor `name`, float32: norms near 1 (stored less one: near 0), biases near 0, matrices that keep the scale."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    values = random.standard_normal(shape)
    if name.endswith("bias"):
        return (0.2 * values).astype(np.float32)
    if "norm" in name or len(shape) < 2:
        return (0.3 * values + (0 if norms_less_one else 1)).astype(np.float32)
    gain = 0.5 if "embed" in name else 1.3 / math.sqrt(shape[-1])
    if len(shape) == 3 and "gate_up" in name:
        gain *= 5  # gpt-oss: some values reach the clamp of its activation
    return (gain * values).astype(np.float32)


def drawn_for_encoder(name: str, shape: tuple[int, ...], *, less_one: bool = False) -> np.ndarray:
    """Return the tensor `name` of an encoder: as `drawn`, but every table keeps its rows apart, and heads act on their input."""
    if name.endswith("relative_attention_bias.weight"):
        return 4 * drawn("embed" + name, shape)
    if len(shape) == 2 and ("norm" not in name.lower() or "embed" in name):
        return drawn(name, shape)
    return drawn(name if name.endswith("bias") else f"norm.{name}", shape, norms_less_one=less_one)
