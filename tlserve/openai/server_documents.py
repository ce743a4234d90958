"""What a server says of itself: of a model in the shapes of llama.cpp and of vLLM, and of the requests that it answers.

Owns the names of the members. Members of the originals that describe what this server does not have are left out: slots that
clients can read, adapters, the web page. Does not know how requests name a model.

Sources: `get_res_props` and `task_params::to_json` of llama.cpp's server; `TokenizerInfo` of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import msgspec

from tlserve import __version__
from tlserve.sampling_params import FILTERS, SamplingParams
from tlserve.telemetry.request_log import RequestFigures

encode = msgspec.json.encode

_ALL = -1
_ENDLESS = -1
_EDITS = ("penalties", "dry")
_NAMES_OF_FILTERS = {"typical_p": "typ_p"}
_SAME_NAMES = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "typical_p", "presence_penalty", "frequency_penalty"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "min_keep"),
)


@attrs.frozen(kw_only=True)
class ModelProps:
    """What `/props` says. `total_slots`: requests that are admitted at once. `has_left`: the next request loads the model.

    `chat_template` is "" for a model without text; `tool_template` is the one for requests with tools, "" if that is the same.
    """

    model_id: str
    sampling: SamplingParams
    context_tokens: int
    total_slots: int
    has_left: bool
    chat_template: str
    tool_template: str
    bos: str
    eos: str


def props_document(props: ModelProps) -> bytes:
    """Return the properties of a model. Its path is its id: where its files are is nobody's business."""
    document = {
        "default_generation_settings": {"params": _settings(props.sampling), "n_ctx": props.context_tokens},
        "total_slots": props.total_slots,
        "model_alias": props.model_id,
        "model_path": props.model_id,
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": False,
        "endpoint_props": False,
        "endpoint_metrics": False,
        "chat_template": props.chat_template,
        "bos_token": props.bos,
        "eos_token": props.eos,
        "build_info": f"tlserve {__version__}",
        "is_sleeping": props.has_left,
    }
    return encode(document | ({"chat_template_tool_use": props.tool_template} if props.tool_template else {}))


def _settings(sampling: SamplingParams) -> dict[str, Any]:
    dry = sampling.dry
    return {
        **{name: getattr(sampling, name) for name in _SAME_NAMES},
        "repeat_penalty": sampling.repetition_penalty,
        "repeat_last_n": _ALL if sampling.penalty_last_n is None else sampling.penalty_last_n,
        "dry_multiplier": 0.0 if dry is None else dry.multiplier,
        "max_tokens": _ENDLESS,
        "n_predict": _ENDLESS,
        "ignore_eos": False,
        "stream": False,
        "samplers": [*_EDITS, *(_NAMES_OF_FILTERS.get(name, name) for name in _filters(sampling))],
    }


def _filters(sampling: SamplingParams) -> tuple[str, ...]:
    return FILTERS if sampling.samplers is None else sampling.samplers


@attrs.frozen(kw_only=True)
class TokenizerFacts:
    """What `/tokenizer_info` says; a token that the vocabulary does not have is "". `special_tokens` is spelling -> id."""

    kind: str
    bos: str
    eos: str
    add_bos: bool
    add_eos: bool
    context_tokens: int
    special_tokens: Mapping[str, int]
    chat_template: str


def tokenizer_document(facts: TokenizerFacts) -> bytes:
    """Return the facts under the names of tokenizer_config.json; a token is null if the vocabulary does not have it."""
    document = {
        "tokenizer_class": facts.kind,
        "bos_token": facts.bos or None,
        "eos_token": facts.eos or None,
        "add_bos_token": facts.add_bos,
        "add_eos_token": facts.add_eos,
        "model_max_length": facts.context_tokens,
        "added_tokens_decoder": {str(token): spelling for spelling, token in facts.special_tokens.items()},
    }
    return encode(document | ({"chat_template": facts.chat_template} if facts.chat_template else {}))


def prompt_document(text: str) -> bytes:
    """Return the text of a chat's prompt."""
    return encode({"prompt": text})


@attrs.frozen(kw_only=True)
class OpenRequestFacts:
    """What `/v1/requests` says of a request; `created` is in seconds since 1970."""

    id: str
    path: str
    state: str
    created: int
    elapsed_ms: float
    figures: RequestFigures


def open_request_document(facts: OpenRequestFacts, *, cancelled: bool = False) -> bytes:
    """Return one request; if it was `cancelled`, as it was then."""
    fields = _request_fields(facts)
    return encode(fields | {"state": "cancelled"} if cancelled else fields)


def open_requests_document(requests: Sequence[OpenRequestFacts]) -> bytes:
    """Return the list of requests."""
    return encode({"object": "list", "data": list(map(_request_fields, requests))})


def _request_fields(facts: OpenRequestFacts) -> dict[str, Any]:
    """Return the members; a count or a time that is not known yet is null. Times are in ms since the request came."""
    figures = facts.figures
    return {
        "id": facts.id,
        "object": "request",
        "path": facts.path,
        "state": facts.state,
        "created": facts.created,
        "model": figures.model,
        "prompt_tokens": figures.prompt_tokens,
        "cached_tokens": figures.cached_tokens,
        "completion_tokens": figures.completion_tokens,
        "prepared_ms": figures.prepared_ms,
        "queue_ms": figures.queue_ms,
        "first_token_ms": figures.first_token_ms,
        "elapsed_ms": facts.elapsed_ms,
    }
