"""Make `architectures/`: what transformers computes for a tiny random checkpoint of each described architecture.

Run by hand, never in CI, in an environment of its own with torch 2.13.0, transformers 5.24.0 and safetensors, from the checkout:

    PYTHONPATH=. python tests/golden/make_architectures.py [name ...]

Weights are not stored: `tests.kit.model.drawn_weights` draws them from the names and shapes of the tensors. For each case
`cases.json` holds the config.json as transformers saves it and the shapes of the tensors, `logprobs.npz` the log-probabilities
after some tokens. Every norm, bias and scale is drawn, so that each mechanism of an architecture acts.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.kit.model.drawn_weights import drawn

HERE = Path(__file__).parent / "architectures"
ROWS = (0, 1, 7, 8, 9, 20, 33, 39)
TOKENS = 40
VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
PARTIAL = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}
ALTERNATING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.5, 2.0, 3.0, 4.0, 5.0, 6.0],
}
GEMMA = {"head_dim": 24, "tie_word_embeddings": True}
CAPS = {"query_pre_attn_scalar": 40, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.4,
    "logits_scaling": 5.0,
}

MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
LOCAL_MOE = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 48}
GPT_OSS = LOCAL_MOE | ALTERNATING | {"head_dim": 16, "intermediate_size": 64}
GPT_OSS_YARN = YARN | {
    "rope_theta": 100.0,
    "original_max_position_embeddings": 64,
}  # rounding its range changes frequencies

GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 32,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
}
ONE_GLOBAL_HEAD = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}

CASES = {
    "granite": ("GraniteConfig", GRANITE),
    "seed_oss": ("SeedOssConfig", {"head_dim": 24}),
    "seed_oss, output bias": ("SeedOssConfig", {"head_dim": 24, "attention_out_bias": True}),
    "arcee": ("ArceeConfig", {"head_dim": 16}),
    "ernie4_5": ("Ernie4_5Config", {"head_dim": 16}),
    "ernie4_5, biases": ("Ernie4_5Config", {"head_dim": 16, "use_bias": True}),
    "hunyuan_v1_dense": ("HunYuanDenseV1Config", {"head_dim": 16}),
    "ministral3": (
        "Ministral3Config",
        {"head_dim": 24, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}},
    ),
    "gemma": ("GemmaConfig", GEMMA),
    "gemma2": ("Gemma2Config", GEMMA | CAPS | ALTERNATING),
    "gemma3_text": (
        "Gemma3TextConfig",
        GEMMA
        | ALTERNATING
        | {
            "query_pre_attn_scalar": 40,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma4_text": (
        "Gemma4TextConfig",
        GEMMA4 | {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "use_double_wide_mlp": True},
    ),
    "gemma4_text, values from keys": ("Gemma4TextConfig", GEMMA4 | ONE_GLOBAL_HEAD),
    "gemma4_text, mixture": (
        "Gemma4TextConfig",
        GEMMA4
        | ONE_GLOBAL_HEAD
        | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 48},
    ),
    "phi": ("PhiConfig", PARTIAL | {"intermediate_size": 96}),
    "phi3": ("Phi3Config", {"original_max_position_embeddings": 256}),
    "phi3, window": ("Phi3Config", {"original_max_position_embeddings": 256, "sliding_window": 8}),
    "phi3, longrope, short": (
        "Phi3Config",
        {"max_position_embeddings": 1024, "original_max_position_embeddings": 256, "rope_parameters": LONG},
    ),
    "phi3, longrope, long": (
        "Phi3Config",
        {"max_position_embeddings": 1024, "original_max_position_embeddings": 16, "rope_parameters": LONG},
    ),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", ALTERNATING),
    "olmo3, yarn": (
        "Olmo3Config",
        ALTERNATING
        | {
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
    ),
    "cohere": ("CohereConfig", {"logit_scale": 0.25, "tie_word_embeddings": True}),
    "cohere, norms of heads": ("CohereConfig", {"use_qk_norm": True, "logit_scale": 0.25, "tie_word_embeddings": True}),
    "cohere2": ("Cohere2Config", ALTERNATING | {"logit_scale": 0.25, "tie_word_embeddings": True}),
    "exaone4": ("Exaone4Config", ALTERNATING),
    "exaone4, no window": ("Exaone4Config", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "glm4": ("Glm4Config", PARTIAL | {"head_dim": 16}),
    "stablelm": ("StableLmConfig", PARTIAL | {"use_qkv_bias": True}),
    "stablelm, parallel": ("StableLmConfig", PARTIAL | {"use_parallel_residual": True}),
    "starcoder2": ("Starcoder2Config", {"sliding_window": 8}),
    "nemotron": ("NemotronConfig", PARTIAL | {"head_dim": 16}),
    "qwen2_moe": ("Qwen2MoeConfig", MOE | {"shared_expert_intermediate_size": 40}),
    "qwen2_moe, dense first": ("Qwen2MoeConfig", MOE | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [0]}),
    "qwen3_moe": ("Qwen3MoeConfig", MOE | {"head_dim": 24, "norm_topk_prob": True}),
    "qwen3_moe, undivided": ("Qwen3MoeConfig", MOE | {"head_dim": 16, "norm_topk_prob": False}),
    "mixtral": ("MixtralConfig", LOCAL_MOE),
    "mixtral, window": ("MixtralConfig", LOCAL_MOE | {"sliding_window": 8}),
    "olmoe": ("OlmoeConfig", MOE | {"intermediate_size": 48, "num_key_value_heads": 4}),
    "granitemoe": ("GraniteMoeConfig", GRANITE | LOCAL_MOE),
    "gpt_oss": ("GptOssConfig", GPT_OSS | {"rope_parameters": GPT_OSS_YARN | {"truncate": False}}),
    "gpt_oss, rounded yarn": ("GptOssConfig", GPT_OSS | {"rope_parameters": GPT_OSS_YARN | {"truncate": True}}),
    "ernie4_5_moe": (
        "Ernie4_5_MoeConfig",
        {
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_intermediate_size": 48,
            "moe_num_shared_experts": 2,
            "intermediate_size": 192,
        },
    ),
    "hunyuan_v1_moe": (
        "HunYuanMoEV1Config",
        {"num_experts": 6, "moe_topk": 2, "intermediate_size": 48, "head_dim": 16},
    ),
    "glm4_moe": (
        "Glm4MoeConfig",
        PARTIAL
        | {
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 1.7,
            "attention_bias": True,
            "use_qk_norm": True,
            "head_dim": 16,
            "num_mtp_layers": 0,
        },
    ),
}


def main(names: list[str]) -> None:
    """Make the named cases again, or all."""
    HERE.mkdir(exist_ok=True)
    stored = HERE / "cases.json"
    cases = json.loads(stored.read_text()) if names else {}
    arrays = dict(np.load(HERE / "logprobs.npz")) if names else {}
    for name in names or CASES:
        cases[name], arrays[name] = make(*CASES[name])
        print(name, arrays[name].std())
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    stored.write_text("{\n" + lines + "\n}\n")
    np.savez_compressed(HERE / "logprobs.npz", **arrays)


@torch.no_grad()  # type: ignore[untyped-decorator]
def make(config_class: str, changes: dict) -> tuple[dict, np.ndarray]:
    """Return the stored case and the log-probabilities of `ROWS`."""
    config = getattr(transformers, config_class)(**(SIZES | changes))
    config._attn_implementation = config._experts_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    if any("experts" in name for name in model.state_dict()):
        model, tensors = with_drawn_files(model)
    else:
        tensors = dict(model.state_dict())
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    zero = [name for name, t in tensors.items() if "norm" in name and name.endswith("weight") and not t.any()]
    for name, tensor in tensors.items():
        tensor.copy_(torch.from_numpy(drawn(name, tuple(tensor.shape), norms_less_one=bool(zero))))
    ids = np.random.default_rng(3).integers(3, VOCABULARY, TOKENS)
    logits = model(torch.tensor(ids[None])).logits[0].double()
    document = json.loads(config.to_json_string(use_diff=True)) | {"architectures": [type(model).__name__]}
    document.pop("transformers_version", None)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    case = {"config": document, "norms_less_one": bool(zero), "ids": ids.tolist(), "rows": list(ROWS), "shapes": shapes}
    return case, torch.log_softmax(logits, dim=-1)[list(ROWS)].numpy().astype(np.float32)


def with_drawn_files(model):
    """Return the model and its tensors by the names of a saved checkpoint, which are not those of its parameters for experts."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        names = {name: tuple(tensor.shape) for name, tensor in load_file(path).items()}
        tensors = {name: torch.from_numpy(drawn(name, shape)) for name, shape in names.items()}
        save_file(tensors, path, metadata={"format": "pt"})
        made = type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        made.config._experts_implementation = "eager"
    return made.eval(), tensors


if __name__ == "__main__":
    main(sys.argv[1:])
