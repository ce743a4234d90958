"""The JSON schemas of what the server says of itself and of its models.

Owns what a client can rely on. The documents themselves are made in `tlserve.endpoints.routes.server`; tests check them against
these schemas. Source: the answers of llama.cpp's server and of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping

from docs.make.json_schemas import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Schema,
    closed,
    const,
    list_of,
    map_of,
    or_null,
    ref,
    with_optional,
)
from tlserve.endpoints.open_requests import RequestState

_ANY_COUNT: Schema = {"type": "integer", "minimum": -1}
_NUMBERS = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_p", "min_p", "top_n_sigma", "typical_p"),
    *("xtc_probability", "xtc_threshold", "presence_penalty", "frequency_penalty", "repeat_penalty"),
    *("mirostat_tau", "mirostat_eta", "dry_multiplier"),
)
_SETTINGS: Schema = closed(
    **dict.fromkeys(_NUMBERS, NUMBER),
    **dict.fromkeys(("top_k", "mirostat", "min_keep"), COUNT),
    **dict.fromkeys(("repeat_last_n", "max_tokens", "n_predict"), _ANY_COUNT),
    ignore_eos=FLAG,
    stream=FLAG,
    samplers=list_of(TEXT),
)
_REQUEST: Schema = closed(
    id=TEXT,
    object=const("request"),
    path=TEXT,
    state={"type": "string", "enum": [*(state.value for state in RequestState), "cancelled"]},
    created=COUNT,
    model=or_null(TEXT),
    **dict.fromkeys(("prompt_tokens", "cached_tokens", "completion_tokens"), or_null(COUNT)),
    **dict.fromkeys(("prepared_ms", "queue_ms", "first_token_ms"), or_null(NUMBER)),
    elapsed_ms=NUMBER,
)
_PIECE: dict[str, Schema] = {
    "index": COUNT,
    "content": TEXT,
    "tokens": list_of(COUNT),
    "stop": FLAG,
    "tokens_predicted": COUNT,
    "tokens_evaluated": COUNT,
}
_SPEEDS: dict[str, Schema] = {
    f"{part}_{name}": COUNT if name == "n" else NUMBER
    for part in ("prompt", "predicted")
    for name in ("n", "ms", "per_token_ms", "per_second")
}
_INFILL: Schema = closed(
    **_PIECE,
    model=TEXT,
    has_new_line=FLAG,
    truncated=FLAG,
    stop_type={"type": "string", "enum": ["eos", "word", "limit"]},
    stopping_word=TEXT,
    tokens_cached=COUNT,
    timings=closed(cache_n=COUNT, **_SPEEDS),
)

SERVER_ANSWERS: Mapping[str, Schema] = {
    "Ready": closed(status=const("ok")),
    "Version": closed(version=TEXT),
    "Load": closed(server_load=COUNT),
    "Health": closed(status=const("ok"), kernels={"type": "object", "additionalProperties": TEXT}),
    "Props": with_optional(
        closed(
            default_generation_settings=closed(params=_SETTINGS, n_ctx=COUNT),
            total_slots=COUNT,
            model_alias=TEXT,
            model_path=TEXT,
            modalities=closed(vision=FLAG, video=FLAG, audio=FLAG),
            endpoint_slots=FLAG,
            endpoint_props=FLAG,
            endpoint_metrics=FLAG,
            chat_template=TEXT,
            bos_token=TEXT,
            eos_token=TEXT,
            build_info=TEXT,
            is_sleeping=FLAG,
        ),
        chat_template_tool_use=TEXT,
    ),
    "Prompt": closed(prompt=TEXT),
    "Infill": _INFILL,
    "InfillPiece": {"anyOf": [closed(**_PIECE), ref("Infill")]},
    "OpenRequest": _REQUEST,
    "OpenRequests": closed(object=const("list"), data=list_of(ref("OpenRequest"))),
    "TokenizerInfo": with_optional(
        closed(
            tokenizer_class=TEXT,
            bos_token=or_null(TEXT),
            eos_token=or_null(TEXT),
            add_bos_token=FLAG,
            add_eos_token=FLAG,
            model_max_length=COUNT,
            added_tokens_decoder=map_of(TEXT),
        ),
        chat_template=TEXT,
    ),
}
