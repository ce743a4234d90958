"""The words that a request names for the sampler, as tokens of its model.

Owns when the work is done: before the answer is planned, in a thread. Does not know how words become tokens
(`tlserve.chat.token_rules`).
"""

from __future__ import annotations

import attrs

from tlserve.api.options import GenerationOptions
from tlserve.api.sampler_fields import DryOptions
from tlserve.chat.token_rules import banned_runs, breakers_of
from tlserve.endpoints.offload import LONG_BYTES, Offload
from tlserve.sampling_params import Dry
from tlserve.text.tokenizer import Tokenizer


@attrs.frozen(kw_only=True)
class WordTokens:
    """DRY with the tokens of its breakers, and the runs of tokens that no answer has."""

    dry: Dry | None = None
    banned: tuple[tuple[int, ...], ...] = ()


NO_WORDS = WordTokens()


def word_tokens(tokenizer: Tokenizer, options: GenerationOptions) -> WordTokens:
    """Return the tokens of the words in `options`; slow for a breaker that is new. Raises ClientError for too many."""
    dry = None if options.dry is None else _dry(tokenizer, options.dry)
    return WordTokens(dry=dry, banned=banned_runs(tokenizer, options.bad_words))


def _dry(tokenizer: Tokenizer, asked: DryOptions) -> Dry:
    return Dry(
        multiplier=asked.multiplier,
        base=asked.base,
        allowed_length=asked.allowed_length,
        last_n=asked.last_n,
        breakers=breakers_of(tokenizer, asked.breakers),
    )


async def find_word_tokens(
    offload: Offload, tokenizer: Tokenizer, options: GenerationOptions, tenant: str
) -> WordTokens:
    """Return the same, without stalling the event loop."""
    return await offload.run(LONG_BYTES, lambda: word_tokens(tokenizer, options), tenant)
