"""What a config.json says of an encoder, by one name for all the spellings of a field, and how an architecture is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tlserve.model.decoder.record import Activation, Norm, NormKind, Rope
from tlserve.model.decoder.rope_scaling import scaled_rope
from tlserve.model.decoder.storage import Storage
from tlserve.model.encoder.record import Encoder, EncoderBlock, EncoderFeedForward, WholeAttention, checked_encoder
from tlserve.model.fields import Fields
from tlserve.model.hugging_face.rope import read_rope

_SPELLINGS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
    "hidden_act": "activation_function",
}
"""Field -> its name in older files."""

ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": Activation.GELU_ERF,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "gelu_new": Activation.GELU_TANH,
    "silu": Activation.SILU,
    "swiglu": Activation.SILU,
}


class EncoderFacts:
    """The facts of one config. `longest`: tokens of a text, if the sentence encoder's files limit them; 0: they do not."""

    def __init__(self, config: Fields, longest: int = 0) -> None:
        values = dict(config.values)
        for name, older in _SPELLINGS.items():
            if values.get(name) is None and values.get(older) is not None:
                values[name] = values[older]
        self.config = Fields(values, config.prefix)
        self._longest = longest
        self.hidden = self.config.integer("hidden_size", 1, 1 << 16)
        self.layers = self.config.integer("num_hidden_layers", 1, 1024)
        self.heads = self.config.integer("num_attention_heads", 1, 1024)
        self.width = self.config.integer("intermediate_size", 1, 1 << 18)
        self.head_size = self.config.integer("head_dim", 2, 1024, default=self.hidden // self.heads)
        if not self.config.has("head_dim") and self.hidden % self.heads:
            raise self.config.refusal("hidden_size", f"{self.hidden} cannot be shared by {self.heads} heads evenly")
        self.vocabulary = self.config.integer("vocab_size", 2, 1 << 24)
        self.positions = self.config.integer("max_position_embeddings", 3, 1 << 20)

    def only(self, **served: object) -> None:
        """Refuse a field that is there and has another value than the one that is served; () stands for null."""
        for name, value in served.items():
            allowed = () if value == () else (value,)
            self.config.refuse_unless(name, allowed, "null" if value == () else str(value).lower())

    def layer_norm(self, *, bias: bool = True, name: str = "layer_norm_eps", default: float = 1e-12) -> Norm:
        """Return the LayerNorm of the model."""
        return Norm(kind=NormKind.LAYER, epsilon=self.config.positive(name, default), bias=bias)

    def activation(self, name: str = "hidden_act", default: str = "gelu") -> Activation:
        """Return the activation that the config names."""
        value = self.config.get(name) or default
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.config.refusal(name, f"{value!r:.60} is not served; served: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[value]

    def attention(self, **changes: Any) -> WholeAttention:
        """Return attention with the model's heads, with `changes`."""
        given: dict[str, Any] = {"heads": self.heads, "kv_heads": self.heads, "head_size": self.head_size}
        return WholeAttention(**given | {"scale": self.head_size**-0.5} | changes)

    def feed_forward(self, **changes: Any) -> EncoderFeedForward:
        """Return the feed-forward part of the model's width, with `changes`."""
        given: dict[str, Any] = {"width": self.width, "activation": self.activation()}
        return EncoderFeedForward(**given | changes)

    def rope(self, default_base: float) -> Rope:
        """Return how heads turn."""
        return read_rope(self.config, default_base).record(self.head_size, self.context(self.positions))

    def rope_of(self, base: float) -> Rope:
        """Return a rotation without scaling."""
        return scaled_rope(base, self.head_size, self.context(self.positions))

    def context(self, most: int) -> int:
        """Return the longest text: `most`, or less if the sentence encoder's files say so."""
        return min(self._longest or most, most)

    def encoder(self, blocks: tuple[EncoderBlock, ...], **changes: Any) -> Encoder:
        """Return the record; `first_position` rows of the table of positions are not used."""
        usable = self.positions - int(changes.get("first_position", 0))
        given: dict[str, Any] = {"architecture": "", "vocabulary": self.vocabulary, "hidden": self.hidden}
        return checked_encoder(Encoder(**given | {"context_tokens": self.context(usable)} | changes, blocks=blocks))


@attrs.frozen(kw_only=True)
class HeadPart:
    """A layer of the head that makes scores. `stem`: the name of its tensors, in which {} is the prefix of the encoder's."""

    stem: str
    activation: str = "identity"
    norm: str = ""


@attrs.frozen(kw_only=True)
class EncoderForm:
    """One `model_type` of config.json.

    `classes`: the classes of the encoder alone or with a head that predicts tokens. `scores`: the class with a head for scores,
    which `head` has. `storages`: how files store the tensors; the first whose embedding a file has is taken.
    """

    model_type: str
    classes: tuple[str, ...]
    scores: str = ""
    describe: Callable[[EncoderFacts], Encoder]
    storages: tuple[Storage, ...]
    head: tuple[HeadPart, ...] = ()
    gguf: str = ""
    models: str = ""
    note: str = ""
