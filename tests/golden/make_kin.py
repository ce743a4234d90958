"""Make `kin/`: tiny random checkpoints of each architecture, and what transformers computes from them.

Run by hand, never in CI, in an environment of its own with torch 2.13.0, transformers 5.24.0 and safetensors:

    python tests/golden/make_kin.py

Weights are drawn from a seed and stored in half or single precision; the forward pass runs in float32 with eager attention on the
CPU. `kin.json` holds each case's config.json as a hub checkpoint would have it, the name of its weights and its prompt;
`kin_logits.npz` the logits at some rows, the log-probability of every next token of the prompt, and the greedy answer with
the margin between the first and the second choice at each step.
"""

import json
import math
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

HERE = Path(__file__).parent / "kin"
GREEDY_TOKENS = 16
ROWS = (0, 1, 7, 24, 63, 64, 65, 100, 128)

SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
}
LLAMA = SIZES | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 16}
TIED = LLAMA | {"tie_word_embeddings": True, "num_key_value_heads": 1, "head_dim": None}
MISTRAL = SIZES | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 24}
QWEN2 = SIZES | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
QWEN3 = SIZES | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16}
SMOLLM3 = SIZES | {
    "model_type": "smollm3",
    "architectures": ["SmolLM3ForCausalLM"],
    "no_rope_layer_interval": 2,
    "pad_token_id": 0,
}
SHORT = {"max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

# name: (weights, config, tokens of the prompt)
CASES = {
    "llama": ("llama", LLAMA, 130),
    "llama linear": ("llama", LLAMA | SHORT | {"rope_scaling": {"type": "linear", "factor": 4.0}}, 250),
    "llama dynamic": ("llama", LLAMA | SHORT | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 200),
    "llama dynamic, short": ("llama", LLAMA | SHORT | {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 48),
    "llama llama3": (
        "llama",
        LLAMA
        | {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        250,
    ),
    "llama yarn": ("llama", LLAMA | SHORT | {"rope_scaling": YARN}, 250),
    "llama yarn, every number": (
        "llama",
        LLAMA
        | {"max_position_embeddings": 256}
        | {
            "rope_parameters": YARN
            | {"rope_theta": 500.0, "beta_fast": 8, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.3}
        },
        250,
    ),
    "llama yarn, mscale": (
        "llama",
        LLAMA | SHORT | {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}},
        250,
    ),
    "llama tied": ("llama-tied", TIED, 130),
    "llama biases": ("llama-biases", LLAMA | {"attention_bias": True}, 130),
    "mistral": ("mistral", MISTRAL, 200),
    "mistral, window of 100": ("mistral", MISTRAL | {"sliding_window": 100}, 250),
    "mistral, no window": ("mistral", MISTRAL | {"sliding_window": None}, 130),
    "qwen2": ("qwen2", QWEN2, 130),
    "qwen2, window of the second layer": (
        "qwen2",
        QWEN2 | {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
        200,
    ),
    "qwen3": ("qwen3", QWEN3, 130),
    "qwen3 yarn": ("qwen3", QWEN3 | SHORT | {"rope_scaling": YARN}, 250),
    "smollm3": ("smollm3", SMOLLM3, 130),
}
PRECISION = {
    "llama": torch.float32,
    "llama-tied": torch.bfloat16,
    "llama-biases": torch.float16,
    "mistral": torch.float16,
    "qwen2": torch.bfloat16,
    "qwen3": torch.float16,
    "smollm3": torch.bfloat16,
}
SHARDED = "mistral"


def main() -> None:
    """Make all files again."""
    shutil.rmtree(HERE, ignore_errors=True)
    HERE.mkdir()
    cases, arrays = [], {}
    for number, (name, (weights, config, length)) in enumerate(CASES.items()):
        folder = HERE / weights
        if not folder.exists():
            folder.mkdir()
            write_weights(folder, config, PRECISION[weights], seed=number)
        random = np.random.default_rng(number)
        ids = random.integers(3, config["vocab_size"], length).tolist()
        ids[length // 2 : length // 2 + 10] = ids[:10]  # something to look back to
        answers = compute(folder, config, ids)
        arrays |= {f"{name}/{key}": value for key, value in answers.items()}
        cases.append({"name": name, "weights": weights, "config": config, "ids": ids})
    (HERE / "kin.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")
    np.savez_compressed(HERE / "kin_logits.npz", **arrays)


def open_model(folder: Path, config: dict):
    """Return transformers' model for the weights of `folder` under `config`."""
    with tempfile.TemporaryDirectory() as place:
        for file in folder.iterdir():
            shutil.copy(file, place)
        (Path(place) / "config.json").write_text(json.dumps(config))
        model, report = AutoModelForCausalLM.from_pretrained(
            place, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model.eval()


def write_weights(folder: Path, config: dict, precision: torch.dtype, seed: int) -> None:
    """Draw every weight of the architecture, so that attention is sharp and order matters."""
    from transformers import AutoConfig

    settings = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **settings))
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, parameter in model.named_parameters():
        tensors[name] = drawn(name, parameter, generator).to(precision).contiguous()
    if folder.name != SHARDED:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    names = list(tensors)
    files = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
    places = {name: file for file, part in files.items() for name in part}
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def drawn(name: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a random tensor for the parameter `name`."""
    if name.endswith("norm.weight"):
        return torch.rand(like.shape, generator=generator) + 0.5 + ("q_norm" in name or "k_norm" in name)
    if name.endswith("bias"):
        return torch.randn(like.shape, generator=generator)
    gain = (
        4.0 if "embed" in name else 3.0 if "lm_head" in name else 2.0 if "q_proj" in name or "k_proj" in name else 1.0
    )
    return torch.randn(like.shape, generator=generator) * (gain / math.sqrt(like.shape[1]))


@torch.no_grad()  # type: ignore[untyped-decorator]
def compute(folder: Path, config: dict, ids: list[int]) -> dict[str, np.ndarray]:
    """Return the arrays of one case."""
    model = open_model(folder, config)
    logits = model(torch.tensor([ids])).logits[0].double()
    logprobs = torch.log_softmax(logits, dim=-1)
    rows = [row for row in ROWS if row < len(ids) - 1] + [len(ids) - 1]
    arrays = {
        "rows": np.array(rows),
        "logits": logits[rows].numpy().astype(np.float32),
        "next_logprobs": logprobs[range(len(ids) - 1), ids[1:]].numpy().astype(np.float32),
    }
    if "dynamic" not in str(config):  # the base that it takes changes with every token
        arrays |= greedy(model, ids)
    return arrays


def greedy(model, ids: list[int]) -> dict[str, np.ndarray]:
    """Return the greedy answer, each token from a forward pass over the whole sequence."""
    sequence, margins = list(ids), []
    for _ in range(GREEDY_TOKENS):
        best = torch.log_softmax(model(torch.tensor([sequence])).logits[0, -1].double(), dim=-1).topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        sequence.append(int(best.indices[0]))
    return {"greedy": np.array(sequence[len(ids) :]), "margins": np.array(margins, np.float32)}


if __name__ == "__main__":
    main()
