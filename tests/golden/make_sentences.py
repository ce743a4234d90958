"""Make `encoders/sentences.json`: what sentence-transformers gives for texts by the files of a tiny sentence encoder.

Run by hand, never in CI, in the environment of `make_encoders.py` (sentence-transformers 6.2.0), from the checkout:

    PYTHONPATH=. python tests/golden/make_sentences.py

Each case takes the weights of a case of `make_encoders.py` and adds modules: poolings, dense layers, prompts. The scores of pairs
are those of `CrossEncoder`. `files` are written next to the weights.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import safetensors.numpy
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer

from tests.kit.model.encoders import dense_tensors, encoder_cases, write_encoder

HERE = Path(__file__).parent / "encoders"
TEXTS = ("w5 w9 w31 w7 w7", "w3", " ".join(f"w{i}" for i in range(10, 60)))
PAIRS = (("w5 w9 w31", "w8 w8 w40 w12"), ("w5 w9 w31", "w3"), ("w90", " ".join(f"w{i}" for i in range(20, 50))))
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "cls_token": "<0>",
    "sep_token": "<2>",
    "bos_token": "<0>",
    "eos_token": "<2>",
    "pad_token": "<1>",
    "unk_token": "<1>",
    "model_max_length": 64,
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}
BASE = "sentence_transformers.models."
PROMPTS = {"prompts": {"query": "w70 w71 ", "document": "w72 ", "passage": "w73 "}, "default_prompt_name": None}


def modules(*kinds: str) -> list[dict]:
    """Return modules.json."""
    paths = ["" if kind == "Transformer" else f"{i}_{kind}" for i, kind in enumerate(kinds)]
    return [
        {"idx": i, "name": str(i), "path": p, "type": BASE + k}
        for i, (k, p) in enumerate(zip(kinds, paths, strict=True))
    ]


def pooling(mode: str) -> dict:
    """Return the config of a pooling."""
    return {"word_embedding_dimension": 64, f"pooling_mode_{mode}": True}


def dense(inputs: int, outputs: int, kind: str) -> dict:
    """Return the config of a dense layer."""
    return {"in_features": inputs, "out_features": outputs, "bias": kind.endswith("Tanh"), "activation_function": kind}


TANH, LINEAR = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
CASES = {
    "mean": (
        "xlm-roberta",
        {"modules.json": modules("Transformer", "Pooling"), "1_Pooling/config.json": pooling("mean_tokens")},
    ),
    "first": (
        "modernbert",
        {"modules.json": modules("Transformer", "Pooling", "Normalize"), "1_Pooling/config.json": pooling("cls_token")},
    ),
    "last": (
        "mpnet",
        {"modules.json": modules("Transformer", "Pooling", "Normalize"), "1_Pooling/config.json": pooling("lasttoken")},
    ),
    "dense": (
        "gemma3_text",
        {
            "modules.json": modules("Transformer", "Pooling", "Dense", "Dense", "Normalize"),
            "1_Pooling/config.json": {"embedding_dimension": 64, "pooling_mode": "mean", "include_prompt": True},
            "2_Dense/config.json": dense(64, 80, LINEAR),
            "3_Dense/config.json": dense(80, 48, TANH),
            "config_sentence_transformers.json": PROMPTS | {"default_prompt_name": "document"},
        },
    ),
    "prompts": (
        "nomic_bert",
        {
            "modules.json": modules("Transformer", "Pooling", "Normalize"),
            "1_Pooling/config.json": pooling("mean_tokens"),
            "config_sentence_transformers.json": PROMPTS,
        },
    ),
}
PAIRED = ("bert, scores", "bert, classes", "xlm-roberta, scores", "nomic_bert, scores", "modernbert, scores")


def main() -> None:
    """Write the file."""
    known = encoder_cases()
    found: dict[str, dict] = {"sentences": {}, "pairs": {}}
    for name, (case, files) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = write_encoder(Path(folder), known[case])
            for file, document in (
                files | {"tokenizer_config.json": TOKENIZER | {"model_input_names": ["input_ids", "attention_mask"]}}
            ).items():
                (path / file).parent.mkdir(exist_ok=True)
                (path / file).write_text(json.dumps(document))
                if "Dense" in file:
                    safetensors.numpy.save_file(
                        dense_tensors(file[:7], document), path / file[:7] / "model.safetensors"
                    )
            model = SentenceTransformer(str(path), device="cpu", model_kwargs={"attn_implementation": "eager"})
            with torch.no_grad():
                vectors = {
                    role: [model.encode([text], **given)[0].tolist() for text in TEXTS]
                    for role, given in (
                        ("", {}),
                        ("query", {"prompt_name": "query"}),
                        ("passage", {"prompt_name": "passage"}),
                    )
                    if not role or "config_sentence_transformers.json" in files
                }
        found["sentences"][name] = {"case": case, "files": files, "vectors": rounded(vectors)}
    for case in PAIRED:
        with tempfile.TemporaryDirectory() as folder:
            path = write_encoder(Path(folder), known[case])
            typed = case.startswith(("bert", "nomic_bert"))  # as the tokenizers of these models
            names = TOKENIZER["model_input_names"] if typed else ["input_ids", "attention_mask"]
            (path / "tokenizer_config.json").write_text(json.dumps(TOKENIZER | {"model_input_names": names}))
            model = CrossEncoder(str(path), device="cpu", model_kwargs={"attn_implementation": "eager"})
            activation = torch.nn.Softmax(dim=-1) if "classes" in case or case.startswith("nomic") else None
            scores = [np.atleast_1d(model.predict([pair], activation_fn=activation)[0]).tolist() for pair in PAIRS]
        found["pairs"][case] = rounded(scores)
    found |= {"texts": list(TEXTS), "texts_of_pairs": [list(pair) for pair in PAIRS]}
    (HERE / "sentences.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


def rounded(value: object) -> object:
    """Return nested numbers with seven decimals."""
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else round(float(value), 7)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
