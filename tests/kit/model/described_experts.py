"""The tensors of a checkpoint with experts as llama.cpp's converter has them: one for each part of a layer."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

Tensors = dict[str, np.ndarray]

_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def merged_experts(tensors: Tensors) -> Tensors:
    """Return `tensors` with experts stacked, (experts, rows, inputs), gate and up apart, and names that end as GGUF's do."""
    found: Tensors = {}
    stacks: dict[str, list[np.ndarray]] = defaultdict(list)
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match:
            prefix, number, part = match.groups()
            stack = stacks[f"{_plain(prefix)}.{_MIXTRAL.get(part, part)}.weight"]
            assert len(stack) == int(number)
            stack.append(tensor)
        else:
            found |= _apart(name, tensor)
    return found | {name: np.stack(stack) for name, stack in stacks.items()}


def _plain(name: str) -> str:
    return name.replace("block_sparse_moe", "mlp")


def _apart(name: str, tensor: np.ndarray) -> Tensors:
    if name.endswith("input_linear.weight"):  # granite
        prefix = _plain(name).replace("input_linear.weight", "experts")
        gate, up = np.split(tensor, 2, axis=1)
        return {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up}
    if name.endswith("output_linear.weight"):
        return {_plain(name).replace("output_linear", "experts.down_proj"): tensor}
    if ".mlp.experts." in name:  # gpt-oss
        return _gpt_oss(name, tensor)
    if name.endswith(("layer_scalar", ".experts.gate_up_proj", ".experts.down_proj")):  # gemma 4
        return {f"{name}.weight": tensor}
    name = name.replace("router.scale", "router.proj.scale").replace("router.per_expert", "experts.down_proj.")
    name = name.replace("down_proj._scale", "down_proj.scale")
    name = re.sub(r"e_score_correction_bias$", "e_score_correction.bias", name)
    squeezed = name.endswith(("e_score_correction.bias", "shared_expert_gate.weight"))
    return {re.sub("sinks$", "sinks.weight", name): tensor.reshape(-1) if squeezed else tensor}


def _gpt_oss(name: str, tensor: np.ndarray) -> Tensors:
    bias = name.endswith("_bias")
    stem, ending = name.removesuffix("_bias"), "bias" if bias else "weight"
    rows = tensor if bias else tensor.swapaxes(1, 2)
    if stem.endswith("gate_up_proj"):
        gate, up = (stem.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj"))
        return {f"{gate}.{ending}": rows[:, ::2], f"{up}.{ending}": rows[:, 1::2]}
    return {f"{stem}.{ending}": rows}
