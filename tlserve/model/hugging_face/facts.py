"""The facts of a model from a Hugging Face config.json; what is not served is refused by field and value.

A field that the description of an architecture does not read, and that would change every answer, is refused unless it has the
value that changes nothing. `rope` reads the rotation. Knows nothing of weights. Source: the `configuration_*` and `modeling_*`
files of transformers 5.24.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence

import attrs

from tlserve.model.architectures.facts import (
    MAX_CONTEXT_TOKENS,
    ModelFacts,
    Sizes,
    Windows,
    WindowsReader,
    chosen_context,
)
from tlserve.model.architectures.forms import Architecture, HfForm
from tlserve.model.architectures.registry import HF
from tlserve.model.architectures.windows import local_windows, unrotated_layers
from tlserve.model.decoder.record import Decoder, Rope, Temperature
from tlserve.model.fields import Fields
from tlserve.model.hugging_face.rope import HfRope, read_rope, rope_numbers

CONFIG = "config.json"

_ONLY: Mapping[str, tuple[object, ...]] = {
    "mlp_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "quantization_config": (),
    "partial_rotary_factor": (1, 1.0),
    "is_encoder_decoder": (False,),
}
"""Fields that no description read, with the values that are served; left out and null are served too."""


class _ReadValues(Mapping[str, object]):
    """The values of a config, and which of them were read."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.read = set[str]()

    def __getitem__(self, name: str) -> object:
        self.read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class HfFacts(ModelFacts):
    """The facts of a config.json, for the architecture of `form`."""

    def __init__(self, config: Fields, form: HfForm, context_tokens: int) -> None:
        self._config = config
        self._form = form
        hidden = config.integer("hidden_size", 1, 1 << 16)
        heads = config.integer("num_attention_heads", 1, 1024)
        head_size = config.integer("head_dim", 2, 1024, default=form.head_size or _divided(config, hidden, heads))
        self._rope = self._read_rope("full_attention")
        self.sizes = Sizes(
            architecture=form.model_type,
            layers=config.integer("num_hidden_layers", 1, 1024),
            hidden=hidden,
            width=config.integer("intermediate_size", 1, 1 << 18),
            heads=heads,
            kv_heads=config.integer("num_key_value_heads", 1, heads, default=heads),
            head_size=head_size,
            vocabulary=config.integer("vocab_size", 2, 1 << 24),
            context_tokens=chosen_context(self._rope.trained, context_tokens, self._rope.longest),
            tied=config.flag("tie_word_embeddings", default=form.tied),
        )

    def number(self, hf: str, gguf: str, default: float | None = None) -> float:  # noqa: ARG002 - for both kinds of files
        """See `ModelFacts`."""
        return self._config.positive(hf, default)

    def optional(self, hf: str, gguf: str, default: float) -> float:  # noqa: ARG002
        """See `ModelFacts`."""
        given = hf in self._config.values
        return self._config.positive(hf) if self._config.has(hf) else 0.0 if given else default

    def count(self, hf: str, gguf: str, default: int | None = None, *, low: int = 0) -> int:  # noqa: ARG002
        """See `ModelFacts`."""
        return self._config.integer(hf, low, 1 << 18, default)

    def switch(self, hf: str, gguf: str, *, default: bool, in_gguf: bool) -> bool:  # noqa: ARG002
        """See `ModelFacts`."""
        return self._config.flag(hf, default=default)

    def layer_widths(self) -> tuple[int, ...]:
        """See `ModelFacts`: config.json has one number."""
        return (self.sizes.width,) * self.sizes.layers

    def layer_heads(self, local: Sequence[bool]) -> tuple[tuple[int, int], ...]:
        """See `ModelFacts`: `per_layer_config`, or fields for the layers without windows (gemma4)."""
        config, usual = self._config, (self.sizes.kv_heads, self.sizes.head_size)
        given = config.get("per_layer_config")
        if given is not None:
            return tuple(_heads_of_layer(config, given, layer, usual) for layer in self.layers)
        head_size = config.integer("global_head_dim", 2, 1024, default=512)
        kv_heads = usual[0]
        if config.flag("attention_k_eq_v", default=False):
            kv_heads = config.integer("num_global_key_value_heads", 1, 1024, default=kv_heads)
        return tuple(usual if has_window else (kv_heads, head_size) for has_window in local)

    def numbers(self, hf: str) -> tuple[int, ...]:
        """See `ModelFacts`."""
        given = self._config.get(hf)
        if given is None:
            return ()
        if not isinstance(given, list) or not all(type(number) is int for number in given):
            raise self._config.refusal(hf, "must be a list of whole numbers")
        return tuple(given)

    def refuse(self, hf: str, allowed: tuple[object, ...], served: str) -> None:
        """See `ModelFacts`."""
        self._config.refuse_unless(hf, allowed, served)

    def require_one(self, *hf: str) -> None:
        """See `ModelFacts`."""
        if not any(map(self._config.has, hf)):
            raise self._config.refusal(hf[0], f"is missing; needed: {' or '.join(hf)}")

    def quantised_by(self, method: str) -> None:
        """See `ModelFacts`."""
        given = self._config.get("quantization_config")
        if given is not None and not (isinstance(given, Mapping) and given.get("quant_method") == method):
            raise self._config.refusal("quantization_config", f"is not served; served: quant_method {method}")

    def local(self, period: int, window: int = 4096) -> tuple[Windows, tuple[bool, ...]]:
        """See `ModelFacts`."""
        return local_windows(self._config, self.sizes.layers, period, window)

    def flag(self, hf: str, *, default: bool, tensor: str) -> bool:  # noqa: ARG002
        """See `ModelFacts`."""
        return self._config.flag(hf, default=default)

    def has_tensor(self, name: str, layer: int = 0) -> bool:  # noqa: ARG002
        """See `ModelFacts`: config.json names no tensors."""
        return False

    def windows(self, hf: WindowsReader, gguf: WindowsReader, unrotated: tuple[int, ...] = ()) -> Windows:  # noqa: ARG002
        """See `ModelFacts`."""
        return hf(self._config, self.sizes.layers, unrotated)

    def unrotated(self) -> tuple[int, ...]:
        """See `ModelFacts`."""
        return unrotated_layers(self._config, self.sizes.layers)

    def rope(self, kind: str = "full_attention", head_size: int = 0) -> Rope:
        """See `ModelFacts`."""
        rope = self._rope if kind == "full_attention" else self._read_rope(kind)
        return rope.record(head_size or self.sizes.head_size, self.sizes.context_tokens)

    def temperature(self) -> Temperature | None:
        """See `ModelFacts`."""
        numbers = rope_numbers(self._config)
        if not numbers.has("llama_4_scaling_beta"):
            return None
        original = numbers.integer("original_max_position_embeddings", 1, MAX_CONTEXT_TOKENS)
        return Temperature(beta=numbers.positive("llama_4_scaling_beta"), original=original)

    def _read_rope(self, kind: str) -> HfRope:
        """Return the rotation of a kind of layers: `rope_parameters` has an object for each, older files have other fields."""
        config, form = self._config, self._form
        if not form.local_rope_base:
            return read_rope(config, form.rope_base, form.partial, form.rope_fields)
        nested = config.get("rope_parameters")
        if isinstance(nested, Mapping) and kind in nested:
            own: dict[str, object] = {"rope_parameters": nested[kind], "rope_scaling": None, "rope_theta": None}
        elif kind == "full_attention":
            own = {}
        else:
            theta = config.get("rope_local_base_freq")
            own = {"rope_parameters": None, "rope_scaling": None, "rope_theta": theta}
        base = form.rope_base if kind == "full_attention" else form.local_rope_base
        return read_rope(Fields(ChainMap(own, config.values), config.prefix), base, form.partial, form.rope_fields)  # type: ignore[arg-type]

    def epsilon(self, hf: str = "rms_norm_eps", gguf: str = "attention.layer_norm_rms_epsilon") -> float:  # noqa: ARG002
        """See `ModelFacts`."""
        return self._config.positive(hf, self._form.epsilon)


