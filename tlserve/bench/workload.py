"""The requests of a bench: prompts of a given length that no cache has seen, and the request bodies around them.

Owns the words and the randomness. Knows nothing of connections.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import attrs

WORDS = (  # noqa: SIM905 - one string reads better than fifty
    "amber anchor basket beacon bridge candle canyon cedar copper cotton dancer desert engine falcon feather forest "
    "garden hammer harbor island jacket kettle ladder lantern marble meadow mirror needle orange paper pepper pillow "
    "planet rabbit ribbon river saddle signal silver spider summer tunnel velvet violet wagon walnut window winter"
).split()

_SHARED_SEED = 0


@attrs.frozen(kw_only=True)
class Workload:
    """The requests of one bench: greedy answers of `output_tokens` tokens, also past an end token.

    A prompt has `prompt_words` random words, or exactly `prompt_tokens` tokens if that is not 0. With `shared_words` every
    request begins with the same system prompt of this many words, which a prefix cache can keep.
    """

    prompt_words: int = 64
    prompt_tokens: int = 0
    shared_words: int = 0
    output_tokens: int = 64

    def prompts(self, seed: int, count: int) -> list[str]:
        """Return `count` prompts of random words, the same ones for the same `seed`."""
        source = random.Random(seed)
        return [random_words(source, self.prompt_words) for _ in range(count)]

    def body(self, model: str, prompt: str) -> bytes:
        """Return the body of a chat request."""
        fields = {
            "model": model,
            "messages": [*self._shared(), {"role": "user", "content": prompt}],
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(fields).encode()

    def _shared(self) -> Sequence[dict[str, str]]:
        if not self.shared_words:
            return ()
        return ({"role": "system", "content": random_words(random.Random(_SHARED_SEED), self.shared_words)},)


def random_words(source: random.Random, count: int) -> str:
    """Return `count` words of the list, chosen with `source`."""
    return " ".join(source.choices(WORDS, k=count))
