"""How one architecture is written: its description, its names in both kinds of files, and how they store its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.stored_slots import Storage

HF_LAYER, GGUF_LAYER = "model.layers.{}.", "blk.{}."
_HF_NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention.pre": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "attention.q_norm": "self_attn.q_norm",
    "attention.k_norm": "self_attn.k_norm",
    "ffn.pre": "post_attention_layernorm",
    "ffn.gate": "mlp.gate_proj",
    "ffn.up": "mlp.up_proj",
    "ffn.down": "mlp.down_proj",
}
_GGUF_NAMES = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention.pre": "attn_norm",
    "attention.q": "attn_q",
    "attention.k": "attn_k",
    "attention.v": "attn_v",
    "attention.output": "attn_output",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.post": "post_attention_norm",
    "ffn.pre": "ffn_norm",
    "ffn.gate": "ffn_gate",
    "ffn.up": "ffn_up",
    "ffn.down": "ffn_down",
    "ffn.post": "post_ffw_norm",
}
_HF_COPIES = ".rotary_emb.inv_freq"  # old checkpoints hold a copy of what the config says
ROPE_FACTORS = "rope_freqs.weight"


@attrs.frozen(kw_only=True)
class HfForm:
    """One `model_type` of config.json. `names` and `fused` change the usual names; those of a layer are without its prefix.

    `tied`, `head_size`, `rope_base` and `epsilon` (of the RMS norms) apply where a field is missing. `partial`: the share of a
    head that turns can be less than all, and is this where a field is missing. `activations`: values of `hidden_act` that are
    served. `local_rope_base`: above 0, layers with windows turn in their own way, and this is its base where a field is missing.
    `rope_fields`: further fields of `rope_parameters` that the description reads.
    """

    model_type: str
    model_class: str
    names: Mapping[str, str] = {}
    fused: Mapping[str, tuple[str, ...]] = {}
    half_split: bool = True
    less_one: bool = False
    tied: bool = False
    head_size: int = 0
    rope_base: float = 10000.0
    epsilon: float = 1e-6
    local_rope_base: float = 0.0
    partial: float | None = None
    rope_fields: tuple[str, ...] = ()
    activations: tuple[str, ...] = ("silu",)

    def storage(self, *, tied: bool) -> Storage:
        """Return how a checkpoint stores the tensors; with `tied`, a second embedding is ignored."""
        names, fused = _layered(_HF_NAMES | dict(self.names), self.fused, HF_LAYER)
        second_head = (names["head"] + ".weight",) if tied else ()
        return Storage(
            names=names,
            fused=fused,
            half_split=self.half_split,
            less_one=self.less_one,
            ignored=(_HF_COPIES, *second_head),
        )


@attrs.frozen(kw_only=True)
class GgufForm:
    """One `general.architecture` of GGUF. `half_split`: the rows of queries and keys are stored half by half.

    `local_windows`: layers differ in their windows. `local_rope_base`: see `HfForm`.
    """

    name: str
    names: Mapping[str, str] = {}
    fused: Mapping[str, tuple[str, ...]] = {}
    half_split: bool = False
    unrotated_every: int = 0
    local_windows: bool = False
    local_rope_base: float = 0.0

    def storage(self) -> Storage:
        """Return how a file stores the tensors."""
        names, fused = _layered(_GGUF_NAMES | dict(self.names), self.fused, GGUF_LAYER)
        return Storage(names=names, fused=fused, half_split=self.half_split, ignored=(ROPE_FACTORS,))


def _layered(
    names: Mapping[str, str], fused: Mapping[str, tuple[str, ...]], prefix: str
) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Put the prefix of a layer before the names of what is in one."""
    whole = {slot: (prefix if "." in slot else "") + stem for slot, stem in names.items()}
    return whole, {prefix + stem: parts for stem, parts in fused.items()}


@attrs.frozen(kw_only=True)
class Architecture:
    """A description and the files that it is served from. `models` and `note` are for the reference page."""

    describe: Callable[[ModelFacts], Decoder]
    hf: HfForm | None = None
    gguf: GgufForm | None = None
    models: str
    note: str = ""
