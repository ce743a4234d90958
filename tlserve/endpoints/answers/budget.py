"""How many tokens an answer may have, and which tokens a request may name.

Owns the arithmetic of prompt, answer and context, the check of token ids, and the bits of a seed. Pure. A limit that does not
fit the context is refused; without a limit chat takes what fits, and completions take 16 tokens, as the public API does.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.api.options import GenerationOptions
from tlserve.errors import ClientError, ContextLengthExceeded
from tlserve.text.tokenizer import Tokenizer, fewest_tokens

COMPLETION_TOKENS = 16
SEED_BITS = 64


def plan_max_tokens(
    options: GenerationOptions,
    *,
    prompt_tokens: int,
    context_tokens: int,
    default: int | None,
    prompt_field: str,
    clips: bool = False,
) -> int:
    """Return the longest answer in tokens, at least 1; `default` None means all that fits. `clips`: so does a larger limit.

    Raises ContextLengthExceeded, with both numbers, if the prompt leaves no space for an answer or the limit does not fit, and
    ClientError if `min_tokens` is larger than the result.
    """
    space = context_tokens - prompt_tokens
    if space < 1:
        raise ContextLengthExceeded.of_prompt(f"it has {prompt_tokens} tokens", context_tokens, param=prompt_field)
    if options.max_tokens is not None and options.max_tokens > space and not clips:
        raise ContextLengthExceeded(
            f"the prompt has {prompt_tokens} tokens and {options.max_tokens_field} asks for {options.max_tokens} more, but "
            f"this model's maximum context length is {context_tokens} tokens; ask for at most {space}",
            param=options.max_tokens_field,
        )
    longest = min(options.max_tokens or (space if default is None else default), space)
    if options.min_tokens > longest:
        raise ClientError(
            f"min_tokens is {options.min_tokens}, but the answer has at most {longest} tokens; send at most that number",
            param="min_tokens",
        )
    return longest


def check_length(tokenizer: Tokenizer, characters: int, context_tokens: int, place: str) -> None:
    """Refuse a text that cannot fit the context, whatever its tokens are, before the time and memory of encoding it."""
    fewest = fewest_tokens(tokenizer, characters)
    if fewest > context_tokens:
        length = f"{place} has {characters} characters, at least {fewest} tokens"
        raise ContextLengthExceeded.of_prompt(length, context_tokens, param=place)


def kept_of_prompt(ids: Sequence[int], options: GenerationOptions, context_tokens: int) -> Sequence[int]:
    """Return the last tokens of a prompt, as many as the request keeps; -1: those that leave space for the answer."""
    if options.keep_last is None:
        return ids
    fits = max(1, context_tokens - (options.max_tokens or 1))
    return ids[-fits:] if options.keep_last < 0 else ids[-options.keep_last :]


def seed_bits(seed: int) -> int:
    """Return a 64-bit seed without sign: negative seeds are taken modulo 2**64, so that each seed is its own."""
    return seed % (1 << SEED_BITS)


def check_ids(ids: Sequence[int], vocabulary_size: int, place: str) -> None:
    """Refuse an id that the vocabulary does not have; raises ClientError naming it."""
    largest = max(ids, default=0)
    if largest >= vocabulary_size:
        raise ClientError(
            f"{place} has the token id {largest}, but the vocabulary has only {vocabulary_size} tokens", param=place
        )
