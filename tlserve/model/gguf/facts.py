"""The facts of a model from GGUF metadata; a value that is not served is refused by name.

Reads the keys `general.architecture` and `<architecture>.*`. Reads no tensors but the factors of the rotation; the names of the
others say whether a model has biases, which the metadata do not say. Source: the GGUF specification, section "LLM";
`gguf.constants`; llama.cpp for the meaning of each architecture.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.model.architectures.facts import (
    MAX_CONTEXT_TOKENS,
    ModelFacts,
    Sizes,
    Windows,
    WindowsReader,
    chosen_context,
)
from tlserve.model.architectures.forms import GGUF_LAYER, ROPE_FACTORS, Architecture, GgufForm
from tlserve.model.architectures.registry import GGUF
from tlserve.model.architectures.windows import gguf_local_windows
from tlserve.model.decoder.record import Decoder, Rope, Temperature
from tlserve.model.decoder.rope_scaling import RopeScaling, YarnScaling, scaled_rope, yarn_amplitude
from tlserve.model.fields import Fields
from tlserve.model.tensor_shapes import check_shapes

F64 = NDArray[np.float64]
Metadata = Mapping[str, object]


class GgufFacts(ModelFacts):
    """The facts of a file's metadata, for the architecture of `form`.

    `vocabulary`: rows of the embedding. `tensors`: the names of the file's tensors. `rope_factors`: what its frequencies are
    divided by besides.
    """

    def __init__(
        self,
        fields: Fields,
        form: GgufForm,
        vocabulary: int,
        context_tokens: int,
        tensors: Collection[str],
        rope_factors: F64 | None,
    ) -> None:
        self._fields = fields
        self._form = form
        self._tensors = tensors
        self._rope_factors = rope_factors
        layers, hidden = _layers(fields), fields.integer("embedding_length", 1, 1 << 16)
        heads = fields.integer("attention.head_count", 1, 1024)
        head_size = fields.integer("attention.key_length", 2, 1024, default=hidden // heads)
        if head_size < 2:
            raise fields.refusal(
                "attention.head_count", f"must leave heads of at least 2 of {hidden} components, not {heads}"
            )
        _refuse_what_is_not_served(fields, head_size, vocabulary, experts=form.experts)
        if not form.local_windows:
            fields.refuse_unless("attention.sliding_window_pattern", (), "one window for all layers")
        self.sizes = Sizes(
            architecture=form.name,
            layers=layers,
            hidden=hidden,
            width=_greatest(fields, "feed_forward_length", 1 << 18, layers, varied=form.varied),
            heads=heads,
            kv_heads=_greatest(fields, "attention.head_count_kv", heads, layers, heads, varied=form.varied),
            head_size=head_size,
            vocabulary=vocabulary,
            context_tokens=_context(fields, context_tokens),
            tied="output.weight" not in tensors,
        )

    def number(self, hf: str, gguf: str, default: float | None = None) -> float:  # noqa: ARG002 - for both kinds of files
        """See `ModelFacts`."""
        return self._fields.positive(gguf, default)

    def optional(self, hf: str, gguf: str, default: float) -> float:  # noqa: ARG002
        """See `ModelFacts`: what GGUF does not have is 0."""
        return self._fields.positive(gguf) if self._fields.get(gguf) not in (None, 0, 0.0) else 0.0

    def count(self, hf: str, gguf: str, default: int | None = None, *, low: int = 0) -> int:  # noqa: ARG002
        """See `ModelFacts`."""
        return self._fields.integer(gguf, low, 1 << 18, default)

    def switch(self, hf: str, gguf: str, *, default: bool, in_gguf: bool) -> bool:  # noqa: ARG002
        """See `ModelFacts`."""
        return self._fields.flag(gguf, default=in_gguf)

    def layer_widths(self) -> tuple[int, ...]:
        """See `ModelFacts`."""
        return self._fields.integers("feed_forward_length", self.sizes.layers, 1, 1 << 18)

    def layer_heads(self, local: Sequence[bool]) -> tuple[tuple[int, int], ...]:
        """See `ModelFacts`."""
        fields, sizes = self._fields, self.sizes
        local_size = fields.integer("attention.key_length_swa", 2, 1024, default=sizes.head_size)
        if fields.integer("attention.value_length_swa", 1, 1024, default=local_size) != local_size:
            raise fields.refusal("attention.value_length_swa", f"must be attention.key_length_swa ({local_size})")
        kv_heads = fields.integers("attention.head_count_kv", sizes.layers, 1, sizes.heads, default=sizes.heads)
        return tuple(
            (heads, local_size if has_window else sizes.head_size)
            for heads, has_window in zip(kv_heads, local, strict=True)
        )

    def numbers(self, hf: str) -> tuple[int, ...]:  # noqa: ARG002
        """See `ModelFacts`."""
        return ()

    def refuse(self, hf: str, allowed: tuple[object, ...], served: str) -> None:
        """See `ModelFacts`: the tensors of a GGUF file say it."""

    def require_one(self, *hf: str) -> None:
        """See `ModelFacts`: GGUF has no other defaults."""

    def quantised_by(self, method: str) -> None:
        """See `ModelFacts`: the types of the tensors say it."""

    def local(self, period: int, window: int = 4096) -> tuple[Windows, tuple[bool, ...]]:  # noqa: ARG002
        """See `ModelFacts`."""
        return gguf_local_windows(self._fields, self.sizes.layers, period)

    def flag(self, hf: str, *, default: bool, tensor: str) -> bool:  # noqa: ARG002
        """See `ModelFacts`."""
        return self.has_tensor(tensor)

    def has_tensor(self, name: str, layer: int = 0) -> bool:
        """See `ModelFacts`."""
        return GGUF_LAYER.format(layer) + name in self._tensors

    def lacks_tensor(self, name: str, layer: int = 0) -> bool:
        """See `ModelFacts`."""
        return not self.has_tensor(name, layer)

    def windows(self, hf: WindowsReader, gguf: WindowsReader, unrotated: tuple[int, ...] = ()) -> Windows:  # noqa: ARG002
        """See `ModelFacts`."""
        return gguf(self._fields, self.sizes.layers, unrotated)

    def unrotated(self) -> tuple[int, ...]:
        """See `ModelFacts`: llama.cpp has a constant for each architecture."""
        every = self._form.unrotated_every
        return tuple(range(every - 1, self.sizes.layers, every)) if every else ()

    def rope(self, kind: str = "full_attention", head_size: int = 0) -> Rope:
        """See `ModelFacts`: layers with windows have their own base, or the same one, and no scaling."""
        fields, head_size = self._fields, head_size or self.sizes.head_size
        if kind != "full_attention":
            base = fields.positive("rope.freq_base", 10000.0)
            own = fields.positive("rope.freq_base_swa", self._form.local_rope_base or base)
            turned = fields.integer("rope.dimension_count_swa", 2, head_size, default=head_size)
            return scaled_rope(own, turned, self.sizes.context_tokens)
        turned = fields.integer("rope.dimension_count", 2, head_size, default=head_size)
        return scaled_rope(
            fields.positive("rope.freq_base", 10000.0),
            turned,
            self.sizes.context_tokens,
            _scaling(fields, whole=self._form.whole_yarn),
            _linear_factor(fields),
            _checked_factors(self._rope_factors, turned // 2),
        )

    def temperature(self) -> Temperature | None:
        """See `ModelFacts`."""
        if not self._fields.has("attention.temperature_scale"):
            return None
        original = self._fields.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT_TOKENS)
        return Temperature(beta=self._fields.positive("attention.temperature_scale"), original=original)

    def epsilon(self, hf: str = "rms_norm_eps", gguf: str = "attention.layer_norm_rms_epsilon") -> float:  # noqa: ARG002
        """See `ModelFacts`."""
        return self._fields.positive(gguf)


def gguf_architecture(metadata: Metadata) -> tuple[Architecture, GgufForm]:
    """Return the row of a file; raises `ModelRefused` for an architecture that is not served."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF:
        raise ModelRefused(f"the architecture {name!r:.60} is not served; served from GGUF: {', '.join(GGUF)}")
    return GGUF[name]


