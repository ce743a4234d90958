"""Make `encoders/`: what transformers and sentence-transformers compute for a tiny random checkpoint of each encoder.

Run by hand, never in CI, in an environment of its own with torch 2.13.0, transformers 5.24.0, sentence-transformers 6.2.0 and
safetensors, from the checkout:

    PYTHONPATH=. python tests/golden/make_encoders.py [name ...]

Weights are not stored: `tests.kit.model.drawn_weights` draws them from the names and shapes of the tensors as transformers saves
them. For each case `cases.json` holds the config.json and the shapes, `arrays.npz` the hidden states of some tokens, or the
logits of a head; for a reranker the logit of one token less that of another. Every norm, bias and table is drawn, so that each
mechanism acts.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import transformers

from tests.kit.model.drawn_weights import drawn_for_encoder

HERE = Path(__file__).parent / "encoders"
TOKENS, VOCABULARY = 40, 96
ROWS = (0, 1, 9, 20, 39)
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 72,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
MODERN = {"local_attention": 16, "num_hidden_layers": 4, "cls_token_id": 0, "sep_token_id": 2}
GEMMA = {
    "num_key_value_heads": 2,
    "head_dim": 24,
    "use_bidirectional_attention": True,
    "sliding_window": 16,
    "query_pre_attn_scalar": 40,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
QWEN = {"num_key_value_heads": 2, "head_dim": 24}
YES, NO = 9, 11
ONE, THREE = {"num_labels": 1}, {"num_labels": 3}
VECTORS, SCORES = "AutoModel", "AutoModelForSequenceClassification"

CASES = {
    "bert": ("BertConfig", VECTORS, {}),
    "roberta": ("RobertaConfig", VECTORS, {}),
    "xlm-roberta": ("XLMRobertaConfig", VECTORS, {"type_vocab_size": 1}),
    "mpnet": ("MPNetConfig", VECTORS, {}),
    "nomic_bert": ("NomicBertConfig", VECTORS, {}),
    "gte": ("GteConfig", VECTORS, {}),
    "gte, no types": ("GteConfig", VECTORS, {"type_vocab_size": 0}),
    "modernbert": ("ModernBertConfig", VECTORS, MODERN),
    "modernbert, biases": (
        "ModernBertConfig",
        VECTORS,
        MODERN | {"attention_bias": True, "mlp_bias": True, "norm_bias": True},
    ),
    "gemma3_text": ("Gemma3TextConfig", VECTORS, GEMMA),
    "qwen3": ("Qwen3Config", VECTORS, QWEN),
    "qwen3, classes": ("Qwen3Config", SCORES, QWEN | THREE),
    "qwen3, answers": ("Qwen3Config", "AutoModelForCausalLM", QWEN),
    "bert, scores": ("BertConfig", SCORES, ONE),
    "bert, classes": ("BertConfig", SCORES, THREE),
    "roberta, scores": ("RobertaConfig", SCORES, THREE),
    "xlm-roberta, scores": ("XLMRobertaConfig", SCORES, ONE | {"type_vocab_size": 1}),
    "mpnet, scores": ("MPNetConfig", SCORES, ONE),
    "nomic_bert, scores": ("NomicBertConfig", SCORES, THREE),
    "gte, scores": ("GteConfig", SCORES, ONE),
    "modernbert, scores": ("ModernBertConfig", SCORES, MODERN | ONE),
    "modernbert, scores of the mean": ("ModernBertConfig", SCORES, MODERN | THREE | {"classifier_pooling": "mean"}),
}
TYPED = {"bert, scores", "bert, classes", "nomic_bert, scores"}
"""Whose second text has the second token type; it begins after the token 2, which is at one place."""


def main(names: list[str]) -> None:
    """Make the named cases again, or all."""
    HERE.mkdir(exist_ok=True)
    stored = HERE / "cases.json"
    cases = json.loads(stored.read_text()) if names else {}
    arrays = dict(np.load(HERE / "arrays.npz")) if names else {}
    for name in names or CASES:
        cases[name], arrays[name] = make(name, *CASES[name])
        print(name, arrays[name].std())
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
    stored.write_text("{\n" + lines + "\n}\n")
    np.savez_compressed(HERE / "arrays.npz", **arrays)


@torch.no_grad()  # type: ignore[untyped-decorator]
def make(name: str, config_class: str, kind: str, changes: dict) -> tuple[dict, np.ndarray]:
    """Return the stored case, and the hidden states of `ROWS` or the logits."""
    config = getattr(transformers, config_class)(**(SIZES | changes))
    config._attn_implementation = "eager"
    less_one = config.model_type == "gemma3_text"
    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, kind).from_config(config, dtype=torch.float32).save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        shapes = {n: list(t.shape) for n, t in safetensors.torch.load_file(path).items()}
        tensors = {n: torch.from_numpy(drawn_for_encoder(n, tuple(s), less_one=less_one)) for n, s in shapes.items()}
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
        auto = getattr(transformers, kind)
        model = auto.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        document = json.loads((Path(folder) / "config.json").read_text())
    document.pop("transformers_version", None)
    ids = np.random.default_rng(3).integers(3, VOCABULARY, TOKENS)
    ids[[0, 17, -1]] = (0, 2, 5)
    types = (np.arange(TOKENS) > 17).astype(int) if name in TYPED else np.zeros(TOKENS, int)
    typed = {"token_type_ids": torch.tensor(types[None])} if name in TYPED else {}
    output = model(torch.tensor(ids[None]), **typed)
    if kind == VECTORS:
        found = output.last_hidden_state[0][list(ROWS)]
    else:
        found = output.logits[0] if kind == SCORES else output.logits[0, -1, [YES]] - output.logits[0, -1, [NO]]
    case = {"config": document, "ids": ids.tolist(), "rows": list(ROWS), "shapes": shapes}
    return case, found.numpy().astype(np.float32)


if __name__ == "__main__":
    main(sys.argv[1:])
