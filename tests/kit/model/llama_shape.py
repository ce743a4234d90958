"""The sizes of a small llama and what its kin add to it, in few words: `record` is the same as the package has it."""

from __future__ import annotations

import attrs
import numpy as np

from tlserve.model.architectures.forms import GgufForm
from tlserve.model.decoder.record import Attention, Decoder, FeedForward, Norm, Rope, sequential
from tlserve.model.decoder.rope_scaling import RopeScaling, scaled_rope
from tlserve.model.decoder.slots import slots
from tlserve.model.decoder.storage import Storage


@attrs.frozen(kw_only=True)
class LlamaShape:
    """`windows`: for each layer how many keys a row sees, 0: all; empty: all. `unrotated_layers`: where nothing turns."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    rotated: int
    vocabulary: int
    context_tokens: int
    rope_base: float
    rope_linear_factor: float = 1.0
    epsilon: float
    architecture: str = "llama"
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    rope_scaling: RopeScaling | None = None
    windows: tuple[int, ...] = ()
    unrotated_layers: tuple[int, ...] = ()

    def record(self, *, tied: bool = True, rope_factors: np.ndarray | None = None) -> Decoder:
        """Return the record of this llama."""
        norm = Norm(epsilon=self.epsilon)
        return Decoder(
            architecture=self.architecture,
            vocabulary=self.vocabulary,
            hidden=self.hidden,
            context_tokens=self.context_tokens,
            layers=tuple(
                sequential(self._attention(i, norm, rope_factors), FeedForward(width=self.intermediate), norm)
                for i in range(self.layers)
            ),
            norm=norm,
            tied=tied,
        )

    def _attention(self, layer: int, norm: Norm, factors: np.ndarray | None) -> Attention:
        head_norm = norm if self.qk_norm else None
        return Attention(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            scale=self.head_size**-0.5,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            q_norm=head_norm,
            k_norm=head_norm,
            rope=None if layer in self.unrotated_layers else self._rope(factors),
            window=self.windows[layer] if self.windows else 0,
        )

    def _rope(self, factors: np.ndarray | None) -> Rope:
        return scaled_rope(
            self.rope_base, self.rotated, self.context_tokens, self.rope_scaling, self.rope_linear_factor, factors
        )


STORAGE: Storage = GgufForm(name="llama").storage()
"""How a GGUF file of a llama stores its tensors."""


def gguf_name(slot: str) -> str:
    """Return the name in a GGUF file of a llama's slot."""
    layer, _, part = slot.partition(".")
    number, part = (layer, part) if layer.isdigit() else ("", slot)
    stem = STORAGE.names[part.removesuffix(".bias")].format(number)
    return stem + (".bias" if part.endswith(".bias") else ".weight")


def gguf_shapes(shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a GGUF file with a tied embedding, and their shapes."""
    return {gguf_name(slot): found.shape for slot, found in slots(shape.record()).items()}


def shape_of(decoder: Decoder) -> LlamaShape:
    """Return the sizes of a plain llama from its record."""
    attention, norm = decoder.attentions()[0], decoder.norm
    feed_forward = decoder.layers[0].blocks[1].mixers[0]
    assert isinstance(feed_forward, FeedForward)
    assert attention.rope is not None
    assert norm is not None
    return LlamaShape(
        layers=len(decoder.layers),
        hidden=decoder.hidden,
        intermediate=feed_forward.width,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_size=attention.head_size,
        rotated=attention.rope.turned,
        vocabulary=decoder.vocabulary,
        context_tokens=decoder.context_tokens,
        rope_base=attention.rope.base,
        epsilon=norm.epsilon,
    )