def gguf_decoder(
    metadata: Metadata,
    vocabulary: int,
    context_tokens: int = 0,
    tensors: Collection[str] = (),
    rope_factors: F64 | None = None,
) -> Decoder:
    """Return the record of the model that `metadata` describes; raises `ModelRefused`.

    `context_tokens` above 0 replaces the trained context, and must not exceed it. For the others see `GgufFacts`.
    """
    architecture, form = gguf_architecture(metadata)
    prefix = f"{form.name}."
    fields = Fields({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, prefix)
    _refuse_tokens_without_rows(metadata, vocabulary)
    return architecture.describe(GgufFacts(fields, form, vocabulary, context_tokens, tensors, rope_factors))


def _refuse_what_is_not_served(fields: Fields, head_size: int, vocabulary: int, *, experts: bool) -> None:
    """Refuse variants whose answers would be wrong."""
    if fields.integer("attention.value_length", 1, 1024, default=head_size) != head_size:
        raise ModelRefused("values whose length differs from that of keys are not served")
    if not experts and fields.get("expert_count") not in (None, 0):
        raise ModelRefused("mixtures of experts are not served for this architecture")
    fields.refuse_unless("attention.causal", (True,), "attention to earlier tokens only")
    if fields.integer("vocab_size", 1, 1 << 30, default=vocabulary) != vocabulary:
        raise fields.refusal("vocab_size", f"differs from the embedding's {vocabulary} rows")


def _greatest(fields: Fields, name: str, high: int, layers: int, default: int | None = None, *, varied: bool) -> int:
    """Return a number of all layers, the greatest of them where they can differ."""
    return max(fields.integers(name, layers, 1, high, default)) if varied else fields.integer(name, 1, high, default)


def _layers(fields: Fields) -> int:
    """Return the layers without those for drafts, which come last."""
    layers, for_drafts = fields.integer("block_count", 1, 1024), fields.integer("nextn_predict_layers", 0, 1024, 0)
    if for_drafts >= layers:
        raise fields.refusal("nextn_predict_layers", f"must be below the {layers} layers of block_count")
    return layers - for_drafts


def _refuse_tokens_without_rows(metadata: Metadata, vocabulary: int) -> None:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > vocabulary:
        raise ModelRefused(f"the tokenizer has {len(tokens)} tokens, the embedding only {vocabulary} rows")


def _context(fields: Fields, requested: int) -> int:
    """Return the context: the requested one, or the trained one, which yarn may lengthen."""
    trained = fields.integer("context_length", 1, MAX_CONTEXT_TOKENS)
    if fields.get("rope.scaling.type") == "yarn" and fields.has("rope.scaling.original_context_length"):
        original = fields.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT_TOKENS)
        trained = max(trained, min(int(original * fields.positive("rope.scaling.factor")), MAX_CONTEXT_TOKENS))
    return chosen_context(trained, requested, trained)


