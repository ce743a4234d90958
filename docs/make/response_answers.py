"""The JSON schemas of the answers of the Responses API.

Owns what a client can rely on in a response, in its items, and in the events of its stream. The documents themselves are made in
`tlserve.responses`; tests check them against these schemas. Source: the public reference of the Responses API.
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

_ANY_OBJECT: Schema = {"type": "object"}
_STATUS: Schema = {"type": "string", "enum": ["in_progress", "completed", "incomplete"]}
_BYTES = list_of({"type": "integer", "minimum": 0, "maximum": 255})
_TOKEN = {"token": TEXT, "logprob": NUMBER, "bytes": _BYTES}
_LOGPROBS = list_of(closed(**_TOKEN, top_logprobs=list_of(closed(**_TOKEN))))
_PART = closed(type=const("output_text"), text=TEXT, annotations=list_of(_ANY_OBJECT), logprobs=_LOGPROBS)
_THOUGHT = closed(type=const("reasoning_text"), text=TEXT)
_CALL = {"id": TEXT, "status": _STATUS, "call_id": TEXT, "name": TEXT}
_ITEM: Schema = {
    "anyOf": [
        closed(id=TEXT, type=const("message"), status=_STATUS, role=const("assistant"), content=list_of(_PART)),
        closed(
            id=TEXT, type=const("reasoning"), status=_STATUS, summary=list_of(_ANY_OBJECT), content=list_of(_THOUGHT)
        ),
        closed(type=const("function_call"), **_CALL, arguments=TEXT),
        closed(type=const("custom_tool_call"), **_CALL, input=TEXT),
    ]
}
_PLACE = {"item_id": TEXT, "output_index": COUNT}
_IN_PART = {**_PLACE, "content_index": COUNT}


def _event(kind: str, **members: Schema) -> Schema:
    return closed(type=const(f"response.{kind}"), sequence_number=COUNT, **members)


_WHOLE = ("created", "queued", "in_progress", "completed", "incomplete", "failed")
_ANY_PART: Schema = {"anyOf": [_PART, _THOUGHT]}

_IN_TEXT = list_of(closed(type=const("input_text"), text=TEXT))
_OUTPUT = {"id": TEXT, "status": _STATUS, "call_id": TEXT, "output": TEXT}
_INPUT_ITEM: Schema = {
    "anyOf": [
        ref("ResponseItem"),
        closed(
            id=TEXT,
            type=const("message"),
            status=_STATUS,
            role={"type": "string", "enum": ["user", "system", "developer"]},
            content=_IN_TEXT,
        ),
        closed(type=const("function_call_output"), **_OUTPUT),
        closed(type=const("custom_tool_call_output"), **_OUTPUT),
    ]
}

RESPONSE_ANSWERS: Mapping[str, Schema] = {
    "ResponseUsage": closed(
        input_tokens=COUNT,
        input_tokens_details=closed(cached_tokens=COUNT, cache_write_tokens=COUNT),
        output_tokens=COUNT,
        output_tokens_details=closed(reasoning_tokens=COUNT),
        total_tokens=COUNT,
    ),
    "ResponseItem": _ITEM,
    "Response": with_optional(
        closed(
            id=TEXT,
            object=const("response"),
            created_at=COUNT,
            completed_at=or_null(COUNT),
            model=TEXT,
            status={
                "type": "string",
                "enum": ["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"],
            },
            error=or_null(closed(code=TEXT, message=TEXT)),
            incomplete_details=or_null(closed(reason=const("max_output_tokens"))),
            output=list_of(ref("ResponseItem")),
            usage=or_null(ref("ResponseUsage")),
            store=FLAG,
            background=FLAG,
            instructions=or_null(TEXT),
            previous_response_id=or_null(TEXT),
            max_output_tokens=or_null(COUNT),
            max_tool_calls=or_null(COUNT),
            metadata=map_of(TEXT),
            parallel_tool_calls=FLAG,
            reasoning=closed(effort=or_null(TEXT), summary=or_null(TEXT)),
            service_tier=const("default"),
            temperature=NUMBER,
            top_p=NUMBER,
            text=closed(format=_ANY_OBJECT),
            tool_choice={"anyOf": [TEXT, _ANY_OBJECT]},
            tools=list_of(_ANY_OBJECT),
            top_logprobs=COUNT,
            truncation={"type": "string", "enum": ["auto", "disabled"]},
        ),
        user=TEXT,
        safety_identifier=TEXT,
        prompt_cache_key=TEXT,
        prompt_cache_retention=TEXT,
    ),
    "ResponseEvent": {
        "anyOf": [
            *(_event(kind, response=ref("Response")) for kind in _WHOLE),
            _event("output_item.added", output_index=COUNT, item=ref("ResponseItem")),
            _event("output_item.done", output_index=COUNT, item=ref("ResponseItem")),
            _event("content_part.added", **_IN_PART, part=_ANY_PART),
            _event("content_part.done", **_IN_PART, part=_ANY_PART),
            _event("output_text.delta", **_IN_PART, delta=TEXT, logprobs=_LOGPROBS),
            _event("output_text.done", **_IN_PART, text=TEXT, logprobs=_LOGPROBS),
            _event("reasoning_text.delta", **_IN_PART, delta=TEXT),
            _event("reasoning_text.done", **_IN_PART, text=TEXT),
            _event("function_call_arguments.delta", **_PLACE, delta=TEXT),
            _event("function_call_arguments.done", **_PLACE, name=TEXT, arguments=TEXT),
            _event("custom_tool_call_input.delta", **_PLACE, delta=TEXT),
            _event("custom_tool_call_input.done", **_PLACE, input=TEXT),
            closed(type=const("error"), sequence_number=COUNT, code=or_null(TEXT), message=TEXT, param=or_null(TEXT)),
        ]
    },
    "ResponseItems": closed(
        object=const("list"),
        data=list_of(_INPUT_ITEM),
        has_more=FLAG,
        first_id=or_null(TEXT),
        last_id=or_null(TEXT),
    ),
    "ResponseDeleted": closed(id=TEXT, object=const("response"), deleted=FLAG),
    "ResponseTokens": closed(object=const("response.input_tokens"), input_tokens=COUNT),
}
