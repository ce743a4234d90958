"""Whole answers as JSON: chat, completion, embeddings, models, tokenize and its like.

Owns the shape of every document that is sent in one piece; those of streams are in `tlserve.openai.chunks`. Refuses to know how
an answer came about.

Source: the public API reference; `n_ctx`, `loaded`, `state`, `root` and `capabilities` of a model, `/v1/tokenize` and
`/v1/detokenize` are this server's own. A count of input tokens has the shape that the public API gives it beside its other kind
of request.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from tlserve.api.answers import NO_EXTRAS, AnswerHead, Extras, Usage
from tlserve.chat.output.deltas import Answer, AnswerCall
from tlserve.chat.served_model import REASONING_NAMES
from tlserve.generation import Finish
from tlserve.openai.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs

encode = msgspec.json.encode

TOOL_CALLS = "tool_calls"
"""The finish reason of an answer that is a tool call."""


def head_fields(head: AnswerHead, kind: str) -> dict[str, Any]:
    """Return the members that every document of one answer has; `kind` is its `object`."""
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.system_fingerprint,
    }


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Return the `usage` object."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def answer_fields(extras: Extras) -> dict[str, Any]:
    """Return the further member of a choice."""
    return {} if extras.token_ids is None else {"token_ids": extras.token_ids}


def prompt_fields(extras: Extras) -> dict[str, Any]:
    """Return the further members about the prompt."""
    ids = {} if extras.prompt_token_ids is None else {"prompt_token_ids": extras.prompt_token_ids}
    entries = extras.prompt_logprobs
    return ids if entries is None else {**ids, "prompt_logprobs": prompt_logprobs(entries)}


def chat_document(
    head: AnswerHead,
    answers: Sequence[Answer],
    usage: Usage,
    with_logprobs: bool,
    extras: Sequence[Extras] = (),
    *,
    reasoning_names: Sequence[str] = REASONING_NAMES,
) -> bytes:
    """Return a `chat.completion` whose choices are `answers`, which have ended; `extras` are empty, or one of each."""
    extras = extras or [NO_EXTRAS] * len(answers)
    choices = [
        {**_chat_choice(index, answer, with_logprobs, reasoning_names), **answer_fields(extra)}
        for index, (answer, extra) in enumerate(zip(answers, extras, strict=True))
    ]
    return encode(
        {
            **head_fields(head, "chat.completion"),
            "choices": choices,
            "usage": usage_fields(usage),
            **prompt_fields(extras[0]),
        }
    )


def _chat_choice(index: int, answer: Answer, with_logprobs: bool, reasoning_names: Sequence[str]) -> dict[str, Any]:
    return {
        "index": index,
        "message": _message(answer, reasoning_names),
        "logprobs": chat_logprobs(answer.logprobs if with_logprobs else None),
        "finish_reason": finish_reason(answer.finish, answer.called),
    }


def _message(answer: Answer, reasoning_names: Sequence[str]) -> dict[str, Any]:
    """Return the message; it has reasoning and calls only if there are some, and then content can be null."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning:
        message |= dict.fromkeys(reasoning_names, answer.reasoning)
    if answer.calls:
        message["content"] = answer.content or None
        message["tool_calls"] = list(map(_call_fields, answer.calls))
    return message


def _call_fields(call: AnswerCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def completion_document(
    head: AnswerHead,
    answers: Sequence[Answer],
    usage: Usage,
    with_logprobs: bool = False,
    extras: Sequence[Extras] = (),
) -> bytes:
    """Return a `text_completion` whose choices are `answers`, which have ended; `extras` are empty, or one of each."""
    extras = extras or [NO_EXTRAS] * len(answers)
    choices = [
        {
            "index": index,
            "text": answer.content,
            "logprobs": completion_logprobs(answer.logprobs if with_logprobs else None),
            "finish_reason": finish_reason(answer.finish),
            **prompt_fields(extra),
            **answer_fields(extra),
        }
        for index, (answer, extra) in enumerate(zip(answers, extras, strict=True))
    ]
    return encode({**head_fields(head, "text_completion"), "choices": choices, "usage": usage_fields(usage)})


def finish_reason(finish: Finish | None, called: bool = False) -> str | None:
    """Return the finish reason of an answer; None before its end. `called`: it ended with tool calls."""
    if called:
        return TOOL_CALLS
    return None if finish is None else finish.value


def embeddings_document(
    *, model: str, vectors: Iterable[NDArray[np.float32]], as_base64: bool, prompt_tokens: int
) -> bytes:
    """Return the list of embeddings, each `(D,) float32`; base64 is of little-endian float32."""
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if as_base64 else vector.tolist()}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return encode({"object": "list", "data": data, "model": model, "usage": usage})


def _packed(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


@attrs.frozen(kw_only=True)
class ModelCard:
    """A model as /v1/models shows it; `root` is the model behind an alias, `n_ctx` its context in tokens.

    `max_model_len` is the same number under vLLM's name. `state` says more than `loaded`: what is under way.

    `capabilities` holds true for each capability, or the reason why not.
    """

    id: str
    created: int
    root: str
    n_ctx: int
    loaded: bool
    state: str
    capabilities: Mapping[str, Any]
    owned_by: str = "tlserve"

    def fields(self) -> dict[str, Any]:
        """Return the `model` object."""
        return {
            "id": self.id,
            "object": "model",
            **attrs.asdict(self, filter=attrs.filters.exclude("id"), recurse=False),
            "max_model_len": self.n_ctx,
        }


def models_document(cards: Iterable[ModelCard]) -> bytes:
    """Return the list of models."""
    return encode({"object": "list", "data": [card.fields() for card in cards]})


def model_document(card: ModelCard) -> bytes:
    """Return one model."""
    return encode(card.fields())


def tokenize_document(tokens: Sequence[int], *, max_model_len: int, token_strs: Sequence[str] | None = None) -> bytes:
    """Return token ids, their count, the context of the model, and the spelling of each token if it is given."""
    spelled = {} if token_strs is None else {"token_strs": token_strs}
    return encode({"tokens": tokens, "count": len(tokens), "max_model_len": max_model_len, **spelled})


def detokenize_document(text: str, names: Sequence[str] = ("text",)) -> bytes:
    """Return the text of token ids under each of `names`."""
    return encode(dict.fromkeys(names, text))


def input_tokens_document(count: int) -> bytes:
    """Return the number of tokens in a request's input, in the public API's shape."""
    return encode({"object": "response.input_tokens", "input_tokens": count})
