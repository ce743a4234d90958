"""One question over HTTP: the request, the pieces of the answer as they arrive, and the server's message if it refuses.

Owns the address of a server and the reading of its event stream. Knows nothing of conversations and terminals. Every question has
its own connection: leaving the block closes it, and so the server learns that nobody waits for the answer.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs

from tlserve.config.environment import SERVER_KEY
from tlserve.errors import OperatorError, TlserveError
from tlserve.http.client.connection import HttpClient, HttpResponse, ResponseBroken, ResponseStream
from tlserve.http.client.origin import HandshakeFailed, Origin, open_client, split_url, trust_for

_PREFIX = b"data: "
_DONE = b"[DONE]"

_KEY_MISSING = f"set the environment variable {SERVER_KEY} to a key of this server"
_KEY_REFUSED = f"the server does not accept the key in the environment variable {SERVER_KEY}"


class AnswerFailed(TlserveError):
    """There is no complete answer; the message says why, in the server's words if it sent any."""


class ServerMissing(AnswerFailed):
    """Nothing answers at the address of the server."""


@attrs.frozen
class ChatServer:
    """A server: its address, the beginning of its paths, its API key, if any, and whom it trusts for TLS."""

    origin: Origin
    base_path: str = ""
    key: str = attrs.field(default="", repr=False)
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of every request; the server must refuse unknown fields, not ignore them."""
        key = (("Authorization", f"Bearer {self.key}"),) if self.key else ()
        wishes = (("X-TL-Strict", "1"), ("X-TL-Return-Seed", "1"))
        return (("Content-Type", "application/json"), *wishes, *key)


@attrs.frozen(kw_only=True)
class AnswerEnd:
    """The facts of a complete answer."""

    finish: str | None
    tokens: int | None
    duration_s: float
    seed: str | None


def parse_server(url: str, key: str = "", ca_file: str = "") -> ChatServer:
    """Return the server at `url`, with its path but without a "/v1" at the end; raises `OperatorError`.

    `ca_file`: the certificates that are trusted for https, without it those that this machine trusts.
    """
    try:
        origin, parts = split_url(url)
    except ValueError:
        raise OperatorError(f"{url!r} is not the address of a server: give one such as http://127.0.0.1:8000") from None
    return ChatServer(origin, parts.path.rstrip("/").removesuffix("/v1"), key, trust_for(origin, ca_file))


@asynccontextmanager
async def _connected(server: ChatServer) -> AsyncIterator[HttpClient]:
    try:
        client = await open_client(server.origin, server.tls)
    except HandshakeFailed as error:
        raise AnswerFailed(f"{server.origin.url}: {error}; --ca names a file of certificates to trust") from error
    except OSError as error:
        reason = f" ({error.strerror})" if error.strerror else ""
        raise ServerMissing(f"no server answers at {server.origin.authority}{reason}") from error
    async with client:
        try:
            yield client
        except ResponseBroken as error:
            raise AnswerFailed(f"the connection to the server broke: {error}") from error


async def list_models(server: ChatServer) -> list[str]:
    """Return the ids of the models that are served; raises `AnswerFailed`."""
    async with _connected(server) as client:
        answer = await client.request("GET", f"{server.base_path}/v1/models", server.headers())
    if answer.status != 200:
        raise AnswerFailed(refusal(answer, server.key))
    try:
        return [str(entry["id"]) for entry in json.loads(answer.body)["data"]]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise AnswerFailed("this server does not speak the OpenAI API: its /v1/models is not a list") from error


async def stream_answer(server: ChatServer, body: dict[str, object], show: Callable[[str], None]) -> AnswerEnd:
    """Send the question and call `show` with each piece of the answer; raises `AnswerFailed`."""
    started_s = time.monotonic()
    data = json.dumps(body).encode()
    async with _connected(server) as client:
        answer = await client.open("POST", f"{server.base_path}/v1/chat/completions", server.headers(), data)
        if answer.status != 200:
            raise AnswerFailed(refusal(HttpResponse(answer.status, answer.headers, await answer.read()), server.key))
        finish, tokens = await _read(answer, show)
    duration_s = time.monotonic() - started_s
    return AnswerEnd(finish=finish, tokens=tokens, duration_s=duration_s, seed=answer.headers.get("X-TL-Seed"))


async def _read(answer: ResponseStream, show: Callable[[str], None]) -> tuple[str | None, int | None]:
    finish, tokens = None, None
    async for line in answer.lines():
        data = line.removeprefix(_PREFIX).strip()
        if data == _DONE:
            return finish, tokens
        if not line.startswith(_PREFIX):
            continue
        chunk = _chunk(data)
        tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        for choice in chunk.get("choices") or ():
            finish = choice.get("finish_reason") or finish
            if piece := (choice.get("delta") or {}).get("content"):
                show(piece)
    raise AnswerFailed("the answer broke off")


def _chunk(data: bytes) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError):
        chunk = None
    if not isinstance(chunk, dict):
        raise AnswerFailed("the server sent data that is not a chunk of an answer")
    if "error" in chunk:
        raise AnswerFailed(_words(chunk) or "the server ended the answer with an error")
    return chunk


def refusal(answer: HttpResponse, key: str = "") -> str:
    """Return why the server refused: its message, or the status and the beginning of the body; for 401 also the remedy."""
    if answer.status == 401:
        return f"{_said(answer)}; {_KEY_REFUSED if key else _KEY_MISSING}"
    return _said(answer)


def _said(answer: HttpResponse) -> str:
    try:
        words = _words(json.loads(answer.body))
    except (ValueError, RecursionError):
        words = None
    return words or f"the server answered {answer.status}: {answer.body[:200].decode(errors='replace')}".rstrip(": ")


def _words(document: object) -> str | None:
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) and message else None
