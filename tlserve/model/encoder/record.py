"""What an encoder computes, as data: embeddings, then layers of residual blocks with one mixer each.

As `decoder.record`, but every row sees its whole sequence. Everything that depends on the number of a layer is resolved when a
file is read, so that the forward pass never knows an architecture's name. Heads turn in adjacent pairs.
"""

from __future__ import annotations

import enum

import attrs

from tlserve.errors import ModelRefused
from tlserve.model.decoder.record import MAX_ROPE_ANGLES, Activation, Norm, Rope


class Distance(enum.Enum):
    """What is added to a score for the distance of query and key.

    ALIBI: -slope * distance, a slope for each head. BUCKETS: a stored number for each head and bucket of distances.
    """

    NONE = "none"
    ALIBI = "alibi"
    BUCKETS = "buckets"


@attrs.frozen(kw_only=True)
class WholeAttention:
    """A mixer: attention to all rows of the sequence. `window` above 0: only to that many on each side, and to its own.

    `scale` multiplies the scores. `q_norm`, `k_norm`: norms before heads turn. `rope`: None where nothing turns.
    """

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    qkv_bias: bool = True
    output_bias: bool = True
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    rope: Rope | None = None
    window: int = 0
    distance: Distance = Distance.NONE


@attrs.frozen(kw_only=True)
class EncoderFeedForward:
    """A mixer: down(activation(gate x) * up x), or down(activation(up x)) where it is not `gated`."""

    width: int
    activation: Activation = Activation.GELU_ERF
    gated: bool = False
    up_bias: bool = True
    down_bias: bool = True


EncoderMixer = WholeAttention | EncoderFeedForward


@attrs.frozen(kw_only=True)
class EncoderBlock:
    """x becomes y = after(x + post(mixer(pre(x)))); a norm that is None is left out. With `again` it becomes again(y + x)."""

    mixer: EncoderMixer
    pre: Norm | None = None
    post: Norm | None = None
    after: Norm | None = None
    again: Norm | None = None


@attrs.frozen(kw_only=True)
class Encoder:
    """A whole encoder.

    `positions`: rows of the table of positions, of which `first_position` is that of the first token; 0: there is no table.
    `types`: rows of the table of token types; 0: there is none. `second_after`: the id of the token after which the second type
    begins, None where all rows have the first one.
    """

    architecture: str
    vocabulary: int
    hidden: int
    context_tokens: int
    blocks: tuple[EncoderBlock, ...]
    embed_scale: float = 1.0
    embed_norm: Norm | None = None
    norm: Norm | None = None
    positions: int = 0
    first_position: int = 0
    types: int = 0
    second_after: int | None = None

    def attentions(self) -> tuple[WholeAttention, ...]:
        """Return the attention mixers in order."""
        return tuple(block.mixer for block in self.blocks if isinstance(block.mixer, WholeAttention))

    def ropes(self) -> tuple[Rope, ...]:
        """Return the different ropes, each once."""
        return tuple(dict.fromkeys(a.rope for a in self.attentions() if a.rope is not None))


BUCKETS, FURTHEST = 32, 128
"""Distances of MPNet: so many buckets, the last ones for distances of at least so many tokens."""


def checked_encoder(encoder: Encoder) -> Encoder:
    """Return `encoder`; raises `ModelRefused` where its sizes do not fit each other."""
    for attention in encoder.attentions():
        if attention.heads % attention.kv_heads:
            raise ModelRefused(f"{attention.heads} query heads cannot share {attention.kv_heads} key heads evenly")
    for rope in encoder.ropes():
        if rope.turned % 2 or encoder.context_tokens * rope.turned // 2 > MAX_ROPE_ANGLES:
            raise ModelRefused(f"heads of which {rope.turned} components turn over {encoder.context_tokens} tokens")
    return encoder


def normed_sums(attention: EncoderMixer, feed_forward: EncoderMixer, norm: Norm) -> tuple[EncoderBlock, ...]:
    """Return the two blocks of a layer with a norm of each sum, as in BERT."""
    return tuple(EncoderBlock(mixer=mixer, after=norm) for mixer in (attention, feed_forward))