def _checked_factors(factors: F64 | None, pairs: int) -> F64 | None:
    """Return the divisors of the frequencies that a tensor holds; raises `ModelRefused`."""
    if factors is None:
        return None
    check_shapes({ROPE_FACTORS: (pairs,)}, {ROPE_FACTORS: factors.shape})
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelRefused(f"the tensor {ROPE_FACTORS} must hold finite numbers above 0")
    return factors


def _linear_factor(fields: Fields) -> float:
    """Return the divisor of positions: 1, or the factor of linear scaling."""
    if fields.get("rope.scaling.type") == "linear":
        return fields.positive("rope.scaling.factor")
    return fields.positive("rope.scale_linear", 1.0)


def _scaling(fields: Fields, *, whole: bool) -> RopeScaling | None:
    """Return the scaling of frequencies; kinds that are not known are refused. Llama 3's is a tensor in GGUF."""
    fields.refuse_unless("rope.scaling.type", ("none", "linear", "yarn"), "none, linear, yarn")
    if fields.get("rope.scaling.type") != "yarn":
        return None
    fields.refuse_unless("rope.scaling.yarn_log_multiplier", (0.0,), "0")
    fields.refuse_unless("rope.scaling.yarn_ext_factor", (1.0, -1.0), "1")
    factor = fields.positive("rope.scaling.factor")
    context = fields.integer("context_length", 1, MAX_CONTEXT_TOKENS)
    attention = fields.positive("rope.scaling.attn_factor", 1.0) * fields.positive("rope.scaling.yarn_attn_factor", 1.0)
    return YarnScaling(
        factor=factor,
        original=fields.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT_TOKENS, default=context),
        beta_fast=fields.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.positive("rope.scaling.yarn_beta_slow", 1.0),
        truncate=not whole,
        amplitude=attention * yarn_amplitude(factor),
    )
