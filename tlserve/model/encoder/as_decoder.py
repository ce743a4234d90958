"""An encoder as a decoder's record: the same blocks, with attention to both sides, over rows that are embedded elsewhere.

So the native kernels and their reference run encoders too. Knows which mechanisms of encoders they do not have.
"""

from __future__ import annotations

from tlserve.model.decoder.record import Attention, Block, Decoder, FeedForward, Layer
from tlserve.model.encoder.record import Distance, Encoder, EncoderBlock, EncoderMixer, WholeAttention


def has_decoder(encoder: Encoder) -> bool:
    """Return whether a decoder's record can say what `encoder` computes.

    Nothing depends on distances, heads are of one size, and rows are added once.
    """
    if any(block.again is not None for block in encoder.blocks):
        return False
    attentions = encoder.attentions()
    sizes = {(a.kv_heads, a.head_size) for a in attentions}
    return len(sizes) == 1 and all(a.distance is Distance.NONE for a in attentions)


def as_decoder(encoder: Encoder) -> Decoder:
    """Return the record; `has_decoder` must be true. Slots have the names of the encoder's."""
    blocks = [_block(block) for block in encoder.blocks]
    return Decoder(
        architecture=encoder.architecture,
        vocabulary=encoder.vocabulary,
        hidden=encoder.hidden,
        context_tokens=encoder.context_tokens,
        layers=tuple(Layer(blocks=tuple(blocks[first : first + 2])) for first in range(0, len(blocks), 2)),
        norm=encoder.norm,
        tied=True,
        embed_norm=encoder.embed_norm,
    )


def _block(block: EncoderBlock) -> Block:
    return Block(mixers=(_mixer(block.mixer),), pre=block.pre, post=block.post, after=block.after)


def _mixer(mixer: EncoderMixer) -> Attention | FeedForward:
    if not isinstance(mixer, WholeAttention):
        return FeedForward(width=mixer.width, activation=mixer.activation, gated=mixer.gated, bias=mixer.up_bias)
    return Attention(
        heads=mixer.heads,
        kv_heads=mixer.kv_heads,
        head_size=mixer.head_size,
        scale=mixer.scale,
        qkv_bias=mixer.qkv_bias,
        output_bias=mixer.output_bias,
        q_norm=mixer.q_norm,
        k_norm=mixer.k_norm,
        rope=mixer.rope,
        window=mixer.window,
        both_sides=True,
    )
