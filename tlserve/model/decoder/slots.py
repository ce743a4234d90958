"""The tensors that a decoder needs: a slot for each, with its shape and its role.

A slot of a layer is `<layer>.<mixer>.<part>`: `3.attention.q`, `3.ffn.down`; `.bias` follows the name of what it is added to. The
norms of a block have the name of its first mixer: `3.attention.pre`, `3.ffn.after`, and so has its `out_scale`. An expert has its
number before its parts: `3.ffn.experts.17.down`. The others are `embedding`, `embedding_norm`, `norm` and `head`, and of
`LayerInputs` `input_table`, `input_projection` and `input_norm`.
Knows nothing of files.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import attrs

from tlserve.model.decoder.record import (
    Attention,
    Block,
    Decoder,
    ExpertNorms,
    Experts,
    FeedForward,
    LayerInput,
    LayerInputs,
    Mixer,
    Norm,
    NormKind,
)

KEPT_WIDE = (".router", ".shared_gate")
"""How the names of matrices end that choose and weigh experts: small, and an error of theirs changes a whole expert."""


class TensorRole(enum.Enum):
    """What a tensor does."""

    MATRIX = "matrix"
    BIAS = "bias"
    NORM = "norm"


@attrs.frozen
class TensorSlot:
    """`turned` of each `head` rows turn in pairs; 0: rows do not turn."""

    shape: tuple[int, ...]
    role: TensorRole = TensorRole.MATRIX
    head: int = 0
    turned: int = 0


def mixer_name(mixer: Mixer) -> str:
    """Return the name of a mixer in its slots."""
    return "attention" if isinstance(mixer, Attention) else "input" if isinstance(mixer, LayerInput) else "ffn"


def slots(decoder: Decoder) -> dict[str, TensorSlot]:
    """Return every slot of `decoder`; a tied one has no slot `head`."""
    found = {"embedding": TensorSlot((decoder.vocabulary, decoder.hidden))}
    found |= _norm("embedding_norm", decoder.embed_norm, decoder.hidden) | _norm("norm", decoder.norm, decoder.hidden)
    if not decoder.tied:
        found["head"] = TensorSlot((decoder.vocabulary, decoder.hidden))
    if decoder.head_bias:
        found["head.bias"] = TensorSlot((decoder.vocabulary,), TensorRole.BIAS)
    if decoder.layer_inputs is not None:
        found |= _layer_input_slots(decoder.layer_inputs, decoder)
    for index, layer in enumerate(decoder.layers):
        for block in layer.blocks:
            found |= {f"{index}.{name}": slot for name, slot in _block_slots(block, decoder.hidden)}
    return found


def _block_slots(block: Block, hidden: int) -> Iterator[tuple[str, TensorSlot]]:
    first = mixer_name(block.mixers[0])
    for name, norm in (("pre", block.pre), ("post", block.post), ("after", block.after)):
        yield from _norm(f"{first}.{name}", norm, hidden).items()
    if block.out_scaled:
        yield f"{first}.out_scale", TensorSlot((1,), TensorRole.BIAS)
    for mixer in block.mixers:
        yield from ((f"{mixer_name(mixer)}.{name}", slot) for name, slot in _mixer_slots(mixer, hidden))


def _mixer_slots(mixer: Mixer, hidden: int) -> Iterator[tuple[str, TensorSlot]]:
    if isinstance(mixer, Attention):
        return _attention_slots(mixer, hidden)
    if isinstance(mixer, LayerInput):
        return iter({"gate": TensorSlot((mixer.width, hidden)), "down": TensorSlot((hidden, mixer.width))}.items())
    return _expert_slots(mixer, hidden) if isinstance(mixer, Experts) else _ffn_slots(mixer, hidden)


def _expert_slots(e: Experts, hidden: int) -> Iterator[tuple[str, TensorSlot]]:
    count = e.router.count
    yield "router", TensorSlot((count, hidden))
    if e.router.bias:
        yield "router.bias", TensorSlot((count,), TensorRole.BIAS)
    if e.router.choice_bias:
        yield "choice", TensorSlot((count,), TensorRole.BIAS)
    if e.router.own_scales:
        yield "own_scales", TensorSlot((count,), TensorRole.BIAS)
    if e.norms is not None:
        yield from _expert_norm_slots(e.norms, hidden)
    of_one = tuple(_ffn_slots(e.expert, hidden))
    for number in range(count):
        yield from ((f"experts.{number}.{name}", slot) for name, slot in of_one)
    if e.shared is not None:
        yield from ((f"shared.{name}", slot) for name, slot in _ffn_slots(e.shared, hidden))
    if e.shared_gate:
        yield "shared_gate", TensorSlot((1, hidden))


def _expert_norm_slots(norms: ExpertNorms, hidden: int) -> Iterator[tuple[str, TensorSlot]]:
    named = {
        "router_norm": norms.router,
        "experts_pre": norms.pre,
        "experts_post": norms.post,
        "shared_post": norms.shared,
    }
    for name, norm in named.items():
        yield from _norm(name, norm, hidden).items()


def _layer_input_slots(inputs: LayerInputs, decoder: Decoder) -> dict[str, TensorSlot]:
    width = inputs.width * len(decoder.layers)
    return {
        "input_table": TensorSlot((decoder.vocabulary, width)),
        "input_projection": TensorSlot((width, decoder.hidden)),
    } | _norm("input_norm", inputs.norm, inputs.width)


def _attention_slots(a: Attention, hidden: int) -> Iterator[tuple[str, TensorSlot]]:
    turned = a.turned
    own = [("k", a.kv_heads, turned), ("v", a.kv_heads, 0)][: 0 if a.kv_from is not None else 1 if a.v_from_k else 2]
    for name, heads, turns in [("q", a.heads, turned), *own]:
        head = a.head_size if turns else 0
        yield name, TensorSlot((heads * a.head_size, hidden), TensorRole.MATRIX, head, turns)
        if a.qkv_bias:
            yield f"{name}.bias", TensorSlot((heads * a.head_size,), TensorRole.BIAS, head, turns)
    yield "output", TensorSlot((hidden, a.heads * a.head_size))
    if a.output_bias:
        yield "output.bias", TensorSlot((hidden,), TensorRole.BIAS)
    if a.sinks:
        yield "sinks", TensorSlot((a.heads,), TensorRole.BIAS)
    for name, norm, heads in (("q_norm", a.q_norm, a.heads), ("k_norm", a.k_norm, a.kv_heads)):
        if norm is not None and (name == "q_norm" or a.kv_from is None):
            shape: tuple[int, ...] = (a.head_size,)
            shape = (heads, a.head_size) if norm.per_head else (heads * a.head_size,) if norm.whole_row else shape
            yield name, TensorSlot(shape, TensorRole.NORM, a.head_size, turned)


def _ffn_slots(f: FeedForward, hidden: int) -> Iterator[tuple[str, TensorSlot]]:
    parts = {"gate": (f.width, hidden)} if f.gated else {}
    for name, shape in (parts | {"up": (f.width, hidden), "down": (hidden, f.width)}).items():
        yield name, TensorSlot(shape)
        if f.bias:
            yield f"{name}.bias", TensorSlot(shape[:1], TensorRole.BIAS)


def _norm(name: str, norm: Norm | None, size: int) -> dict[str, TensorSlot]:
    if norm is None or norm.weightless:
        return {}
    found = {name: TensorSlot((size,), TensorRole.NORM)}
    return found | {f"{name}.bias": TensorSlot((size,), TensorRole.BIAS)} if has_bias(norm) else found


def has_bias(norm: Norm) -> bool:
    """Return whether a norm adds a vector."""
    return norm.bias and norm.kind is NormKind.LAYER
