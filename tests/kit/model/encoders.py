"""The tiny checkpoints of encoders (tests/golden/encoders), with weights drawn from their names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import safetensors.numpy

from tests.kit.engine.step_batches import Rows, step_batch
from tests.kit.model.drawn_weights import drawn, drawn_for_encoder
from tests.kit.source_tree import GOLDEN
from tlserve.kernels.interface import Model
from tlserve.model.encoder.architectures.facts import EncoderFacts
from tlserve.model.encoder.architectures.registry import encoder_form
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.weights import EncoderWeights, read_encoder_weights
from tlserve.model.fields import Fields
from tlserve.model.hugging_face.weights import open_weights

FOLDER = GOLDEN / "encoders"
_SENTENCES = FOLDER / "sentences.json"
SENTENCES: dict[str, Any] = json.loads(_SENTENCES.read_text()) if _SENTENCES.is_file() else {}
_WORDS = [*(f"<{i}>" for i in range(3)), *(f"w{i}" for i in range(3, 96))]


def tokenizer_document(*, types: bool = True) -> dict[str, Any]:
    """Return a tokenizer.json: words w3 .. w95, <0> before a text, <2> after it and between two."""
    special = [
        {
            "id": i,
            "content": f"<{i}>",
            "special": True,
            "single_word": False,
            "lstrip": i == 1,
            "rstrip": False,
            "normalized": False,
        }
        for i in range(3)
    ]
    tokens = {f"<{i}>": {"id": f"<{i}>", "ids": [i], "tokens": [f"<{i}>"]} for i in (0, 2)}

    def of(token: int, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": f"<{token}>", "type_id": kind}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    second = 1 if types else 0
    between = [of(2, 0)] if types else [of(2, 0), of(2, 0)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [of(0, 0), text("A", 0), of(2, 0)],
            "pair": [of(0, 0), text("A", 0), *between, text("B", second), of(2, second)],
            "special_tokens": tokens,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "<1>",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {word: i for i, word in enumerate(_WORDS)},
        },
    }


@attrs.frozen(kw_only=True, eq=False)
class EncoderCase:
    """One case: `expected` are the hidden states of `rows` of the tokens `ids`, or the logits of a head."""

    name: str
    config: Mapping[str, Any]
    ids: list[int]
    rows: list[int]
    shapes: Mapping[str, list[int]]
    expected: np.ndarray

    @property
    def scores(self) -> bool:
        """Return whether the model has a head that makes scores."""
        return "Model" not in self.config["architectures"][0]

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the weights."""
        less_one = self.config["model_type"] == "gemma3_text"
        return {name: drawn_for_encoder(name, tuple(shape), less_one=less_one) for name, shape in self.shapes.items()}


def encoder_cases() -> dict[str, EncoderCase]:
    """Return every case by name."""
    arrays = np.load(FOLDER / "arrays.npz")
    cases = json.loads((FOLDER / "cases.json").read_text())
    return {name: EncoderCase(name=name, **case, expected=arrays[name]) for name, case in cases.items()}


def jina_cases() -> dict[str, EncoderCase]:
    """Return the cases of which transformers has no class: `expected` is from llama.cpp."""
    stored, arrays = json.loads((FOLDER / "jina.json").read_text()), np.load(FOLDER / "llama_cpp.npz")
    return {name: EncoderCase(name=name, **case, expected=arrays[name]) for name, case in stored.items()}


def write_encoder(directory: Path, case: EncoderCase, **changes: object) -> Path:
    """Write a case as a model directory, with `changes` of its config."""
    directory.mkdir(exist_ok=True)
    safetensors.numpy.save_file(case.tensors(), directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**case.config, **changes}))
    typed = case.config["model_type"] in ("bert", "nomic_bert")
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_document(types=typed)))
    return directory


def whole_hidden(model: Model, *sequences: list[int]) -> list[np.ndarray]:
    """Return the hidden states of each of `sequences`, all in one step."""
    blocks = (0,) if model.spec.bidirectional else (0, 1, 2, 3)
    batch = step_batch(*(Rows(tokens, 0, blocks) for tokens in sequences))
    batch = attrs.evolve(batch, logit_rows=np.zeros(0, np.int32))
    output = model.forward(batch, model.new_kv_store(4, 16))
    return np.split(output.hidden, batch.row_starts[1:-1])


def encoder_and_weights(directory: Path, case: EncoderCase) -> tuple[Encoder, EncoderWeights]:
    """Return the record of a case without its head, and its weights."""
    write_encoder(directory, case)
    config = Fields(case.config, "config.json: ")
    form, _ = encoder_form(config)
    encoder = form.describe(EncoderFacts(config))
    with ExitStack() as stack:
        source = open_weights(directory, stack)
        others = frozenset(source.shapes())  # a head is not read here
        return encoder, read_encoder_weights(encoder, source, form.storages[0], case.name, others)


def write_sentence_encoder(directory: Path, name: str) -> Path:
    """Write a case of `sentences.json`: the weights of its encoder, and the files of its modules."""
    case = SENTENCES["sentences"][name]
    path = write_encoder(directory, encoder_cases()[case["case"]])
    for file, document in case["files"].items():
        (path / file).parent.mkdir(exist_ok=True)
        (path / file).write_text(json.dumps(document))
        if "Dense" in file:
            folder = file.removesuffix("/config.json")
            safetensors.numpy.save_file(dense_tensors(folder, document), path / folder / "model.safetensors")
    return path


def dense_tensors(folder: str, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the weights of a dense layer."""
    size = (config["out_features"], config["in_features"])
    tensors = {"linear.weight": drawn(f"{folder}.weight", size)}
    return tensors | ({"linear.bias": drawn(f"{folder}.bias", size[:1])} if config["bias"] else {})
