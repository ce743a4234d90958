"""A second, very simple forward pass of a Llama model: the truth for the package's own.

float64, one sequence, full attention, loops over layers and heads; no tiles, no pages, no fusing. It shares no code with the
package, only the tensors, by GGUF's names, and the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def naive_hidden(
    tensors: Mapping[str, np.ndarray], shape: Any, tokens: Sequence[int], epsilon: float | None = None
) -> np.ndarray:
    """Return the final-normed hidden states of a token sequence, (T, hidden) float64."""
    epsilon = shape.epsilon if epsilon is None else epsilon
    x = tensors["token_embd.weight"][list(tokens)].astype(np.float64)
    for layer in range(shape.layers):
        w = {
            name.removeprefix(f"blk.{layer}."): tensor.astype(np.float64)
            for name, tensor in tensors.items()
            if name.startswith(f"blk.{layer}.")
        }
        x = x + _attention(_norm(x, w["attn_norm.weight"], epsilon), w, shape, layer, epsilon)
        y = _norm(x, w["ffn_norm.weight"], epsilon)
        gate = y @ w["ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["ffn_up.weight"].T)) @ w["ffn_down.weight"].T
    return _norm(x, tensors["output_norm.weight"].astype(np.float64), epsilon)


def naive_logits(tensors: Mapping[str, np.ndarray], shape: Any, tokens: Sequence[int]) -> np.ndarray:
    """Return the logits after every token of a sequence, (T, vocabulary) float64."""
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    return naive_hidden(tensors, shape, tokens) @ head.astype(np.float64).T


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon) * weight


def _attention(y: np.ndarray, w: Mapping[str, np.ndarray], shape: Any, layer: int, epsilon: float) -> np.ndarray:
    size = shape.head_size
    mixed = []
    for head in range(shape.heads):
        key_head = head // (shape.heads // shape.kv_heads)
        q = _project(y, w, "q", head, size)
        k = _project(y, w, "k", key_head, size)
        v = _project(y, w, "v", key_head, size)
        if shape.qk_norm:
            q = _norm(q, w["attn_q_norm.weight"], epsilon)
            k = _norm(k, w["attn_k_norm.weight"], epsilon)
        if layer not in shape.unrotated_layers:
            q, k = _turn(q, shape), _turn(k, shape)
        scores = np.where(_seen(len(y), shape, layer), q @ k.T / np.sqrt(size), -np.inf)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed.append(p / p.sum(axis=1, keepdims=True) @ v)
    out = np.concatenate(mixed, axis=1) @ w["attn_output.weight"].T
    return out + w["attn_output.bias"] if shape.output_bias else out


def _project(y: np.ndarray, w: Mapping[str, np.ndarray], name: str, head: int, size: int) -> np.ndarray:
    rows = slice(head * size, (head + 1) * size)
    out = y @ w[f"attn_{name}.weight"][rows].T
    bias = w.get(f"attn_{name}.bias")
    return out if bias is None else out + bias[rows]


def _seen(length: int, shape: Any, layer: int) -> np.ndarray:
    """Return which keys (columns) each row sees."""
    window = shape.windows[layer] if shape.windows else 0
    return np.array([[k <= q and (not window or q - k < window) for k in range(length)] for q in range(length)])


def _turn(x: np.ndarray, shape: Any) -> np.ndarray:
    """Rotate the pairs (2i, 2i + 1) of a head, as complex numbers."""
    n = shape.rotated
    speeds = np.array([_speed(2 * i / n, i, shape) for i in range(n // 2)])
    angles = np.arange(len(x))[:, None] * speeds
    amplitude = 1.0 if shape.rope_scaling is None else shape.rope_scaling.amplitude
    pairs = (x[:, 0:n:2] + 1j * x[:, 1:n:2]) * np.exp(1j * angles) * amplitude
    turned = x.copy()
    turned[:, 0:n:2], turned[:, 1:n:2] = pairs.real, pairs.imag
    return turned


def _speed(exponent: float, pair: int, shape: Any) -> float:
    """Return the angle from one position to the next of a pair, by the formula of its kind of scaling."""
    base, s = shape.rope_base, shape.rope_scaling
    plain = base**-exponent / shape.rope_linear_factor
    kind = type(s).__name__
    if kind == "DynamicScaling":
        longest, n = max(s.original, shape.context_tokens), shape.rotated
        return (base * (s.factor * longest / s.original - (s.factor - 1)) ** (n / (n - 2))) ** -exponent
    if kind == "Llama3Scaling":
        wavelength = 2 * math.pi / plain
        if wavelength < s.original / s.high_freq_factor:
            return plain
        if wavelength > s.original / s.low_freq_factor:
            return plain / s.factor
        smooth = (s.original / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor)
        return (1 - smooth) * plain / s.factor + smooth * plain
    if kind == "YarnScaling":
        return _yarn_speed(plain, pair, shape)
    assert s is None
    return plain


def _yarn_speed(plain: float, pair: int, shape: Any) -> float:
    s, n = shape.rope_scaling, shape.rotated
    fast, slow = (
        n * math.log(s.original / (2 * math.pi * turns)) / (2 * math.log(shape.rope_base))
        for turns in (s.beta_fast, s.beta_slow)
    )
    if s.truncate:
        fast, slow = math.floor(fast), math.ceil(slow)
    fast, slow = max(fast, 0), min(slow, n - 1)
    interpolated = min(max((pair - fast) / ((slow - fast) or 0.001), 0), 1)
    return plain / s.factor * interpolated + plain * (1 - interpolated)
