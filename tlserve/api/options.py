"""The options of a generation, however a request spells them.

Owns the one frozen type. Does not know bodies: each family of endpoints reads its own fields into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.api.sampler_fields import DryOptions
from tlserve.chat.grammars.formats import AnswerFormat
from tlserve.sampling_params import SamplingParams


@attrs.frozen(kw_only=True)
class GenerationOptions:
    """The options of one generation.

    `sampling` holds only the values that were given; they override the model's defaults. `max_tokens` None: not given;
    `max_tokens_field` is the name of its field. `logprobs` None: not requested; k >= 0: also the k likeliest tokens at each
    place; the same for `prompt_logprobs`. `tokens_as_ids`: their tokens are shown as ids. `shows_controls`: the text has the
    spelling of control tokens. Each prompt gets `n` answers. `timeout_s` counts from the request's arrival. `format`:
    the form that the content must have. `dry` and `bad_words` name words, which are not tokens yet; `allowed_ids` () allows all.
    Of a prompt, the last `keep_last` tokens are kept; -1: as many as fit.
    """

    sampling: Mapping[str, Any] = attrs.field(factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    tokens_as_ids: bool = False
    shows_controls: bool = False
    return_token_ids: bool = False
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    cache_salt: str = ""
    timeout_s: float | None = None
    format: AnswerFormat | None = None
    dry: DryOptions | None = None
    bad_words: tuple[str, ...] = ()
    allowed_ids: tuple[int, ...] = ()
    keep_last: int | None = None

    @property
    def names_words(self) -> bool:
        """Return whether words must become tokens before the answer can be planned."""
        return self.dry is not None or bool(self.bad_words)

    def sampling_over(self, defaults: SamplingParams) -> SamplingParams:
        """Return `defaults`, with the values of the request in their places."""
        return attrs.evolve(defaults, **self.sampling)
