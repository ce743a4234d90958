"""What a file says of a model, by one name for both kinds of files: a description reads it and makes the record.

Has the parts that most architectures have in common. `hugging_face.facts` and `gguf.facts` read their kind of file; a value
that a description does not read, and that would change every answer, is refused there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.decoder.record import (
    Attention,
    Decoder,
    FeedForward,
    Layer,
    Mixer,
    Norm,
    NormKind,
    Rope,
    Temperature,
    checked,
    sequential,
)
from tlserve.model.fields import Fields

MAX_CONTEXT_TOKENS = 1 << 20

Windows = tuple[int, ...]
"""For each layer how many keys a row sees; 0: all."""

WindowsReader = Callable[[Fields, int, tuple[int, ...]], Windows]
"""(the fields of a file, layers, layers without rotation) -> windows; raises `ModelRefused`."""


@attrs.frozen(kw_only=True)
class Sizes:
    """The sizes that every decoder has."""

    architecture: str
    layers: int
    hidden: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context_tokens: int
    tied: bool


class ModelFacts(ABC):
    """The facts of one file. Names of fields come in pairs: that of config.json, and that of GGUF without its prefix."""

    sizes: Sizes

    @property
    def layers(self) -> range:
        """Return the numbers of the layers."""
        return range(self.sizes.layers)

    @abstractmethod
    def number(self, hf: str, gguf: str, default: float | None = None) -> float:
        """Return a number above 0."""

    @abstractmethod
    def optional(self, hf: str, gguf: str, default: float) -> float:
        """Return a number above 0, or 0 where the file says null; `default` where config.json does not have the field."""

    @abstractmethod
    def count(self, hf: str, gguf: str, default: int | None = None, *, low: int = 0) -> int:
        """Return a whole number from `low` up, the same for all layers."""

    @abstractmethod
    def switch(self, hf: str, gguf: str, *, default: bool, in_gguf: bool) -> bool:
        """Return a truth value; `default` where config.json does not have it, `in_gguf` where GGUF does not."""

    @abstractmethod
    def layer_widths(self) -> tuple[int, ...]:
        """Return the width of the feed-forward part of every layer, as far as the file says that they differ."""

    @abstractmethod
    def layer_heads(self, local: Sequence[bool]) -> tuple[tuple[int, int], ...]:
        """Return the key heads and the head size of every layer; `local` says which have a window, and heads of another size."""

    @abstractmethod
    def numbers(self, hf: str) -> tuple[int, ...]:
        """Return the list of whole numbers of config.json, () where there is none; () for GGUF."""

    @abstractmethod
    def refuse(self, hf: str, allowed: tuple[object, ...], served: str) -> None:
        """Refuse a field of config.json whose value is not one of `allowed`."""

    @abstractmethod
    def require_one(self, *hf: str) -> None:
        """Refuse a config.json that has none of these fields, whose default in transformers is not the usual one."""

    @abstractmethod
    def quantised_by(self, method: str) -> None:
        """Refuse weights that config.json says are quantised in another way; those of other architectures are refused."""

    @abstractmethod
    def local(self, period: int, window: int = 4096) -> tuple[Windows, tuple[bool, ...]]:
        """Return the windows, and which layers have one: as the file lists them, else all but every `period`-th."""

    @abstractmethod
    def flag(self, hf: str, *, default: bool, tensor: str) -> bool:
        """Return whether the model has a part: as config.json says, or as a GGUF file has `tensor` in layer 0."""

    @abstractmethod
    def has_tensor(self, name: str, layer: int = 0) -> bool:
        """Return whether a GGUF file has the tensor `name` in a layer; False for config.json, which names none."""

    def lacks_tensor(self, name: str, layer: int = 0) -> bool:  # noqa: ARG002 - for GGUF
        """Return whether a GGUF file lacks the tensor `name` in a layer; False for config.json."""
        return False

    @abstractmethod
    def windows(self, hf: WindowsReader, gguf: WindowsReader, unrotated: tuple[int, ...] = ()) -> Windows:
        """Return the windows of all layers, as the reader for this kind of file finds them."""

    @abstractmethod
    def unrotated(self) -> tuple[int, ...]:
        """Return the layers without rotation."""

    @abstractmethod
    def rope(self, kind: str = "full_attention", head_size: int = 0) -> Rope:
        """Return how heads turn in layers of a kind, which differ only in some architectures; 0: all heads are of one size."""

    @abstractmethod
    def temperature(self) -> Temperature | None:
        """Return what queries are multiplied by."""

    @abstractmethod
    def epsilon(self, hf: str = "rms_norm_eps", gguf: str = "attention.layer_norm_rms_epsilon") -> float:
        """Return what a norm adds to the mean square."""

    def norm(self) -> Norm:
        """Return the usual RMS norm."""
        return Norm(epsilon=self.epsilon())

    def layer_norm(self, hf: str = "layer_norm_eps", *, bias: bool = True) -> Norm:
        """Return a LayerNorm whose epsilon has the name `hf` in config.json."""
        return Norm(kind=NormKind.LAYER, epsilon=self.epsilon(hf, "attention.layer_norm_epsilon"), bias=bias)

    def attention(self, **changes: Any) -> Attention:
        """Return attention with the model's heads and rotation, scaled by head_size**-0.5, with `changes`."""
        sizes = self.sizes
        given: dict[str, Any] = {
            "heads": sizes.heads,
            "kv_heads": sizes.kv_heads,
            "head_size": sizes.head_size,
            "scale": sizes.head_size**-0.5,
        }
        if "rope" not in changes:
            given["rope"] = self.rope()
        return Attention(**given | changes)

    def attentions(self, windows: Windows = (), unrotated: tuple[int, ...] = (), **changes: Any) -> list[Attention]:
        """Return the attention of every layer, each with its window, without rotation where it is `unrotated`."""
        same = self.attention(**changes)
        return [
            attrs.evolve(same, window=windows[i] if windows else 0, rope=None if i in unrotated else same.rope)
            for i in self.layers
        ]

    def biased_attention(self, hf: str = "attention_bias", *, default: bool = False) -> dict[str, Any]:
        """Return the biases of attention: config.json has one field for all, GGUF has the tensors."""
        return {
            "qkv_bias": self.flag(hf, default=default, tensor="attn_q.bias"),
            "output_bias": self.flag(hf, default=default, tensor="attn_output.bias"),
        }

    def feed_forward(self, **changes: Any) -> FeedForward:
        """Return the gated silu of the model's width, with `changes`."""
        given: dict[str, Any] = {"width": self.sizes.width}
        return FeedForward(**given | changes)

    def decoder(self, layers: Sequence[Layer], norm: Norm, **changes: Any) -> Decoder:
        """Return the record with these layers; raises `ModelRefused` where sizes do not fit each other."""
        s = self.sizes
        given: dict[str, Any] = {
            "architecture": s.architecture,
            "vocabulary": s.vocabulary,
            "hidden": s.hidden,
            "context_tokens": s.context_tokens,
            "tied": s.tied,
        }
        return checked(Decoder(**given | changes, layers=tuple(layers), norm=norm))

    def llama(self, attentions: Sequence[Attention], feed_forward: Mixer, **changes: Any) -> Decoder:
        """Return a decoder of sequential layers with RMS norms, one for each of `attentions`."""
        scale, norm = changes.pop("scale", 1.0), self.norm()
        return self.decoder([sequential(a, feed_forward, norm, scale) for a in attentions], norm, **changes)


def chosen_context(trained: int, requested: int, most: int) -> int:
    """Return the context to serve: `requested`, or `trained` where it is 0; refuses one past `most`."""
    if requested > most:
        raise ModelRefused(f"context_tokens {requested} is more than the model's {most}")
    return requested or trained
