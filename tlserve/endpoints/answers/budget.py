"""How many tokens an answer may have.

Owns the arithmetic of prompt, answer and context, and the seed of a request. Pure.

Source: design section 9: an explicit limit that does not fit is refused; without one, chat takes what fits and completions
take 16.
"""

from __future__ import annotations

from tlserve.errors import ClientError, ContextLengthExceeded
from tlserve.openai.options import GenerationOptions

COMPLETION_TOKENS = 16
SEED_BITS = 64


def plan_max_tokens(
    options: GenerationOptions, *, prompt_tokens: int, context_tokens: int, default: int | None, prompt_field: str
) -> int:
    """Return the longest answer in tokens, at least 1; `default` None means "what fits".

    Raises ContextLengthExceeded, naming both numbers, for a prompt that leaves no room or a limit that does not fit.
    """
    room = context_tokens - prompt_tokens
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {prompt_tokens} tokens, and this model's context of {context_tokens} tokens holds prompt "
            f"and answer together; shorten the prompt by at least {1 - room} tokens",
            param=prompt_field,
        )
    if options.max_tokens is None:
        return room if default is None else min(default, room)
    if options.max_tokens > room:
        raise ContextLengthExceeded(
            f"the prompt has {prompt_tokens} tokens and {options.max_tokens_field} asks for {options.max_tokens} more, and "
            f"this model's context holds {context_tokens}; ask for at most {room}",
            param=options.max_tokens_field,
        )
    return options.max_tokens


def check_min_tokens(options: GenerationOptions, max_tokens: int) -> None:
    """Refuse an answer that would have to be longer than it may be."""
    if options.min_tokens > max_tokens:
        raise ClientError(
            f"min_tokens is {options.min_tokens}, and the answer has at most {max_tokens} tokens; send at most that",
            param="min_tokens",
        )


def seed_bits(seed: int) -> int:
    """Return a 64-bit seed without sign: negative seeds are taken modulo 2**64, so that each seed is its own."""
    return seed % (1 << SEED_BITS)
