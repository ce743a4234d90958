"""A llama's forward pass a second time, as plainly as it can be written: the truth that `tlserve.model.llama` is held against.

float64, one sequence, full attention, loops over layers and heads; no tiles, no pages, no fusing. It shares no code with the
package: only the tensors, by GGUF's names, and the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def naive_hidden(tensors: Mapping[str, np.ndarray], shape, tokens, epsilon: float | None = None) -> np.ndarray:
    """Return the final-normed hidden states of a token sequence, (T, hidden) float64."""
    epsilon = shape.epsilon if epsilon is None else epsilon
    x = tensors["token_embd.weight"][list(tokens)].astype(np.float64)
    for layer in range(shape.layers):
        w = {
            name.removeprefix(f"blk.{layer}."): tensor.astype(np.float64)
            for name, tensor in tensors.items()
            if name.startswith(f"blk.{layer}.")
        }
        x = x + _attention(_norm(x, w["attn_norm.weight"], epsilon), w, shape) @ w["attn_output.weight"].T
        y = _norm(x, w["ffn_norm.weight"], epsilon)
        gate = y @ w["ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["ffn_up.weight"].T)) @ w["ffn_down.weight"].T
    return _norm(x, tensors["output_norm.weight"].astype(np.float64), epsilon)


def naive_logits(tensors: Mapping[str, np.ndarray], shape, tokens) -> np.ndarray:
    """Return the logits after every token of a sequence, (T, vocabulary) float64."""
    head = tensors.get("output.weight", tensors["token_embd.weight"])
    return naive_hidden(tensors, shape, tokens) @ head.astype(np.float64).T


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + epsilon) * weight


def _attention(y: np.ndarray, w: Mapping[str, np.ndarray], shape) -> np.ndarray:
    size = shape.head_size
    mixed = []
    for head in range(shape.heads):
        key_head = head // (shape.heads // shape.kv_heads)
        q = _turn(y @ w["attn_q.weight"][head * size : (head + 1) * size].T, shape)
        k = _turn(y @ w["attn_k.weight"][key_head * size : (key_head + 1) * size].T, shape)
        v = y @ w["attn_v.weight"][key_head * size : (key_head + 1) * size].T
        scores = np.where(np.tri(len(y), dtype=bool), q @ k.T / np.sqrt(size), -np.inf)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed.append(p / p.sum(axis=1, keepdims=True) @ v)
    return np.concatenate(mixed, axis=1)


def _turn(x: np.ndarray, shape) -> np.ndarray:
    """Rotate the pairs (2i, 2i + 1) of a head, as complex numbers."""
    n = shape.rotated
    frequencies = shape.rope_base ** (-np.arange(0, n, 2) / n)
    angles = np.arange(len(x))[:, None] / shape.rope_linear_factor * frequencies
    pairs = (x[:, 0:n:2] + 1j * x[:, 1:n:2]) * np.exp(1j * angles)
    turned = x.copy()
    turned[:, 0:n:2], turned[:, 1:n:2] = pairs.real, pairs.imag
    return turned
