"""A tiny random BERT sentence encoder: its tensors, its directory as sentence-transformers saves one, and its naive forward.

The naive forward is the truth for `tlserve.model.encoder.ordered`: float64, one sequence, a loop over heads, `math.erf`; it
shares no code with the package.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import Pooling
from tlserve.model.encoder.architectures.berts import BERT_NAMES, bert
from tlserve.model.encoder.architectures.facts import EncoderFacts
from tlserve.model.encoder.ordered import OrderedEncoder
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.slots import encoder_slots
from tlserve.model.encoder.weights import EncoderWeights
from tlserve.model.fields import Fields
from tlserve.model.loaded_model import LoadOptions

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = (*SPECIAL, *".,!?[]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "cat", "sat", "##ing")
UNK, CLS, SEP = 1, 2, 3

CONFIG = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_act": "gelu",
    "hidden_size": 32,
    "intermediate_size": 80,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 96,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "vocab_size": len(VOCABULARY),
}
MODULES = [
    {"idx": idx, "name": str(idx), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for idx, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))
]
POOLING = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
MAX_SEQ_LENGTH = 64
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": {"max_length": 16, "strategy": "LongestFirst", "stride": 0},
    "padding": None,
    "added_tokens": [
        {"id": i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False}
        for i, token in enumerate(SPECIAL)
    ],
    "normalizer": {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": True,
        "strip_accents": None,
        "lowercase": True,
    },
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]}
            for token, number in (("[CLS]", CLS), ("[SEP]", SEP))
        },
    },
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: i for i, token in enumerate(VOCABULARY)},
    },
}


def tiny_bert_tensors(seed: int = 0, **changes: Any) -> dict[str, np.ndarray]:
    """Return the tensors of the tiny BERT, drawn from `seed`."""
    random = np.random.default_rng(seed)

    def draw(name: str, size: tuple[int, ...]) -> np.ndarray:
        if "LayerNorm" in name:
            return random.uniform(0.5, 1.5, size) - name.endswith("bias")
        return random.standard_normal(size) / math.sqrt(size[-1] if "embeddings" not in name else 1)

    slots = encoder_slots(tiny_bert_record(**changes))
    return {tensor: draw(tensor, slots[slot].shape).astype(np.float32) for slot, tensor in _tensor_names(slots).items()}


def tiny_bert_record(**changes: Any) -> Encoder:
    """Return what the tiny BERT computes."""
    return bert(EncoderFacts(Fields({**CONFIG, **changes}, ""), MAX_SEQ_LENGTH))


def _tensor_names(slots: Iterable[str]) -> dict[str, str]:
    """Return the name in the file of every slot."""
    names = {}
    for slot in slots:
        layer, part = slot.split(".", 1) if slot[0].isdigit() else ("", slot)
        kind = "bias" if part.endswith(".bias") else "weight"
        names[slot] = f"{BERT_NAMES[part.removesuffix('.bias')].format(layer)}.{kind}"
    return names


def tiny_bert(
    tensors: Mapping[str, np.ndarray] | None = None, threads: int = 1, *, kernels: str = "auto", **changes: Any
) -> OrderedEncoder:
    """Return the tiny BERT in memory."""
    record = tiny_bert_record(**changes)
    tensors = tensors or tiny_bert_tensors(**changes)
    arrays = {slot: tensors[name] for slot, name in _tensor_names(encoder_slots(record)).items()}
    options = LoadOptions(threads=threads, kernels=KernelChoice(kernels=kernels))
    return OrderedEncoder(record, EncoderWeights(arrays, "tiny"), Pooling(), options)


def write_tiny_bert(directory: Path, tensors: Mapping[str, np.ndarray] | None = None, **changes: Any) -> Path:
    """Write the directory and return it; `changes` are of the config."""
    documents = {
        "config.json": {**CONFIG, **changes},
        "modules.json": MODULES,
        "1_Pooling/config.json": POOLING,
        "sentence_bert_config.json": {"max_seq_length": MAX_SEQ_LENGTH, "do_lower_case": False},
        "tokenizer.json": TOKENIZER,
        "tokenizer_config.json": {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"},
    }
    for name, document in documents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(json.dumps(document))
    stored = tiny_bert_tensors() if tensors is None else dict(tensors)
    safetensors.numpy.save_file(stored, directory / "model.safetensors")
    return directory


def naive_hidden(
    tensors: Mapping[str, np.ndarray], tokens: Sequence[int], heads: int = 4, epsilon: float = 1e-12
) -> np.ndarray:
    """Return the hidden states of a token sequence, (T, hidden) float64."""
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    x = w["embeddings.word_embeddings.weight"][list(tokens)] + w["embeddings.token_type_embeddings.weight"][0]
    x = _norm(x + w["embeddings.position_embeddings.weight"][: len(x)], w, "embeddings.LayerNorm", epsilon)
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in w:
        home = f"encoder.layer.{layer}"
        mixed = _affine(_attention(x, w, home, heads), w, f"{home}.attention.output.dense")
        x = _norm(x + mixed, w, f"{home}.attention.output.LayerNorm", epsilon)
        up = _affine(x, w, f"{home}.intermediate.dense")
        fed = _affine(up * 0.5 * (1 + _erf(up / math.sqrt(2))), w, f"{home}.output.dense")
        x = _norm(x + fed, w, f"{home}.output.LayerNorm", epsilon)
        layer += 1
    return x


def naive_vector(tensors: Mapping[str, np.ndarray], tokens: Sequence[int]) -> np.ndarray:
    """Return the normalised mean of the hidden states, (hidden,) float64."""
    mean = naive_hidden(tensors, tokens).mean(axis=0)
    return mean / math.sqrt((mean**2).sum())


_erf = np.vectorize(math.erf)


def _affine(x: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def _norm(x: np.ndarray, w: Mapping[str, np.ndarray], name: str, epsilon: float) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + epsilon)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def _attention(x: np.ndarray, w: Mapping[str, np.ndarray], home: str, heads: int) -> np.ndarray:
    q, k, v = (_affine(x, w, f"{home}.attention.self.{part}") for part in ("query", "key", "value"))
    size = x.shape[1] // heads
    mixed = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        scores = q[:, part] @ k[:, part].T / math.sqrt(size)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed.append(p / p.sum(axis=1, keepdims=True) @ v[:, part])
    return np.concatenate(mixed, axis=1)
