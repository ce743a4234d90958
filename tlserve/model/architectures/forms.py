"""How one architecture is written: its description, its names in both kinds of files, and how they store its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tlserve.model.architectures.facts import ModelFacts
from tlserve.model.decoder.record import Decoder
from tlserve.model.decoder.storage import Stack, Storage

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
    "ffn.router": "mlp.gate",
    "ffn.experts.gate": "mlp.experts.{}.gate_proj",
    "ffn.experts.up": "mlp.experts.{}.up_proj",
    "ffn.experts.down": "mlp.experts.{}.down_proj",
    "ffn.shared.gate": "mlp.shared_experts.gate_proj",
    "ffn.shared.up": "mlp.shared_experts.up_proj",
    "ffn.shared.down": "mlp.shared_experts.down_proj",
}
_HF_STACKS = {
    "mlp.experts.gate_up_proj": Stack(parts=("ffn.experts.gate", "ffn.experts.up")),
    "mlp.experts.down_proj": Stack(parts=("ffn.experts.down",)),
}
"""As transformers has them in memory, and as some checkpoints are saved."""

_HF_EXACT = {"ffn.choice": "mlp.gate.e_score_correction_bias", "attention.sinks": "self_attn.sinks"}
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
    "ffn.router": "ffn_gate_inp",
    "ffn.shared.gate": "ffn_gate_shexp",
    "ffn.shared.up": "ffn_up_shexp",
    "ffn.shared.down": "ffn_down_shexp",
    "ffn.shared_gate": "ffn_gate_inp_shexp",
}
_GGUF_EXACT = {"ffn.choice": "exp_probs_b.bias", "attention.sinks": "attn_sinks.weight"}
_GGUF_STACKS = {
    f"ffn_{part}_exps.{ending}": Stack(parts=(f"ffn.experts.{part}{'.bias' * (ending == 'bias')}",))
    for part in ("gate", "up", "down")
    for ending in ("weight", "bias")
} | {"ffn_gate_up_exps.weight": Stack(parts=("ffn.experts.gate", "ffn.experts.up"))}
_HF_COPIES = ".rotary_emb.inv_freq"  # old checkpoints hold a copy of what the config says
ROPE_FACTORS = "rope_freqs.weight"


@attrs.frozen(kw_only=True)
class HfForm:
    """One `model_type` of config.json.

    `names`, `exact`, `fused` and `stacks` (see `Storage`) change the usual names; those of a layer are without its prefix.
    `further_layers`: files can have layers after the last one, for drafts. `drafts`: how names of other tensors for them begin.
    `tied`, `head_size`, `rope_base` and `epsilon` (of the RMS norms) apply where a field is missing. `partial`: the share of a
    head that turns can be less than all, and is this where a field is missing. `activations`: values of `hidden_act` that are
    served. `local_rope_base`: above 0, layers with windows turn in their own way, and this is its base where a field is missing.
    `rope_fields`: further fields of `rope_parameters` that the description reads, or kinds of rotation that few models have.
    """

    model_type: str
    model_class: str
    names: Mapping[str, str] = {}
    exact: Mapping[str, str] = {}
    fused: Mapping[str, tuple[str, ...]] = {}
    stacks: Mapping[str, Stack] = {}
    further_layers: bool = False
    drafts: tuple[str, ...] = ()
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
        names = _with_layer(_HF_NAMES | dict(self.names), HF_LAYER)
        second_head = (names["head"] + ".weight",) if tied else ()
        return Storage(
            names=names,
            exact=_with_layer(_HF_EXACT | dict(self.exact), HF_LAYER),
            fused={HF_LAYER + stem: parts for stem, parts in self.fused.items()},
            stacks={HF_LAYER + name: stack for name, stack in (_HF_STACKS | dict(self.stacks)).items()},
            ignored_starts=self.drafts,
            further_layers=HF_LAYER.partition("{")[0] if self.further_layers else "",
            half_split=self.half_split,
            less_one=self.less_one,
            ignored=(_HF_COPIES, *second_head),
        )


@attrs.frozen(kw_only=True)
class GgufForm:
    """One `general.architecture` of GGUF. `half_split`: the rows of queries and keys are stored half by half.

    `local_windows`: layers differ in their windows. `varied`: also in the numbers of key heads and in the width. `experts`:
    files can be of mixtures. `whole_yarn`: the range of yarn is not rounded to whole pairs. `local_rope_base`: see `HfForm`.
    """

    name: str
    names: Mapping[str, str] = {}
    exact: Mapping[str, str] = {}
    fused: Mapping[str, tuple[str, ...]] = {}
    half_split: bool = False
    unrotated_every: int = 0
    local_windows: bool = False
    varied: bool = False
    experts: bool = False
    whole_yarn: bool = False
    local_rope_base: float = 0.0

    def storage(self) -> Storage:
        """Return how a file stores the tensors."""
        return Storage(
            names=_with_layer(_GGUF_NAMES | dict(self.names), GGUF_LAYER),
            exact=_with_layer(_GGUF_EXACT | dict(self.exact), GGUF_LAYER),
            fused={GGUF_LAYER + stem: parts for stem, parts in self.fused.items()},
            stacks={GGUF_LAYER + name: stack for name, stack in _GGUF_STACKS.items()},
            half_split=self.half_split,
            ignored=(ROPE_FACTORS,),
            further_layers=GGUF_LAYER.partition("{")[0] if self.experts else "",
        )


def _with_layer(names: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Put the prefix of a layer before the names of what is in one."""
    return {slot: (prefix if "." in slot else "") + stem for slot, stem in names.items()}


@attrs.frozen(kw_only=True)
class Architecture:
    """A description and the files that it is served from. `models` and `note` are for the reference page."""

    describe: Callable[[ModelFacts], Decoder]
    hf: HfForm | None = None
    gguf: GgufForm | None = None
    models: str
    note: str = ""
