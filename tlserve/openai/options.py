"""The fields that chat and completions share -> the options of a generation, and the rules between them.

Owns the reading of decoded fields. Does not know models: the endpoints check the limits that depend on one
(context, vocabulary).

Source: the public API reference of chat completions and completions; further fields have the names and meanings of vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tlserve.api.fields import read_fields
from tlserve.api.options import GenerationOptions
from tlserve.api.sampler_fields import read_samplers
from tlserve.errors import ClientError, Refusal
from tlserve.openai import field_tables
from tlserve.openai.answer_formats import read_format

_SAMPLING_FIELDS = (
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
    *("temperature", "top_k", "top_p", "min_p"),
)
_LIMITS = ("max_completion_tokens", "max_tokens")
_OTHER_LIMITS = ("max_new_tokens", "n_predict")
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def read_options(given: Mapping[str, Any]) -> tuple[GenerationOptions, tuple[str, ...]]:
    """Return the generation options, and the names that have no effect, also inside of objects."""
    stream = given.get("stream", False)
    _check_together(given, stream)
    stream_options = read_fields(given.get("stream_options", {}), field_tables.STREAM_OPTIONS, where="stream_options.")
    answer_format, unknown_in_format = read_format(given)
    field = _limit_field(given)
    samplers = read_samplers(given, _sampling(given))
    options = GenerationOptions(
        sampling=samplers.sampling,
        dry=samplers.dry,
        bad_words=tuple(given.get("bad_words", ())),
        allowed_ids=tuple(given.get("allowed_token_ids", ())),
        keep_last=given.get("truncate_prompt_tokens"),
        seed=given.get("seed"),
        max_tokens=given.get(field),
        max_tokens_field=field,
        min_tokens=given.get("min_tokens", 0),
        stop=_stops(given.get("stop", ())),
        stop_token_ids=tuple(given.get("stop_token_ids", ())),
        include_stop=given.get("include_stop_str_in_output", False),
        ignore_eos=given.get("ignore_eos", False),
        logprobs=_logprobs(given),
        prompt_logprobs=given.get("prompt_logprobs"),
        tokens_as_ids=given.get("return_tokens_as_token_ids", False),
        shows_controls=not given.get("skip_special_tokens", True),
        return_token_ids=given.get("return_token_ids", False),
        n=given.get("n", 1),
        stream=stream,
        include_usage=stream_options.given.get("include_usage", False),
        continuous_usage=stream_options.given.get("continuous_usage_stats", False),
        cache_salt=given.get("cache_salt", ""),
        timeout_s=given.get("timeout"),
        format=answer_format,
    )
    return options, (*stream_options.unknown, *unknown_in_format, *samplers.unused)


def _limit_field(given: Mapping[str, Any]) -> str:
    """Return the name under which the limit of tokens was sent; the names of other servers must have the same value."""
    named = [name for name in (*_LIMITS, *_OTHER_LIMITS) if name in given] or ["max_tokens"]
    for name in named[1:]:
        if name in _OTHER_LIMITS and given[name] != given[named[0]]:
            raise ClientError(
                f"{name} and {named[0]} are two names of one limit, but differ; send one of them", param=name
            )
    return named[0]


def _check_together(given: Mapping[str, Any], stream: bool) -> None:
    """Refuse fields that cannot be combined."""
    if "stream_options" in given and not stream:
        raise ClientError("stream_options needs stream true; leave it out", param="stream_options")
    if "prompt_logprobs" in given and stream:
        raise ClientError(
            "prompt_logprobs cannot be combined with stream true; leave one of them out", param="prompt_logprobs"
        )
    best_of, n = given.get("best_of"), given.get("n", 1)
    if best_of is not None and best_of > n:
        raise Refusal(
            f"best_of is {best_of}, and values above n ({n}) are not served; leave it out, and choose among the n answers",
            param="best_of",
        )
    if given.get("truncate_prompt_tokens") == 0:
        raise ClientError(
            "truncate_prompt_tokens is 0; send at least 1, or -1 for as many as fit", param="truncate_prompt_tokens"
        )
    if best_of is not None and best_of < n:
        raise ClientError(f"best_of is {best_of}, but n asks for {n} answers; leave best_of out", param="best_of")


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {name: given[name] for name in _SAMPLING_FIELDS if name in given}
    if "top_k" in sampling:
        sampling["top_k"] = max(0, sampling["top_k"])
    if "logit_bias" in sampling:
        sampling["logit_bias"] = _biases(sampling["logit_bias"])
    if "repeat_penalty" in given:
        sampling["repetition_penalty"] = _repetition_penalty(given)
    return sampling


def _repetition_penalty(given: Mapping[str, Any]) -> float:
    """Return the penalty that was sent as `repeat_penalty`; under both names it must be the same."""
    penalty = float(given["repeat_penalty"] or 1)
    if penalty < 0.01:
        raise ClientError(f"repeat_penalty is {penalty}; send a number from 0.01 to 100, or 0", param="repeat_penalty")
    if given.get("repetition_penalty", penalty) != penalty:
        raise ClientError(
            "repeat_penalty and repetition_penalty are two names of one option, but differ; send one of them",
            param="repeat_penalty",
        )
    return penalty


def _biases(given: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    """Return the biases by id, without those that change nothing."""
    for name in given:
        if not _TOKEN_ID.fullmatch(name):
            raise ClientError(
                f"logit_bias has the key {name[:40]!r}; send token ids in decimal, as returned by /v1/tokenize",
                param="logit_bias",
            )
    return tuple(sorted((int(name), float(bias)) for name, bias in given.items() if bias))


def _stops(stop: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _logprobs(given: Mapping[str, Any]) -> int | None:
    """Return the requested number: completions send it, chat sends true and the number in another field."""
    asked = given.get("logprobs", False)
    if isinstance(asked, int) and not isinstance(asked, bool):
        return asked
    top = given.get("top_logprobs", 0)
    if asked:
        return int(top)
    if top:
        raise ClientError("top_logprobs needs logprobs true; send both, or neither", param="top_logprobs")
    return None
