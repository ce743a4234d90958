"""The JSON schemas of every answer, and of the error document.

Owns what a client can rely on in an answer: the schema of each object lists all its members, and all of them are present. The
documents themselves are made in `tlserve.openai.documents` and `tlserve.openai.chunks`; tests check them against these schemas.

Source: the public API reference; JSON Schema 2020-12.
"""

from __future__ import annotations

from collections.abc import Mapping

from docs.make.json_schemas import (
    COUNT,
    FLAG,
    NULL,
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
from docs.make.message_answers import MESSAGE_ANSWERS
from docs.make.ollama_answers import OLLAMA_ANSWERS
from docs.make.response_answers import RESPONSE_ANSWERS
from docs.make.server_answers import SERVER_ANSWERS
from tlserve.api.errors import AUTHENTICATION, INVALID_REQUEST, RATE_LIMIT, SERVER
from tlserve.generation import Finish, ModelState
from tlserve.openai.documents import TOOL_CALLS


def _head(kind: str) -> dict[str, Schema]:
    return {"id": TEXT, "object": const(kind), "created": COUNT, "model": TEXT, "system_fingerprint": TEXT}


FINISH: Schema = {"type": "string", "enum": [finish.value for finish in Finish]}
CHAT_FINISH: Schema = {"type": "string", "enum": [*FINISH["enum"], TOOL_CALLS]}
_REASONING: dict[str, Schema] = {"reasoning_content": TEXT, "reasoning": TEXT}
_CALL: Schema = closed(id=TEXT, type=const("function"), function=closed(name=TEXT, arguments=TEXT))
_CALL_PIECE: Schema = with_optional(
    closed(index=COUNT, function=with_optional(closed(arguments=TEXT), name=TEXT)), id=TEXT, type=const("function")
)
_READ: Schema = closed(prompt_tokens=COUNT, total_tokens=COUNT)
_LISTED: dict[str, Schema] = {"id": TEXT, "object": const("list"), "created": COUNT, "model": TEXT}
_TOKEN_IDS: dict[str, Schema] = {"token_ids": list_of(COUNT)}
_PROMPT_IDS: dict[str, Schema] = {"prompt_token_ids": list_of(COUNT)}
_PROMPT_LOGPROBS: dict[str, Schema] = {"prompt_logprobs": ref("PromptLogprobs")}
_CAN: Schema = {"anyOf": [{"const": True}, {"type": "string", "minLength": 1}]}
_TOKEN = {"token": TEXT, "logprob": NUMBER, "bytes": list_of({"type": "integer", "minimum": 0, "maximum": 255})}

ANSWERS: Mapping[str, Schema] = {
    "Error": closed(
        error=closed(
            message={"type": "string", "minLength": 1},
            type={"type": "string", "enum": [INVALID_REQUEST, AUTHENTICATION, RATE_LIMIT, SERVER]},
            param=or_null(TEXT),
            code=or_null(TEXT),
        )
    ),
    "Usage": closed(
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        total_tokens=COUNT,
        prompt_tokens_details=closed(cached_tokens=COUNT),
        completion_tokens_details=closed(reasoning_tokens=COUNT),
    ),
    "Logprobs": closed(
        content=list_of(closed(**_TOKEN, top_logprobs=list_of(closed(**_TOKEN)))), refusal=or_null(TEXT)
    ),
    "CompletionLogprobs": closed(
        tokens=list_of(TEXT),
        token_logprobs=list_of(or_null(NUMBER)),
        top_logprobs=list_of(or_null(map_of(NUMBER))),
        text_offset=list_of(COUNT),
    ),
    "PromptLogprobs": list_of(
        or_null(map_of(closed(logprob=NUMBER, rank=or_null(COUNT), decoded_token=TEXT))),
    ),
    "ChatCompletion": with_optional(
        closed(
            **_head("chat.completion"),
            choices=list_of(
                with_optional(
                    closed(
                        index=COUNT,
                        message=with_optional(
                            closed(role=const("assistant"), content=or_null(TEXT), refusal=NULL),
                            **_REASONING,
                            tool_calls=list_of(_CALL),
                        ),
                        logprobs=or_null(ref("Logprobs")),
                        finish_reason=CHAT_FINISH,
                    ),
                    **_TOKEN_IDS,
                )
            ),
            usage=ref("Usage"),
        ),
        **_PROMPT_IDS,
        **_PROMPT_LOGPROBS,
    ),
    "Completion": closed(
        **_head("text_completion"),
        choices=list_of(
            with_optional(
                closed(index=COUNT, text=TEXT, logprobs=or_null(ref("CompletionLogprobs")), finish_reason=FINISH),
                **_TOKEN_IDS,
                **_PROMPT_IDS,
                **_PROMPT_LOGPROBS,
            )
        ),
        usage=ref("Usage"),
    ),
    "ChatCompletionChunk": with_optional(
        closed(
            **_head("chat.completion.chunk"),
            choices=list_of(
                with_optional(
                    closed(
                        index=COUNT,
                        delta=with_optional(
                            closed(),
                            role=const("assistant"),
                            content=TEXT,
                            **_REASONING,
                            tool_calls=list_of(_CALL_PIECE),
                        ),
                        logprobs=or_null(ref("Logprobs")),
                        finish_reason=or_null(CHAT_FINISH),
                    ),
                    **_TOKEN_IDS,
                )
            ),
        ),
        usage=or_null(ref("Usage")),
        **_PROMPT_IDS,
    ),
    "CompletionChunk": with_optional(
        closed(
            **_head("text_completion"),
            choices=list_of(
                with_optional(
                    closed(
                        index=COUNT,
                        text=TEXT,
                        logprobs=or_null(ref("CompletionLogprobs")),
                        finish_reason=or_null(FINISH),
                    ),
                    **_TOKEN_IDS,
                    **_PROMPT_IDS,
                )
            ),
        ),
        usage=or_null(ref("Usage")),
    ),
    "Embeddings": closed(
        object=const("list"),
        data=list_of(closed(object=const("embedding"), index=COUNT, embedding={"anyOf": [list_of(NUMBER), TEXT]})),
        model=TEXT,
        usage=closed(prompt_tokens=COUNT, total_tokens=COUNT),
    ),
    "Rerank": closed(
        id=TEXT,
        model=TEXT,
        results=list_of(with_optional(closed(index=COUNT, relevance_score=NUMBER), document=closed(text=TEXT))),
        usage=_READ,
        meta=closed(api_version=closed(version=const("2")), tokens=closed(input_tokens=COUNT)),
    ),
    "AnyRerank": {"anyOf": [ref("Rerank"), list_of(with_optional(closed(index=COUNT, score=NUMBER), text=TEXT))]},
    "Scores": closed(**_LISTED, data=list_of(closed(index=COUNT, object=const("score"), score=NUMBER)), usage=_READ),
    "Classes": closed(
        **_LISTED,
        data=list_of(closed(index=COUNT, label=TEXT, probs=list_of(NUMBER), num_classes=COUNT)),
        usage=_READ,
    ),
    "Vectors": list_of(list_of(NUMBER)),
    "Tokens": with_optional(closed(tokens=list_of(COUNT), count=COUNT, max_model_len=COUNT), token_strs=list_of(TEXT)),
    "Text": closed(text=TEXT),
    "TextOfOthers": closed(prompt=TEXT, content=TEXT),
    "InputTokens": closed(object=const("response.input_tokens"), input_tokens=COUNT),
    "Model": closed(
        id=TEXT,
        object=const("model"),
        created=COUNT,
        root=TEXT,
        n_ctx=COUNT,
        max_model_len=COUNT,
        loaded=FLAG,
        state={"type": "string", "enum": [state.value for state in ModelState]},
        capabilities=ref("Capabilities"),
        owned_by=TEXT,
    ),
    "Capabilities": closed(
        descriptor_version=COUNT,
        backend=TEXT,
        workload=closed(causal_generation=_CAN, embedding=_CAN, speech_to_text=_CAN),
        modalities=closed(image_encode=_CAN, gemma_audio_encode=_CAN, whisper_transcribe=_CAN, whisper_translate=_CAN),
        dialect=closed(enable_thinking=_CAN, reasoning_effort=_CAN, reasoning_effort_levels=_CAN),
    ),
    "Models": closed(object=const("list"), data=list_of(ref("Model"))),
    **SERVER_ANSWERS,
    **MESSAGE_ANSWERS,
    **RESPONSE_ANSWERS,
    **OLLAMA_ANSWERS,
}