def hf_decoder(document: Mapping[str, object], context_tokens: int = 0) -> Decoder:
    """Return the record of the model that a config.json describes; raises `ModelRefused`."""
    values = _ReadValues(document)
    config = Fields(values, f"{CONFIG}: ")
    architecture, form = hf_architecture(config)
    for name in ("hidden_act", "hidden_activation"):
        config.refuse_unless(name, form.activations, " or ".join(form.activations))
    decoder = architecture.describe(HfFacts(config, form, context_tokens))
    for name, served in _ONLY.items():
        if name not in values.read:
            config.refuse_unless(name, served, " or ".join(str(value).lower() for value in served) or "null")
    return attrs.evolve(decoder, architecture=form.model_type)


def hf_architecture(config: Fields) -> tuple[Architecture, HfForm]:
    """Return the row of `model_type`; refuses another head than the one that predicts tokens."""
    name = config.get("model_type")
    if not isinstance(name, str) or name not in HF:
        raise config.refusal("model_type", f"{name!r:.60} is not served; served: {', '.join(HF)}, bert")
    architecture, form = HF[name]
    classes = config.get("architectures")
    if classes is not None and classes != [form.model_class]:
        raise config.refusal("architectures", f"{classes!r:.80} is not served; served: {form.model_class}")
    return architecture, form


def _heads_of_layer(config: Fields, given: object, layer: int, usual: tuple[int, int]) -> tuple[int, int]:
    """Return the key heads and the head size that `per_layer_config` has for a layer, `usual` where it has none."""
    own = given.get(str(layer), {}) if isinstance(given, Mapping) else None
    if not isinstance(own, Mapping):
        raise config.refusal("per_layer_config", "must be an object with an object for each layer that differs")
    if own.keys() - {"num_key_value_heads", "head_dim"}:
        raise config.refusal(
            "per_layer_config", f"has {sorted(own)!r:.80} for a layer; served: head_dim, num_key_value_heads"
        )
    fields = Fields(own, f"{config.prefix}per_layer_config.{layer}.")
    return fields.integer("num_key_value_heads", 1, 1024, usual[0]), fields.integer("head_dim", 2, 1024, usual[1])


def _divided(config: Fields, hidden: int, heads: int) -> int:
    """Return the head size where the config does not give it."""
    if not config.has("head_dim") and hidden % heads:
        raise config.refusal("hidden_size", f"{hidden} cannot be shared by {heads} heads evenly")
    return hidden // heads
