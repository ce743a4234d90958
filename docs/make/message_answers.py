"""The JSON schemas of the answers of the Messages API.

Owns what a client can rely on in a message, in the events of its stream, and in an error. The documents themselves are made in
`tlserve.anthropic`; tests check them against these schemas. Source: the public reference of the Messages API.
"""

from __future__ import annotations

from collections.abc import Mapping

from docs.make.json_schemas import COUNT, TEXT, Schema, closed, const, list_of, or_null, ref

_REASONS = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
_ERRORS = [
    *("invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large"),
    *("rate_limit_error", "api_error", "overloaded_error", "timeout_error"),
]
_BLOCK: Schema = {
    "anyOf": [
        closed(type=const("text"), text=TEXT),
        closed(type=const("thinking"), thinking=TEXT, signature=TEXT),
        closed(type=const("tool_use"), id=TEXT, name=TEXT, input={"type": "object"}),
    ]
}
_DELTA: Schema = {
    "anyOf": [
        closed(type=const("text_delta"), text=TEXT),
        closed(type=const("thinking_delta"), thinking=TEXT),
        closed(type=const("input_json_delta"), partial_json=TEXT),
    ]
}
_STOP = {
    "stop_reason": or_null({"type": "string", "enum": _REASONS}),
    "stop_sequence": or_null(TEXT),
}

MESSAGE_ANSWERS: Mapping[str, Schema] = {
    "MessageError": closed(
        type=const("error"),
        error=closed(type={"type": "string", "enum": _ERRORS}, message={"type": "string", "minLength": 1}),
        request_id=TEXT,
    ),
    "MessageUsage": closed(
        input_tokens=COUNT,
        cache_creation_input_tokens=COUNT,
        cache_read_input_tokens=COUNT,
        output_tokens=COUNT,
        output_tokens_details=closed(thinking_tokens=COUNT),
    ),
    "AnswerMessage": closed(
        id=TEXT,
        type=const("message"),
        role=const("assistant"),
        model=TEXT,
        content=list_of(_BLOCK),
        **_STOP,
        usage=ref("MessageUsage"),
    ),
    "MessageEvent": {
        "anyOf": [
            closed(type=const("message_start"), message=ref("AnswerMessage")),
            closed(type=const("content_block_start"), index=COUNT, content_block=_BLOCK),
            closed(type=const("content_block_delta"), index=COUNT, delta=_DELTA),
            closed(type=const("content_block_stop"), index=COUNT),
            closed(type=const("message_delta"), delta=closed(**_STOP), usage=ref("MessageUsage")),
            closed(type=const("message_stop")),
            closed(type=const("ping")),
        ]
    },
    "MessageTokens": closed(input_tokens=COUNT),
}
