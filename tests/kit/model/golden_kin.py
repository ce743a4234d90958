"""The tiny checkpoints of tests/golden/kin: each case as a directory as on a hub, and the results of transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from tests.kit.source_tree import GOLDEN
from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import Model
from tlserve.model.load import load_model

KIN = GOLDEN / "kin"
TOKENIZER = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}


@attrs.frozen(kw_only=True, eq=False)
class KinCase:
    """One case: `logits` of `rows`, `next_logprobs` of the prompt, and (not for dynamic scaling) the greedy answer."""

    name: str
    weights: str
    config: Mapping[str, Any]
    ids: list[int]
    rows: np.ndarray
    logits: np.ndarray
    next_logprobs: np.ndarray
    greedy: np.ndarray
    margins: np.ndarray


def kin_cases() -> dict[str, KinCase]:
    """Return every case by name."""
    arrays = np.load(KIN / "kin_logits.npz")
    nothing = np.empty(0)
    parts = ("rows", "logits", "next_logprobs", "greedy", "margins")
    return {
        case["name"]: KinCase(**case, **{part: arrays.get(f"{case['name']}/{part}", nothing) for part in parts})
        for case in json.loads((KIN / "kin.json").read_text())
    }


def write_kin(directory: Path, case: KinCase, **changes: object) -> Path:
    """Write a case as a model directory with a tokenizer of no tokens and with `changes` of its config."""
    directory.mkdir(exist_ok=True)
    for file in (KIN / case.weights).iterdir():
        shutil.copyfile(file, directory / file.name)
    (directory / "config.json").write_text(json.dumps({**case.config, **changes}))
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return directory


def load_kin(directory: Path, case: KinCase, kernels: KernelChoice) -> Model:
    """Return the model of a case; dynamic scaling is compared at the length of its prompt."""
    dynamic = "dynamic" in case.name and len(case.ids) > case.config["max_position_embeddings"]
    context = len(case.ids) if dynamic else 0
    if "linear" in case.name:
        context = 256  # the config's factor times its context
    return load_model(write_kin(directory, case), threads=1, context_tokens=context, kernels=kernels).model
