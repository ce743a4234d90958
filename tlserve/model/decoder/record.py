"""What a decoder computes, as data: a list of layers, each a list of residual blocks with one or two mixers.

Everything that depends on the number of a layer is resolved when a file is read, so that a forward pass never knows an
architecture's name. The record describes the mathematics only: `slots` has the tensors that follow from it, and
`storage` how a file stores them. Heads turn in adjacent pairs (see `kernels.reference.rope`); a file that stores the two
halves of a head apart is put in order when it is read.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

import attrs

from tlserve.errors import ModelRefused


class NormKind(enum.Enum):
    """RMS: x / sqrt(mean(x**2) + epsilon). LAYER: the same of x - mean(x)."""

    RMS = "rms"
    LAYER = "layer"


class Activation(enum.Enum):
    """The function between the products of a feed-forward mixer."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    GELU_ERF = "gelu_erf"
    RELU2 = "relu2"
    CLAMPED_SWIGLU = "clamped_swiglu"


class Score(enum.Enum):
    """How a router's numbers become scores: their softmax over all experts, or the sigmoid of each."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@attrs.frozen(kw_only=True)
class Norm:
    """A norm and its weight.

    `per_head`: every head has a weight of its own. `whole_row`: heads are normed together. `weightless`: there is no weight.
    """

    kind: NormKind = NormKind.RMS
    epsilon: float
    bias: bool = False
    per_head: bool = False
    whole_row: bool = False
    weightless: bool = False


@attrs.frozen(kw_only=True)
class Rope:
    """How heads turn with the position: the first `turned` components, pair i by position * frequency i.

    Frequency i is base**(-2 i / turned) / divisors[i], and 0 where the divisor is infinite: the pair stays. Positions are
    divided by `linear_factor`; cosines and sines are multiplied by `amplitude`. Scaling of every kind is only these numbers,
    see `rope_scaling`.
    """

    base: float
    turned: int
    divisors: tuple[float, ...]
    linear_factor: float = 1.0
    amplitude: float = 1.0


@attrs.frozen(kw_only=True)
class Temperature:
    """Queries at position p are multiplied by 1 + beta * ln(1 + floor(p / original))."""

    beta: float
    original: int

    def factor(self, position: int) -> float:
        """Return the factor at a position."""
        return 1.0 + self.beta * math.log1p(position // self.original)


@attrs.frozen(kw_only=True)
class Attention:
    """A mixer: attention to earlier rows of the sequence, or to all of it.

    `scale` multiplies the scores. `q_norm`, `k_norm`: norms of the heads, before they turn or (`norm_after_rope`) after. `rope`:
    None where nothing turns. `window`: how many keys a row sees, its own the last of them; 0: all. `cap`: scores become
    cap * tanh(score / cap); 0: they stay. `sinks`: every head has one more score, which takes a share of the attention and has no
    value. `both_sides`: a row sees later rows too, and `window` counts the keys on each side, its own not among them; a step then
    has whole sequences. `v_norm`: a norm of the heads of values. `v_from_k`: values are the products for keys, before their norm
    and rotation, with the first components of all pairs before the second ones. `kv_from`: the number (in
    `Decoder.stored_attentions`) of earlier attention whose keys and values are used; None: it has its own.
    """

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    qkv_bias: bool = False
    output_bias: bool = False
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    norm_after_rope: bool = False
    rope: Rope | None = None
    window: int = 0
    cap: float = 0.0
    temperature: Temperature | None = None
    sinks: bool = False
    both_sides: bool = False
    v_norm: Norm | None = None
    v_from_k: bool = False
    kv_from: int | None = None

    @property
    def turned(self) -> int:
        """Return how many components of a head are in pairs."""
        return self.head_size if self.rope is None else self.rope.turned


@attrs.frozen(kw_only=True)
class FeedForward:
    """A mixer: down(activation(gate x) * up x), or down(activation(up x)) where it is not `gated`.

    `Activation.CLAMPED_SWIGLU` takes both products: with g = min(gate, 7) and u = up within -7 and 7, it is
    g * sigmoid(1.702 g) * (u + 1).
    """

    width: int
    activation: Activation = Activation.SILU
    gated: bool = True
    bias: bool = False


@attrs.frozen(kw_only=True)
class LayerInput:
    """A mixer: down(activation(gate x) * input), where input is the part of `Decoder.layer_inputs` for this layer."""

    width: int
    activation: Activation


@attrs.frozen(kw_only=True)
class LayerInputs:
    """What every layer takes of the tokens besides the rows: `width` numbers for each layer.

    (norm(projection(embedding * hidden**-0.5)) + table[token] * width**0.5) * 2**-0.5, where embedding is the row as it enters
    the first layer, and the norm is of each layer's part.
    """

    width: int
    norm: Norm


@attrs.frozen(kw_only=True)
class ExpertRouter:
    """Chooses `chosen` of `count` experts for a row, and weighs them.

    The experts with the greatest `score` are chosen, with `choice_bias` those with the greatest sum of score and a bias, which
    weighs nothing. With `groups` above 1 they are chosen from the `kept_groups` groups whose two greatest add up to most.
    A weight is the score, `divided` by the sum of the chosen scores, times `scale`, and with `own_scales` times a number that
    each expert has. `bias`: of the product that scores follow from. Of equals, the lower number is chosen.
    """

    count: int
    chosen: int
    score: Score = Score.SOFTMAX
    bias: bool = False
    choice_bias: bool = False
    groups: int = 1
    kept_groups: int = 1
    divided: bool = True
    scale: float = 1.0
    own_scales: bool = False


@attrs.frozen(kw_only=True)
class ExpertNorms:
    """Norms of a mixture whose parts do not take the normed rows of their block, but the residual, each with a norm of its own.

    `router`: what the router takes, times hidden**-0.5. `pre`: what the experts take. `post`: of their sum. `shared`: of what the
    shared one gives, which takes the normed rows of the block.
    """

    router: Norm
    pre: Norm
    post: Norm
    shared: Norm


@attrs.frozen(kw_only=True)
class Experts:
    """A mixer: the weighted sum of the chosen experts, ascending by number, and then of a `shared` one.

    `shared_gate`: the shared one is multiplied by the sigmoid of a product with one row. `norms`: see `ExpertNorms`.
    """

    router: ExpertRouter
    expert: FeedForward
    shared: FeedForward | None = None
    shared_gate: bool = False
    norms: ExpertNorms | None = None


Mixer = Attention | FeedForward | LayerInput | Experts


@attrs.frozen(kw_only=True)
class Block:
    """x becomes after(x + scale * post(sum of mixers(pre(x)))); a norm that is None is left out.

    `out_scaled`: x is then multiplied by a number that the file has.
    """

    mixers: tuple[Mixer, ...]
    pre: Norm | None = None
    post: Norm | None = None
    after: Norm | None = None
    scale: float = 1.0
    out_scaled: bool = False

    def is_plain(self) -> bool:
        """Return whether each mixer's product is added as it is, so that its bias can be added after it."""
        return self.post is None and self.after is None and self.scale == 1.0 and not self.out_scaled


