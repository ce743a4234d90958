"""The tensors that an encoder needs: a slot for each, with its shape and its role.

A slot of a layer is `<layer>.<mixer>.<part>`, as in `decoder.slots`; the norm of a sum is `3.attention.after`. The others are
`embedding`, `embedding_norm`, `positions`, `types`, `distances` and `norm`. Two blocks are a layer. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator

from tlserve.model.decoder.record import Norm
from tlserve.model.decoder.slots import TensorRole, TensorSlot, has_bias
from tlserve.model.encoder.record import (
    BUCKETS,
    Distance,
    Encoder,
    EncoderBlock,
    EncoderFeedForward,
    EncoderMixer,
    WholeAttention,
)


def encoder_slots(encoder: Encoder) -> dict[str, TensorSlot]:
    """Return every slot of `encoder`."""
    hidden = encoder.hidden
    found = {"embedding": TensorSlot((encoder.vocabulary, hidden))}
    for name, rows in (("positions", encoder.positions), ("types", encoder.types)):
        if rows:
            found[name] = TensorSlot((rows, hidden))
    found |= dict(_norm("embedding_norm", encoder.embed_norm, hidden))
    for index, block in enumerate(encoder.blocks):
        prefix = block_prefix(index, block)
        found |= {f"{prefix}.{name}": slot for name, slot in _block(block, hidden)}
    buckets = [a for a in encoder.attentions() if a.distance is Distance.BUCKETS]
    if buckets:
        found["distances"] = TensorSlot((BUCKETS, buckets[0].heads))
    return found | dict(_norm("norm", encoder.norm, hidden))


def block_prefix(index: int, block: EncoderBlock) -> str:
    """Return the beginning of the names of a block's slots."""
    return f"{index // 2}.{'attention' if isinstance(block.mixer, WholeAttention) else 'ffn'}"


def _block(block: EncoderBlock, hidden: int) -> Iterator[tuple[str, TensorSlot]]:
    for name, norm in (("pre", block.pre), ("post", block.post), ("after", block.after), ("again", block.again)):
        yield from _norm(name, norm, hidden)
    yield from _mixer(block.mixer, hidden)


def _mixer(mixer: EncoderMixer, hidden: int) -> Iterator[tuple[str, TensorSlot]]:
    if isinstance(mixer, EncoderFeedForward):
        parts = ("gate", "up") if mixer.gated else ("up",)
        for part in parts:
            yield from _affine(part, (mixer.width, hidden), bias=mixer.up_bias)
        yield from _affine("down", (hidden, mixer.width), bias=mixer.down_bias)
        return
    turned = 0 if mixer.rope is None else mixer.rope.turned
    for part, heads, turns in (("q", mixer.heads, turned), ("k", mixer.kv_heads, turned), ("v", mixer.kv_heads, 0)):
        size = (heads * mixer.head_size, hidden)
        yield from _affine(part, size, bias=mixer.qkv_bias, head=mixer.head_size, turned=turns)
    yield from _affine("output", (hidden, mixer.heads * mixer.head_size), bias=mixer.output_bias)
    for name, norm, heads in (("q_norm", mixer.q_norm, mixer.heads), ("k_norm", mixer.k_norm, mixer.kv_heads)):
        if norm is not None:
            yield from _norm(name, norm, (heads if norm.whole_row else 1) * mixer.head_size, mixer.head_size, turned)


def _affine(
    name: str, shape: tuple[int, int], *, bias: bool, head: int = 0, turned: int = 0
) -> Iterator[tuple[str, TensorSlot]]:
    yield name, TensorSlot(shape, TensorRole.MATRIX, head, turned)
    if bias:
        yield f"{name}.bias", TensorSlot(shape[:1], TensorRole.BIAS, head, turned)


def _norm(name: str, norm: Norm | None, size: int, head: int = 0, turned: int = 0) -> Iterator[tuple[str, TensorSlot]]:
    if norm is not None:
        yield name, TensorSlot((size,), TensorRole.NORM, head, turned)
        if has_bias(norm):
            yield f"{name}.bias", TensorSlot((size,), TensorRole.BIAS, head, turned)
