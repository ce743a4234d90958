"""Sizes and constants from a Hugging Face config.json; what is not served is refused by field and value.

Has the table of architectures: what is fixed in each, and which of its fields decide the rest. A field that transformers does
not read for an architecture is not read here. Knows nothing of weights; `rope` reads the rotation, `layers` what differs
between layers. Source: the `configuration_*` and `modeling_*` files of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tlserve.model.fields import Fields
from tlserve.model.hugging_face.layers import (
    WindowsReader,
    late_windows,
    no_windows,
    uniform_windows,
    unrotated_layers,
    unrotated_windows,
)
from tlserve.model.hugging_face.rope import read_rope
from tlserve.model.llama.hyperparameters import checked_shape, chosen_context
from tlserve.model.llama.shape import LlamaShape

CONFIG = "config.json"


@attrs.frozen(kw_only=True)
class HfFamily:
    """One `model_type`. A part is always present (True), never (False), or as the field `attention_bias` says (None).

    `windows` reads the window of every layer; `tied` and the sizes apply where a field is missing.
    """

    model_class: str
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    qk_norm: bool = False
    windows: WindowsReader = no_windows
    tied: bool = False
    rope_base: float = 10000.0
    head_size: int | None = None
    may_not_turn: bool = False


FAMILIES: Mapping[str, HfFamily] = {
    "llama": HfFamily(model_class="LlamaForCausalLM"),
    "mistral": HfFamily(model_class="MistralForCausalLM", qkv_bias=False, output_bias=False, windows=uniform_windows),
    "qwen2": HfFamily(model_class="Qwen2ForCausalLM", qkv_bias=True, output_bias=False, windows=late_windows),
    "qwen3": HfFamily(model_class="Qwen3ForCausalLM", qk_norm=True, windows=late_windows, head_size=128),
    "smollm3": HfFamily(
        model_class="SmolLM3ForCausalLM", windows=unrotated_windows, tied=True, rope_base=2_000_000.0, may_not_turn=True
    ),
}

_ONLY: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "quantization_config": (),
    "partial_rotary_factor": (1, 1.0),
    "is_encoder_decoder": (False,),
}
"""Fields with the values that are served; left out and null are served too."""


def hf_shape(document: Mapping[str, object], context_tokens: int = 0) -> LlamaShape:
    """Return the shape of the model that a config.json describes; raises `ModelRefused`."""
    config = Fields(document, f"{CONFIG}: ")
    family = _family(config)
    for name, served in _ONLY.items():
        config.refuse_unless(name, served, " or ".join(str(value).lower() for value in served) or "null")
    hidden = config.integer("hidden_size", 1, 1 << 16)
    heads = config.integer("num_attention_heads", 1, 1024)
    head_size = config.integer("head_dim", 2, 1024, default=family.head_size or _divided(config, hidden, heads))
    layers = config.integer("num_hidden_layers", 1, 1024)
    rope = read_rope(config, family.rope_base)
    biased = config.flag("attention_bias", default=False)
    unrotated = unrotated_layers(config, layers) if family.may_not_turn else ()
    return checked_shape(
        LlamaShape(
            architecture=str(document["model_type"]),
            layers=layers,
            hidden=hidden,
            intermediate=config.integer("intermediate_size", 1, 1 << 18),
            heads=heads,
            kv_heads=config.integer("num_key_value_heads", 1, heads, default=heads),
            head_size=head_size,
            rotated=head_size,
            vocabulary=config.integer("vocab_size", 2, 1 << 24),
            context_tokens=chosen_context(rope.trained, context_tokens, rope.longest),
            rope_base=rope.base,
            rope_linear_factor=rope.linear_factor,
            rope_scaling=rope.scaling,
            epsilon=config.positive("rms_norm_eps", 1e-6),
            qkv_bias=biased if family.qkv_bias is None else family.qkv_bias,
            output_bias=biased if family.output_bias is None else family.output_bias,
            qk_norm=family.qk_norm,
            windows=family.windows(config, layers, unrotated),
            unrotated_layers=unrotated,
        )
    )


def is_tied(document: Mapping[str, object]) -> bool:
    """Return whether the output matrix is the embedding."""
    config = Fields(document, f"{CONFIG}: ")
    return config.flag("tie_word_embeddings", default=_family(config).tied)


def _family(config: Fields) -> HfFamily:
    """Return the row of `model_type`; refuses another head than the one that predicts tokens."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise config.refusal("model_type", f"{name!r:.60} is not served; served: {', '.join(FAMILIES)}, bert")
    family = FAMILIES[name]
    classes = config.get("architectures")
    if classes is not None and classes != [family.model_class]:
        raise config.refusal("architectures", f"{classes!r:.80} is not served; served: {family.model_class}")
    return family


def _divided(config: Fields, hidden: int, heads: int) -> int:
    """Return the head size where the config does not give it."""
    if not config.has("head_dim") and hidden % heads:
        raise config.refusal("hidden_size", f"{hidden} cannot be shared by {heads} heads evenly")
    return hidden // heads
