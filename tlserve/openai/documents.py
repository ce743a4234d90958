"""Whole answers as JSON: chat, completion, embeddings, models, tokenize.

Owns the shape of every document that is sent in one piece; those of streams are in `tlserve.openai.chunks`. Refuses to know
how an answer came about.

Source: the public API reference; `n_ctx`, `loaded` and `root` of a model, and `/v1/tokenize`, are this server's own.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import msgspec

encode = msgspec.json.encode


@attrs.frozen(kw_only=True)
class AnswerHead:
    """What every document of one answer repeats; `created` in seconds since 1970."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def fields(self, kind: str) -> dict[str, Any]:
        """Return the head of a document whose `object` is `kind`."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


@attrs.frozen(kw_only=True)
class Usage:
    """What an answer cost, in tokens; `cached` of the prompt's came from the prefix cache."""

    prompt: int
    completion: int
    cached: int = 0

    def fields(self) -> dict[str, Any]:
        """Return the `usage` object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@attrs.frozen
class Likelihood:
    """A token with its log-probability: its raw bytes, which may be part of a character."""

    token: bytes
    logprob: float

    def fields(self) -> dict[str, Any]:
        """Return the entry without alternatives; `token` shows U+FFFD where the bytes are not whole characters."""
        return {"token": self.token.decode(errors="replace"), "logprob": self.logprob, "bytes": list(self.token)}


@attrs.frozen
class LogprobEntry:
    """One drawn token and the likeliest ones at its place."""

    drawn: Likelihood
    top: tuple[Likelihood, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return one entry of `logprobs.content`."""
        return {**self.drawn.fields(), "top_logprobs": [other.fields() for other in self.top]}


def logprobs_fields(entries: Iterable[LogprobEntry] | None) -> dict[str, Any] | None:
    """Return the `logprobs` of a chat choice; None where they were not asked for."""
    return None if entries is None else {"content": [entry.fields() for entry in entries], "refusal": None}


def chat_document(
    head: AnswerHead, *, content: str, finish: str, usage: Usage, logprobs: Iterable[LogprobEntry] | None = None
) -> bytes:
    """Return a `chat.completion` with one choice."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": content, "refusal": None},
        "logprobs": logprobs_fields(logprobs),
        "finish_reason": finish,
    }
    return encode({**head.fields("chat.completion"), "choices": [choice], "usage": usage.fields()})


def completion_document(head: AnswerHead, *, text: str, finish: str, usage: Usage) -> bytes:
    """Return a `text_completion` with one choice."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish}
    return encode({**head.fields("text_completion"), "choices": [choice], "usage": usage.fields()})


def embeddings_document(
    *, model: str, vectors: Sequence[Sequence[float]], as_base64: bool, prompt_tokens: int
) -> bytes:
    """Return the list of embeddings; base64 is of little-endian float32."""
    data = [
        {"object": "embedding", "index": index, "embedding": _packed(vector) if as_base64 else list(vector)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return encode({"object": "list", "data": data, "model": model, "usage": usage})


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


@attrs.frozen(kw_only=True)
class ModelCard:
    """A model as /v1/models shows it; `root` is the model behind an alias, `n_ctx` its context in tokens."""

    id: str
    created: int
    root: str
    n_ctx: int
    loaded: bool
    owned_by: str = "tlserve"

    def fields(self) -> dict[str, Any]:
        """Return the `model` object."""
        return {"id": self.id, "object": "model", **attrs.asdict(self, filter=attrs.filters.exclude("id"))}


def models_document(cards: Iterable[ModelCard]) -> bytes:
    """Return the list of models."""
    return encode({"object": "list", "data": [card.fields() for card in cards]})


def model_document(card: ModelCard) -> bytes:
    """Return one model."""
    return encode(card.fields())


def tokenize_document(tokens: Sequence[int]) -> bytes:
    """Return token ids and their count."""
    return encode({"tokens": tokens, "count": len(tokens)})
