"""The rotation of heads in a Hugging Face config, and the context length that follows from it.

Reads `rope_theta`, `rope_scaling` and `rope_parameters`, the old and the new way to write the same. A number that a kind of
scaling does not know is refused by name, because ignoring it would change every answer. Does not know what a kind computes
(`rope_scaling`). Source: `modeling_rope_utils` of transformers; where versions differ, 5.24.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import attrs
import numpy as np

from tlserve.model.architectures.facts import MAX_CONTEXT_TOKENS
from tlserve.model.decoder.record import Rope
from tlserve.model.decoder.rope_scaling import (
    DynamicScaling,
    Llama3Scaling,
    LongScaling,
    RopeScaling,
    YarnScaling,
    scaled_rope,
    yarn_amplitude,
)
from tlserve.model.fields import LEAST, MOST, Fields


@attrs.frozen(kw_only=True)
class HfRope:
    """`trained`: the context to serve by default, `longest`: the longest that can be requested. `share`: of a head that turns.

    `proportional`: the pairs are those of the whole head, of which the first share turns.
    """

    base: float
    linear_factor: float = 1.0
    scaling: RopeScaling | None = None
    trained: int
    longest: int
    share: float = 1.0
    alpha: float = 1.0
    proportional: bool = False

    def record(self, head_size: int, context_tokens: int) -> Rope:
        """Return the rope of heads of `head_size` for the served context."""
        if self.proportional:
            return _proportional_rope(self, head_size, context_tokens)
        turned = int(head_size * self.share)
        base = self.base if self.alpha == 1.0 else self.base * self.alpha ** (turned / max(turned - 2, 1))
        return scaled_rope(base, turned, context_tokens, self.scaling, self.linear_factor)


def _proportional_rope(rope: HfRope, head_size: int, context_tokens: int) -> Rope:
    divisors = np.full(head_size // 2, np.inf)
    divisors[: int(rope.share * head_size // 2)] = 1.0
    return scaled_rope(rope.base, head_size, context_tokens, None, rope.linear_factor, divisors)


@attrs.frozen
class _Kind:
    """One `rope_type`: the numbers that it has, and its reader. `read` takes (its numbers, base, max_position_embeddings)."""

    knows: str
    read: Callable[[Fields, float, int], HfRope]


def read_rope(config: Fields, default_base: float, partial: float | None = None, also: tuple[str, ...] = ()) -> HfRope:
    """Return what `config` says; raises `ModelRefused`.

    `partial`: see `HfForm`. `also`: further fields that `rope_parameters` can have, or a kind that few architectures have.
    """
    context = config.integer("max_position_embeddings", 1, MAX_CONTEXT_TOKENS)
    numbers = rope_numbers(config)
    base = numbers.positive("rope_theta", config.positive("rope_theta", default_base))
    name = numbers.get("rope_type") or numbers.get("type") or "default"
    kinds = [kind for kind in _KINDS if kind != _PROPORTIONAL or _PROPORTIONAL in also]
    if not isinstance(name, str) or name not in kinds:
        raise numbers.refusal("rope_type", f"{name!r:.60} is not served; served: {', '.join(kinds)}")
    for key in numbers.values:
        if key not in _COMMON and key not in _KINDS[name].knows.split() and key not in also:
            raise numbers.refusal(key, f"{numbers.get(key)!r:.60} is not served for the kind {name}")
    if partial is None and name == _PROPORTIONAL:
        return _KINDS[name].read(numbers, base, context)
    if partial is None:
        numbers.refuse_unless("partial_rotary_factor", (1, 1.0), "whole heads rotated")
        return _KINDS[name].read(numbers, base, context)
    share = numbers.positive("partial_rotary_factor", config.positive("partial_rotary_factor", partial))
    if share > 1:
        raise numbers.refusal("partial_rotary_factor", f"must be at most 1, not {share:g}")
    return attrs.evolve(_KINDS[name].read(numbers, base, context), share=share)


def rope_numbers(config: Fields) -> Fields:
    """Return the object with the numbers of the scaling, empty where there is none."""
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    value = config.get(name)
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise config.refusal(name, "must be an object")
    values = dict(value)
    if config.has("original_max_position_embeddings") and "original_max_position_embeddings" in _knows(values):
        values["original_max_position_embeddings"] = config.get("original_max_position_embeddings")
    return Fields(values, f"{config.prefix}{name}.")


def _knows(values: Mapping[str, object]) -> list[str]:
    kind = _KINDS.get(str(values.get("rope_type") or values.get("type")))
    return kind.knows.split() if kind else []


def _default(_: Fields, base: float, context: int) -> HfRope:
    return HfRope(base=base, trained=context, longest=context)


def _linear(numbers: Fields, base: float, context: int) -> HfRope:
    factor = numbers.positive("factor")
    return HfRope(base=base, linear_factor=factor, trained=context, longest=_stretched(context, factor))


def _proportional(numbers: Fields, base: float, context: int) -> HfRope:
    share, factor = numbers.positive("partial_rotary_factor", 1.0), numbers.positive("factor", 1.0)
    if share > 1:
        raise numbers.refusal("partial_rotary_factor", f"must be at most 1, not {share:g}")
    longest = _stretched(context, factor)
    return HfRope(base=base, linear_factor=factor, trained=context, longest=longest, share=share, proportional=True)


def _dynamic(numbers: Fields, base: float, context: int) -> HfRope:
    if numbers.has("alpha"):  # read_rope refuses it for architectures that do not have it
        return HfRope(base=base, alpha=numbers.positive("alpha"), trained=context, longest=context)
    numbers.refuse_unless("original_max_position_embeddings", (context,), f"max_position_embeddings ({context})")
    factor = numbers.positive("factor")
    scaling = DynamicScaling(factor=factor, original=context)
    return HfRope(base=base, scaling=scaling, trained=context, longest=_stretched(context, factor))


def _llama3(numbers: Fields, base: float, context: int) -> HfRope:
    low, high = numbers.positive("low_freq_factor"), numbers.positive("high_freq_factor")
    if low >= high:
        raise numbers.refusal("low_freq_factor", f"must be less than high_freq_factor {high:g}, not {low:g}")
    scaling = Llama3Scaling(
        factor=numbers.positive("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original=_original(numbers, context),
    )
    return HfRope(base=base, scaling=scaling, trained=context, longest=context)


def _longrope(numbers: Fields, base: float, context: int) -> HfRope:
    original = _original(numbers, context)
    factor = numbers.positive("factor", context / original)
    natural = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    scaling = LongScaling(
        original=original,
        short=_factors(numbers, "short_factor"),
        long=_factors(numbers, "long_factor"),
        amplitude=numbers.positive("attention_factor", natural),
    )
    return HfRope(base=base, scaling=scaling, trained=context, longest=context)


def _factors(numbers: Fields, name: str) -> tuple[float, ...]:
    given = numbers.get(name)
    if not isinstance(given, list) or not all(type(x) in (int, float) and LEAST <= x <= MOST for x in given):
        raise numbers.refusal(name, "must be a list of numbers above 0, one for each pair of a head that turns")
    return tuple(float(x) for x in given)


def _yarn(numbers: Fields, base: float, context: int) -> HfRope:
    original = _original(numbers, context)
    factor = numbers.positive("factor", context / original)
    scaling = YarnScaling(
        factor=factor,
        original=original,
        beta_fast=numbers.positive("beta_fast", 32.0),
        beta_slow=numbers.positive("beta_slow", 1.0),
        truncate=numbers.flag("truncate", default=True),
        amplitude=_yarn_amplitude(numbers, factor),
    )
    longest = max(context, _stretched(original, factor))
    return HfRope(base=base, scaling=scaling, trained=longest, longest=longest)


def _yarn_amplitude(numbers: Fields, factor: float) -> float:
    """Return the given amplitude, else the one that follows from the factor and DeepSeek's two weights."""
    if numbers.has("attention_factor"):
        return numbers.positive("attention_factor")
    if numbers.has("mscale") and numbers.has("mscale_all_dim"):
        over, under = numbers.positive("mscale"), numbers.positive("mscale_all_dim")
        return yarn_amplitude(factor, over) / yarn_amplitude(factor, under)
    return yarn_amplitude(factor)


def _original(numbers: Fields, context: int) -> int:
    return numbers.integer("original_max_position_embeddings", 1, MAX_CONTEXT_TOKENS, default=context)


def _stretched(tokens: int, factor: float) -> int:
    """Return `tokens` times `factor`, within what can be served."""
    return max(1, min(int(tokens * min(factor, float(MAX_CONTEXT_TOKENS))), MAX_CONTEXT_TOKENS))


_PROPORTIONAL = "proportional"
_COMMON = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
_ORIGINAL = "original_max_position_embeddings"
_KINDS = {
    "default": _Kind("", _default),
    "linear": _Kind("factor", _linear),
    _PROPORTIONAL: _Kind("factor", _proportional),
    "dynamic": _Kind(f"factor {_ORIGINAL}", _dynamic),
    "longrope": _Kind(f"factor short_factor long_factor attention_factor {_ORIGINAL}", _longrope),
    "llama3": _Kind(f"factor low_freq_factor high_freq_factor {_ORIGINAL}", _llama3),
    "yarn": _Kind(
        f"factor {_ORIGINAL} attention_factor beta_fast beta_slow mscale mscale_all_dim truncate finetuned", _yarn
    ),
}
