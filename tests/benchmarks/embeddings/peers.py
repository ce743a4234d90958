"""One peer in a process of its own: `python peers.py PEER MODEL FOLDER`, with torch, onnxruntime or OpenVINO in its environment.

Reads lines of JSON {"ids": rows of token ids of one length, "repeat": calls}, and answers each with {"ms": of the best call,
"vectors"}. Knows nothing of tlserve. MODEL is a directory of Hugging Face; FOLDER keeps the exported model between runs.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Encode = Callable[[NDArray[np.int64]], NDArray[np.float32]]
"""Token ids (sentences, tokens) -> hidden states (sentences, tokens, features)."""

THREADS = 2


def torch_encode(model: str) -> Encode:
    """Return transformers' model in float32, with its fastest attention."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(THREADS)
    loaded = transformers.AutoModel.from_pretrained(model).eval()

    def encode(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.inference_mode():
            rows = torch.from_numpy(ids)
            return np.asarray(loaded(input_ids=rows, attention_mask=torch.ones_like(rows)).last_hidden_state)

    return encode


def exported(model: str, folder: Path) -> Path:
    """Return the model in ONNX, made once: float32, any number of sentences and tokens."""
    path = folder / "model.onnx"
    if not path.is_file():
        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        loaded = transformers.AutoModel.from_pretrained(model, attn_implementation="eager", return_dict=False).eval()
        rows = torch.ones(2, 16, dtype=torch.int64)
        free = {0: "sentences", 1: "tokens"}
        names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["hidden", "pooled"]}
        axes = dict.fromkeys(("input_ids", "attention_mask", "hidden"), free)
        torch.onnx.export(loaded, (rows, rows), str(path), **names, dynamic_axes=axes, opset_version=17, dynamo=False)
    return path


def onnxruntime_encode(path: Path, *, in_8_bits: bool) -> Encode:
    """Return ONNX Runtime's session with all of its graph optimisations; `in_8_bits`: with dynamic quantisation."""
    runtime: Any = importlib.import_module("onnxruntime")
    if in_8_bits:
        quantised = path.with_name("model.int8.onnx")
        if not quantised.is_file():
            tools: Any = importlib.import_module("onnxruntime.quantization")
            tools.quantize_dynamic(path, quantised, weight_type=tools.QuantType.QInt8)
        path = quantised
    options = runtime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda ids: np.asarray(session.run(["hidden"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0])


def openvino_encode(path: Path) -> Encode:
    """Return OpenVINO's model, compiled for the shortest time of a call."""
    openvino: Any = importlib.import_module("openvino")
    settings = {"INFERENCE_NUM_THREADS": THREADS, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(str(path), "CPU", settings)
    return lambda ids: np.asarray(compiled({"input_ids": ids, "attention_mask": np.ones_like(ids)})[0])


def find_encode(peer: str, model: str, folder: Path) -> Encode:
    """Return the function of a peer."""
    if peer == "torch":
        return torch_encode(model)
    path = exported(model, folder)
    return openvino_encode(path) if peer == "openvino" else onnxruntime_encode(path, in_8_bits=peer.endswith("int8"))


def timed(encode: Encode, ids: NDArray[np.int64], repeat: int) -> dict[str, Any]:
    """Return the milliseconds of the best call, and the vectors: means of the hidden states, of length 1."""
    best = float("inf")
    for _ in range(repeat + 1):  # the first call of a shape may compile
        began = time.perf_counter()
        mean = encode(ids).mean(axis=1)
        vectors = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        best = min(best, time.perf_counter() - began)
    return {"ms": best * 1e3, "vectors": vectors.tolist()}


def main() -> None:
    """Answer requests until the input ends."""
    peer, model, folder = sys.argv[1:]
    encode = find_encode(peer, model, Path(folder))
    print(json.dumps({"ready": peer}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(timed(encode, np.array(request["ids"], np.int64), request["repeat"])), flush=True)


if __name__ == "__main__":
    main()