@attrs.frozen(kw_only=True)
class Layer:
    """Residual blocks, one after the other."""

    blocks: tuple[Block, ...]


@attrs.frozen(kw_only=True)
class Decoder:
    """A whole model. `tied`: the output matrix is the embedding. `logit_cap`: as `Attention.cap`."""

    architecture: str
    vocabulary: int
    hidden: int
    context_tokens: int
    layers: tuple[Layer, ...]
    norm: Norm | None
    tied: bool
    embed_scale: float = 1.0
    embed_norm: Norm | None = None
    head_bias: bool = False
    logit_scale: float = 1.0
    logit_cap: float = 0.0
    layer_inputs: LayerInputs | None = None

    def attentions(self) -> tuple[Attention, ...]:
        """Return the attention mixers in order."""
        mixers = (mixer for layer in self.layers for block in layer.blocks for mixer in block.mixers)
        return tuple(mixer for mixer in mixers if isinstance(mixer, Attention))

    def stored_attentions(self) -> tuple[Attention, ...]:
        """Return those that have keys and values of their own; the place in this list is the number of these in a store."""
        return tuple(attention for attention in self.attentions() if attention.kv_from is None)

    def mixtures(self) -> tuple[Experts, ...]:
        """Return the mixers that are experts, in order."""
        mixers = (mixer for layer in self.layers for block in layer.blocks for mixer in block.mixers)
        return tuple(mixer for mixer in mixers if isinstance(mixer, Experts))

    def ropes(self) -> tuple[Rope, ...]:
        """Return the different ropes of the layers, each once."""
        return tuple(dict.fromkeys(a.rope for a in self.attentions() if a.rope is not None))


