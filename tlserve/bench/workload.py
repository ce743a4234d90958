"""What a bench sends: prompts of a given length that no cache has seen, and the request bodies around them.

Owns the words and the randomness. Refuses to know connections.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import attrs

WORDS = (  # noqa: SIM905 - one string reads better than fifty
    "amber anchor basket beacon bridge candle canyon cedar copper cotton dancer desert engine falcon feather forest "
    "garden hammer harbor island jacket kettle ladder lantern marble meadow mirror needle orange paper pepper pillow "
    "planet rabbit ribbon river saddle signal silver spider summer tunnel velvet violet wagon walnut window winter"
).split()


@attrs.frozen(kw_only=True)
class Workload:
    """One kind of request: `prompt_words` random words in, `output_tokens` tokens out, greedy, past any end token."""

    model: str
    prompt_words: int
    output_tokens: int

    def bodies(self, seed: int) -> Iterator[bytes]:
        """Yield request bodies for ever, the same ones for the same `seed`."""
        source = random.Random(seed)
        while True:
            yield self._body(" ".join(source.choices(WORDS, k=self.prompt_words)))

    def _body(self, prompt: str) -> bytes:
        return json.dumps(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": self.output_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
