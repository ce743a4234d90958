"""The JSON schemas of the answers of Ollama's API.

Owns what a client can rely on. The documents themselves are made in `tlserve.ollama`; tests check them against these schemas.
Source: Ollama's page of its API.
"""

from __future__ import annotations

from collections.abc import Mapping

from docs.make.json_schemas import COUNT, FLAG, NUMBER, TEXT, Schema, closed, const, list_of, with_optional

_CALL = closed(id=TEXT, function=closed(index=COUNT, name=TEXT, arguments={"type": "object"}))
_MESSAGE = with_optional(closed(role=const("assistant"), content=TEXT), thinking=TEXT, tool_calls=list_of(_CALL))
_COUNTS = (
    *("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration"),
    *("eval_count", "eval_duration"),
)
_ENDING: dict[str, Schema] = {
    "done_reason": {"type": "string", "enum": ["stop", "length", "load"]},
    **dict.fromkeys(_COUNTS, COUNT),
}
_DETAILS = closed(
    parent_model=TEXT, format=TEXT, family=TEXT, families=list_of(TEXT), parameter_size=TEXT, quantization_level=TEXT
)
_MODEL = {"name": TEXT, "model": TEXT, "modified_at": TEXT, "size": COUNT, "digest": TEXT, "details": _DETAILS}

OLLAMA_ANSWERS: Mapping[str, Schema] = {
    "OllamaError": closed(error={"type": "string", "minLength": 1}),
    "OllamaChat": with_optional(closed(model=TEXT, created_at=TEXT, message=_MESSAGE, done=FLAG), **_ENDING),
    "OllamaText": with_optional(
        closed(model=TEXT, created_at=TEXT, response=TEXT, done=FLAG), thinking=TEXT, **_ENDING
    ),
    "OllamaVectors": closed(
        model=TEXT,
        embeddings=list_of(list_of(NUMBER)),
        total_duration=COUNT,
        load_duration=COUNT,
        prompt_eval_count=COUNT,
    ),
    "OllamaVector": closed(embedding=list_of(NUMBER)),
    "OllamaModels": closed(models=list_of(closed(**_MODEL))),
    "OllamaRunning": closed(models=list_of(closed(**_MODEL, expires_at=TEXT, size_vram=COUNT, context_length=COUNT))),
    "OllamaModel": closed(
        modelfile=TEXT,
        parameters=TEXT,
        template=TEXT,
        details=_DETAILS,
        model_info={"type": "object"},
        capabilities=list_of(TEXT),
        modified_at=TEXT,
    ),
    "OllamaVersion": closed(version=TEXT),
}
