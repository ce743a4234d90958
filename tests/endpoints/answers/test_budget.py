"""The token limit of an answer: every combination on a small context."""

from typing import Any

import pytest

from tlserve.api.options import GenerationOptions
from tlserve.endpoints.answers.budget import plan_max_tokens, seed_bits
from tlserve.errors import ContextLengthExceeded

CONTEXT = 20


@pytest.mark.spec("CASE-31", "API-17", "API-106")
@pytest.mark.parametrize("default", [None, 16])
@pytest.mark.parametrize("asked", [None, *range(1, 23)])
def test_an_answer_fits_with_its_prompt_or_is_refused(asked: int | None, default: int | None) -> None:
    for prompt in range(1, 23):
        room = CONTEXT - prompt
        options = GenerationOptions(max_tokens=asked)
        arguments: dict[str, Any] = {
            "prompt_tokens": prompt,
            "context_tokens": CONTEXT,
            "default": default,
            "prompt_field": "prompt",
        }
        if room < 1 or (asked or 0) > room:
            with pytest.raises(ContextLengthExceeded) as refused:
                plan_max_tokens(options, **arguments)
            assert refused.value.param == ("prompt" if room < 1 else "max_tokens")
            assert str(prompt) in refused.value.message
            assert str(CONTEXT) in refused.value.message
        else:
            planned = plan_max_tokens(options, **arguments)
            assert planned == (asked or min(default or room, room))


@pytest.mark.spec("API-17")
def test_the_refusal_names_the_field_that_the_request_used() -> None:
    options = GenerationOptions(max_tokens=99, max_tokens_field="max_completion_tokens")
    with pytest.raises(ContextLengthExceeded) as refused:
        plan_max_tokens(options, prompt_tokens=1, context_tokens=20, default=None, prompt_field="messages")
    assert refused.value.param == "max_completion_tokens"


def test_signed_seeds_become_different_unsigned_ones() -> None:
    seeds = [-(2**63), -1, 0, 1, 2**63 - 1]
    assert len({seed_bits(seed) for seed in seeds}) == len(seeds)
    assert all(0 <= seed_bits(seed) < 2**64 for seed in seeds)
