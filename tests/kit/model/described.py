"""The tiny checkpoints of described architectures (tests/golden/architectures), with weights drawn from their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import safetensors.numpy

from tests.kit.model.drawn_weights import drawn
from tests.kit.source_tree import GOLDEN
from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import Model
from tlserve.model.architectures.registry import HF
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.stored_slots import StoredSlots
from tlserve.model.decoder.weights import Weights, read_weights
from tlserve.model.hugging_face.facts import hf_decoder
from tlserve.model.hugging_face.weights import open_weights
from tlserve.model.load import load_model

FOLDER = GOLDEN / "architectures"
TOKENIZER = {"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}
EXACT = KernelChoice(kernels="reference", kv_precision="f32")


@attrs.frozen(kw_only=True, eq=False)
class DescribedCase:
    """One case: `logprobs` are those of transformers after the tokens `rows` of `ids`."""

    name: str
    config: Mapping[str, Any]
    norms_less_one: bool
    ids: list[int]
    rows: list[int]
    shapes: Mapping[str, list[int]]
    logprobs: np.ndarray

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the weights."""
        return {
            name: drawn(name, tuple(shape), norms_less_one=self.norms_less_one) for name, shape in self.shapes.items()
        }


def described_cases() -> dict[str, DescribedCase]:
    """Return every case by name."""
    arrays = np.load(FOLDER / "logprobs.npz")
    cases = json.loads((FOLDER / "cases.json").read_text())
    return {name: DescribedCase(name=name, **case, logprobs=arrays[name]) for name, case in cases.items()}


def write_described(directory: Path, case: DescribedCase, **changes: object) -> Path:
    """Write a case as a model directory, with `changes` of its config."""
    directory.mkdir(exist_ok=True)
    safetensors.numpy.save_file(case.tensors(), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**case.config, **changes}))
    (directory / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return directory


def load_described(directory: Path, case: DescribedCase, context_tokens: int = 0, **changes: object) -> Model:
    """Return the model of a case in single precision in numpy."""
    path = write_described(directory, case, **changes)
    return load_model(path, threads=1, context_tokens=context_tokens, kernels=EXACT).model


def record_and_weights(directory: Path, case: DescribedCase, context_tokens: int = 0) -> tuple[Decoder, Weights]:
    """Return the record of a case and its weights, to run the one with a change over the other."""
    decoder = hf_decoder(case.config, context_tokens)
    _, form = HF[decoder.architecture]
    with ExitStack() as stack:
        files = open_weights(write_described(directory, case), stack)
        return decoder, read_weights(
            decoder, StoredSlots(files, decoder, form.storage(tied=decoder.tied)), lambda: case.name
        )
