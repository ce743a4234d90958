"""Answers, lines of streams, models and errors of Ollama's API as JSON.

Owns the shape of every document. Does not know how an answer came about. Times in an answer are nanoseconds.

Source: Ollama's page of its API. What this server does not know of a model, such as the date of its file, is left empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import msgspec

from tlserve.api.answers import AnswerHead, Usage, arguments_object, moment
from tlserve.api.errors import ErrorAnswer
from tlserve.chat.output.deltas import Answer, AnswerCall
from tlserve.generation import Finish

encode = msgspec.json.encode


@attrs.frozen(kw_only=True)
class Times:
    """When things happened, in milliseconds since the request's arrival: its start, its first token, its end.

    `load_ms`: how long it waited for its model to be loaded.
    """

    started_ms: float
    first_ms: float
    ended_ms: float
    load_ms: float = 0.0

    def fields(self, usage: Usage) -> dict[str, int]:
        """Return the counts and durations of an answer."""
        return {
            "total_duration": _nanoseconds(self.ended_ms),
            "load_duration": _nanoseconds(self.load_ms),
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": _nanoseconds(self.first_ms - self.started_ms),
            "eval_count": usage.completion,
            "eval_duration": _nanoseconds(self.ended_ms - self.first_ms),
        }


def _nanoseconds(milliseconds: float) -> int:
    return max(0, round(milliseconds * 1_000_000))


def head_fields(head: AnswerHead) -> dict[str, Any]:
    """Return what every line of an answer begins with."""
    return {"model": head.model, "created_at": moment(head.created)}


def chat_fields(content: str = "", thinking: str = "", calls: Sequence[AnswerCall] = ()) -> dict[str, Any]:
    """Return the message of a chat; it has thinking and calls only if there are some."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = [_call_fields(index, call) for index, call in enumerate(calls)]
    return {"message": message}


def text_fields(content: str = "", thinking: str = "", _calls: Sequence[AnswerCall] = ()) -> dict[str, Any]:
    """Return the text of an answer to /api/generate, which has no tools."""
    return {"response": content, **({"thinking": thinking} if thinking else {})}


def _call_fields(index: int, call: AnswerCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "function": {"index": index, "name": call.name, "arguments": arguments_object(call.arguments)},
    }


def end_fields(answer: Answer, usage: Usage, times: Times) -> dict[str, Any]:
    """Return what ends an answer: why it ended, and what it cost."""
    reason = "length" if answer.finish is Finish.LENGTH else "stop"
    return {"done": True, "done_reason": reason, **times.fields(usage)}


def embed_document(*, model: str, vectors: Sequence[Any], prompt_tokens: int, total_ms: float, load_ms: float) -> bytes:
    """Return vectors, each `(D,) float32`, in order."""
    return encode(
        {
            "model": model,
            "embeddings": [vector.tolist() for vector in vectors],
            "total_duration": _nanoseconds(total_ms),
            "load_duration": _nanoseconds(load_ms),
            "prompt_eval_count": prompt_tokens,
        }
    )


def error_document(answer: ErrorAnswer) -> bytes:
    """Return an error, whole or as the last line of a stream."""
    return encode({"error": answer.message})


def model_fields(name: str, family: str, created: float, size_bytes: int = 0) -> dict[str, Any]:
    """Return one model of a list."""
    return {
        "name": name,
        "model": name,
        "modified_at": moment(created),
        "size": size_bytes,
        "digest": "",
        "details": details(family),
    }


def details(family: str) -> Mapping[str, Any]:
    """Return what is known of the kind of a model."""
    return {
        "parent_model": "",
        "format": "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "",
        "quantization_level": "",
    }
