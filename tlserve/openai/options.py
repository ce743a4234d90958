"""What chat and completions have in common: the options of a generation, and the rules that hold between them.

Owns the reading of decoded fields into one frozen type. Refuses to know models: limits that depend on one (context, vocabulary)
are the endpoints'.

Source: the public API reference of chat completions and completions; what it lacks is named and meant as vLLM does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.errors import ClientError
from tlserve.generation import SamplingParams
from tlserve.openai import field_tables
from tlserve.openai.fields import read_fields

_SAMPLING_FIELDS = tuple(field.name for field in attrs.fields(SamplingParams))


@attrs.frozen(kw_only=True)
class GenerationOptions:
    """What chat and completions have in common.

    `sampling` holds only what was given, to be laid over the model's defaults. `max_tokens` None: not given;
    `max_tokens_field` is the name it came under. `logprobs` None: not asked; k >= 0: with the k best beside each. `n`
    answers are made for each prompt.
    """

    sampling: Mapping[str, Any] = attrs.field(factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False

    def sampling_over(self, defaults: SamplingParams) -> SamplingParams:
        """Return `defaults` with what the request gave laid over them."""
        return attrs.evolve(defaults, **self.sampling)


def read_options(given: Mapping[str, Any]) -> tuple[GenerationOptions, tuple[str, ...]]:
    """Return the generation options, and the unknown names inside `stream_options`."""
    stream = given.get("stream", False)
    if "stream_options" in given and not stream:
        raise ClientError("stream_options goes only with stream true; leave it out", param="stream_options")
    stream_options = read_fields(given.get("stream_options", {}), field_tables.STREAM_OPTIONS, where="stream_options.")
    field = "max_completion_tokens" if "max_completion_tokens" in given else "max_tokens"
    options = GenerationOptions(
        sampling=_sampling(given),
        seed=given.get("seed"),
        max_tokens=given.get(field),
        max_tokens_field=field,
        stop=_stops(given.get("stop", ())),
        ignore_eos=given.get("ignore_eos", False),
        logprobs=_logprobs(given),
        n=given.get("n", 1),
        stream=stream,
        include_usage=stream_options.given.get("include_usage", False),
    )
    return options, stream_options.unknown


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {name: given[name] for name in _SAMPLING_FIELDS if name in given}
    if "top_k" in sampling:
        sampling["top_k"] = max(0, sampling["top_k"])
    return sampling


def _stops(stop: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _logprobs(given: Mapping[str, Any]) -> int | None:
    top = given.get("top_logprobs", 0)
    if given.get("logprobs"):
        return int(top)
    if top:
        raise ClientError("top_logprobs goes only with logprobs true; send both, or neither", param="top_logprobs")
    return None
