"""Add to `encoders/` what llama.cpp computes for some cases, through its own converter.

Run by hand, never in CI, after `make_encoders.py`; see `make_llama_cpp.py` for SOURCE and KEEP. DUMP is `llama_cpp_encoder.cpp`,
linked against a build of llama.cpp:

    SOURCE=... DUMP=... PYTHONPATH=. python tests/golden/make_llama_cpp_encoders.py [name ...]

`llama_cpp.npz` holds the hidden states of the rows of a case, or the numbers of its head.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.golden.make_llama_cpp import convert
from tests.kit.model.drawn_weights import drawn_for_encoder

FOLDER = Path(__file__).parent / "encoders"

CASES = (
    "nomic_bert",
    "modernbert",
    "gemma3_text",
    "roberta, scores",
    "xlm-roberta, scores",
    "modernbert, scores",
    "modernbert, scores of the mean",
    "jina",
    "jina, norms",
)
NOMIC = {
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "activation_function": "swiglu",
    "causal": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "prenorm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "rotary_emb_base": 1000,
}
"""What the converter reads in the first form of a config."""


def main(names):
    """Make the named cases again, or all."""
    of_jina = {"jina": jina(), "jina, norms": jina(norms=True)}
    cases = json.loads((FOLDER / "cases.json").read_text()) | of_jina
    (FOLDER / "jina.json").write_text(json.dumps(of_jina) + "\n")
    kept = dict(np.load(FOLDER / "llama_cpp.npz")) if names else {}
    truth = np.load(FOLDER / "arrays.npz")
    for name in names or CASES:
        kept[name] = computed(name, cases[name])
        print(name, np.abs(kept[name] - truth[name]).max() if name in truth else kept[name].std())
    np.savez_compressed(FOLDER / "llama_cpp.npz", **kept)


def jina(*, norms=False):
    """Return a case that transformers has no class for; the number of heads is not a power of 2. `norms`: as base-code has."""
    hidden, width = 96, 64
    config = {
        "architectures": ["JinaBertModel"],
        "model_type": "bert",
        "position_embedding_type": "alibi",
        "feed_forward_type": "geglu",
        "hidden_act": "gelu",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 72,
        "type_vocab_size": 2,
        "vocab_size": 96,
    }
    norm = {"weight": [hidden], "bias": [hidden]}
    square = {"weight": [hidden, hidden], "bias": [hidden]}
    layer = {f"attention.self.{part}": square for part in ("query", "key", "value")} | {
        "attention.output.dense": square,
        "attention.output.LayerNorm": norm,
        "mlp.gated_layers": {"weight": [2 * width, hidden]},
        "mlp.wo": {"weight": [hidden, width], "bias": [hidden]},
        "mlp.layernorm": norm,
    }
    if norms:
        layer = {
            name.replace("gated_layers", "up_gated_layer")
            .replace("wo", "down_layer")
            .replace("mlp.layernorm", "layer_norm_2"): shapes
            for name, shapes in layer.items()
        } | {"layer_norm_1": norm, "attention.self.layer_norm_q": norm, "attention.self.layer_norm_k": norm}
    parts = {
        "embeddings.word_embeddings": {"weight": [96, hidden]},
        "embeddings.token_type_embeddings": {"weight": [2, hidden]},
        "embeddings.LayerNorm": norm,
    } | {f"encoder.layer.{i}.{part}": shapes for i in range(2) for part, shapes in layer.items()}
    shapes = {f"{part}.{kind}": shape for part, kinds in parts.items() for kind, shape in kinds.items()}
    ids = np.random.default_rng(3).integers(3, 96, 40).tolist()
    return {"config": config, "ids": ids, "rows": [0, 1, 9, 20, 39], "shapes": shapes}


def computed(name, case):
    """Return what llama.cpp computes for a case."""
    config, scores = case["config"], "Model" not in case["config"]["architectures"][0]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        less_one = config["model_type"] == "gemma3_text"
        tensors = {n: drawn_for_encoder(n, tuple(shape), less_one=less_one) for n, shape in case["shapes"].items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "config.json").write_text(json.dumps(config | as_converted(config)))
        vocabulary = dict.fromkeys(map(str, range(config["vocab_size"])))
        tokenizer = {"model": {"type": "WordPiece", "vocab": vocabulary}, "added_tokens": []}
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
        (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
        convert(directory, directory / "model.gguf", config["vocab_size"], lambda writer: add_more(writer, config))
        if "KEEP" in os.environ:
            shutil.copy(directory / "model.gguf", Path(os.environ["KEEP"]) / f"{name}.gguf")
        (directory / "tokens").write_text(" ".join(map(str, case["ids"])))
        files = [directory / "model.gguf", directory / "tokens", directory / "out"]
        subprocess.run([os.environ["DUMP"], *files, *(["rank"] if scores else [])], check=True)
        raw = (directory / "out").read_bytes()
    rows = np.frombuffer(raw, np.float32, offset=8).reshape(np.frombuffer(raw, np.int32, 2))
    return rows[0] if scores else rows[case["rows"]]


def add_more(writer, config):
    """Add what the converter adds with the tokenizer, and which layers of a short model have windows."""
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    if "type_vocab_size" in config:
        writer.add_token_type_count(config["type_vocab_size"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def as_converted(config):
    """Return the changes of a config that the converter needs."""
    if config["model_type"] == "nomic_bert":
        return NOMIC
    if config["model_type"] == "modernbert":
        return {"layer_norm_eps": config["norm_eps"]}
    return {}


if __name__ == "__main__":
    main(sys.argv[1:])
