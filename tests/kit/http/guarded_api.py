"""The whole API over memory streams, with one key, in front of a scripted backend.

async with guarded(Limits(requests_per_minute=2)) as api:
    answer = await api.chat()                               # with the key
    answer = await api.ask("GET", "/v1/models")             # without
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs

from tests.kit.http.memory_http import MemoryServer, memory_server
from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.access.cors import Cors
from tlserve.access.door import Door
from tlserve.access.keys import ApiKey, KeyRing, Limits, digest_of
from tlserve.chat.served_model import Catalogue, Served
from tlserve.endpoints.api import make_api_handler, make_fault_renderer
from tlserve.endpoints.context import ApiContext
from tlserve.http.client.connection import HttpResponse
from tlserve.telemetry.request_log import RequestRecord
from tlserve.text.byte_tokenizer import ByteTokenizer

KEY = "sk-0123456789-abcdef"
RIGHT = ("Authorization", f"Bearer {KEY}")
CHAT = "/v1/chat/completions"


@attrs.frozen
class Guarded:
    """An API with one key, and its log records."""

    server: MemoryServer
    door: Door
    backend: ScriptedBackend
    records: list[RequestRecord]

    async def ask(self, method: str, path: str, *headers: tuple[str, str], body: Any = None) -> HttpResponse:
        data = b"" if body is None else json.dumps(body).encode()
        return await self.server.request(method, path, headers, data)

    async def chat(self, *headers: tuple[str, str], **fields: Any) -> HttpResponse:
        return await self.ask("POST", CHAT, *(headers or (RIGHT,)), body=chat_body(**fields))


def chat_body(**fields: Any) -> dict[str, Any]:
    base = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "temperature": 0}
    return {**base, **fields}


def open_streams(door: Door) -> Mapping[str, int]:
    """Return the number of open requests of each key that has any."""
    return {name: usage.streams for name, usage in door._usage.items() if usage.streams}


@asynccontextmanager
async def guarded(
    limits: Limits | None = None,
    script: Script | None = None,
    cors: tuple[str, ...] = (),
    served: dict[str, Any] | None = None,
    others: Sequence[str] = (),
    share_cache: bool = False,
    **key: Any,
) -> AsyncIterator[Guarded]:
    """Serve `succ` for the block; `key` are fields of its `ApiKey`, `served` of its `Served`, `others` more keys."""
    first = ApiKey(name="ci", digest=digest_of(KEY), limits=limits or Limits(), **key)
    ring = KeyRing([first, *(ApiKey(name=other, digest=digest_of(other)) for other in others)])
    door = Door(ring, public=["GET /healthz"], share_cache=share_cache)
    backend = ScriptedBackend(script or Script())
    records: list[RequestRecord] = []
    api = ApiContext(
        catalogue=Catalogue(
            [Served(**{"model_id": "succ", "backend": backend, "tokenizer": ByteTokenizer(), **(served or {})})]
        ),
        door=door,
        cors=Cors(cors),
        log=records.append,
    )
    async with memory_server(make_api_handler(api), api.settings, make_fault_renderer(api.new_id)) as server:
        yield Guarded(server, door, backend, records)