def kept_attentions(attentions: Sequence[Attention]) -> Sequence[Attention]:
    """Return those whose keys a store has apart: of attention to both sides, of which no keys are kept, only the first."""
    return attentions[:1] if attentions and attentions[0].both_sides else attentions


MAX_ROPE_ANGLES = 1 << 26  # of the whole context: the tables take 8 bytes for each


def checked(decoder: Decoder) -> Decoder:
    """Return `decoder`; raises `ModelRefused` where its sizes do not fit each other."""
    for attention in decoder.attentions():
        if attention.heads % attention.kv_heads:
            raise ModelRefused(f"{attention.heads} query heads cannot share {attention.kv_heads} key heads evenly")
    _check_shared_keys(decoder.attentions())
    width = 0 if decoder.layer_inputs is None else decoder.layer_inputs.width * len(decoder.layers)
    if width > MOST_LAYER_INPUTS:
        raise ModelRefused(f"{width} inputs of all layers are not served; served: up to {MOST_LAYER_INPUTS}")
    for experts in set(decoder.mixtures()):
        _check_router(experts.router)
    in_all = sum(experts.router.count for experts in decoder.mixtures())
    if in_all > MOST_EXPERTS_IN_ALL:
        raise ModelRefused(f"{in_all} experts in all layers are not served; served: up to {MOST_EXPERTS_IN_ALL}")
    for rope in decoder.ropes():
        if decoder.context_tokens * rope.turned // 2 > MAX_ROPE_ANGLES:
            raise ModelRefused(
                f"a context of {decoder.context_tokens} tokens needs rope tables that are too large; "
                "set a smaller context_tokens"
            )
    return decoder


MOST_EXPERTS = 1024
MOST_LAYER_INPUTS = 1 << 20
MOST_EXPERTS_IN_ALL = 1 << 15  # each has matrices of its own, which take memory before a file is read


def _check_shared_keys(attentions: Sequence[Attention]) -> None:
    """Refuse keys that are not there yet, or of another size."""
    stored: list[Attention] = []
    for attention in attentions:
        if attention.kv_from is None:
            stored.append(attention)
            continue
        sizes = [(a.kv_heads, a.head_size) for a in stored[attention.kv_from : attention.kv_from + 1]]
        if sizes != [(attention.kv_heads, attention.head_size)]:
            raise ModelRefused(
                "a layer cannot use the keys of another one that does not come before it with heads of its size"
            )


def _check_router(router: ExpertRouter) -> None:
    if not 1 <= router.count <= MOST_EXPERTS:
        raise ModelRefused(f"{router.count} experts are not served; served: 1 to {MOST_EXPERTS}")
    if router.groups < 1 or router.count % router.groups or not 1 <= router.kept_groups <= router.groups:
        raise ModelRefused(
            f"{router.count} experts cannot be in {router.groups} groups of which {router.kept_groups} are kept"
        )
    if not 1 <= router.chosen <= router.count // router.groups * router.kept_groups:
        raise ModelRefused(f"{router.chosen} of {router.count} experts cannot be chosen")


def sequential(attention: Mixer, feed_forward: Mixer, norm: Norm, scale: float = 1.0) -> Layer:
    """Return a layer of two blocks, a norm before each."""
    return Layer(blocks=tuple(Block(mixers=(m,), pre=norm, scale=scale) for m in (attention, feed_forward)))


def parallel(attention: Mixer, feed_forward: Mixer, norm: Norm) -> Layer:
    """Return a layer of one block with two mixers, which see the same normed rows."""
    return Layer(blocks=(Block(mixers=(attention, feed_forward), pre=norm),))


def sandwich(attention: Mixer, feed_forward: Mixer, norm: Norm) -> Layer:
    """Return a layer of two blocks, a norm before and after each."""
    return Layer(blocks=tuple(Block(mixers=(m,), pre=norm, post=norm) for m in (attention, feed_forward)))


def post_normed(attention: Mixer, feed_forward: Mixer, norm: Norm) -> Layer:
    """Return a layer of two blocks, a norm after each and none before."""
    return Layer(blocks=tuple(Block(mixers=(m,), post=norm) for m in (attention, feed_forward)))
