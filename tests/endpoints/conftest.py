"""The API over memory streams, in front of a scripted backend."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import pytest

from tests.kit.http.memory_http import MemoryServer, memory_server
from tests.kit.scripted_backend import ScriptedBackend
from tests.kit.served_succ import SUCC
from tlserve.access.door import Door
from tlserve.chat.served_model import Catalogue, Served
from tlserve.config.tables.network import HttpSettings
from tlserve.endpoints.api import make_api_handler, make_fault_renderer
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.responses.kept import KeptResponses
from tlserve.http.client.connection import HttpResponse
from tlserve.telemetry.request_log import RequestRecord

CHAT = "/v1/chat/completions"
JSON = ("Content-Type", "application/json")


@attrs.frozen
class Api:
    """The API of one served model, `succ`, and the records that it logged."""

    server: MemoryServer
    backend: ScriptedBackend
    records: list[RequestRecord]

    async def post(self, path: str, body: Any, *headers: tuple[str, str]) -> HttpResponse:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.server.client.request("POST", path, (JSON, *headers), data)

    async def get(self, path: str, *headers: tuple[str, str]) -> HttpResponse:
        return await self.server.client.request("GET", path, headers)

    async def delete(self, path: str, *headers: tuple[str, str]) -> HttpResponse:
        return await self.server.client.request("DELETE", path, headers)

    async def chat(self, content: Any = "a", *headers: tuple[str, str], **fields: Any) -> HttpResponse:
        return await self.post(CHAT, chat_body(content, **fields), *headers)


def chat_body(content: Any = "a", **fields: Any) -> dict[str, Any]:
    """Return the hand example: the answer to "a" is "bcd"."""
    base = {"model": "succ", "messages": [{"role": "user", "content": content}], "max_tokens": 3, "temperature": 0}
    return {**base, **fields}


OpenApi = Callable[..., AbstractAsyncContextManager[Api]]


@pytest.fixture
def open_api() -> OpenApi:
    @asynccontextmanager
    async def open_it(
        backend: ScriptedBackend | None = None,
        settings: HttpSettings | None = None,
        door: Door | None = None,
        kept: KeptResponses | None = None,
        **served: Any,
    ) -> AsyncIterator[Api]:
        backend = backend or ScriptedBackend()
        records: list[RequestRecord] = []
        model = Served(**{**SUCC, "backend": backend, **served})
        ids = iter(f"id{count}" for count in range(1000))
        api = ApiContext(
            catalogue=Catalogue([model]),
            settings=settings or HttpSettings(),
            door=door or Door(),
            kept=kept,
            draw_seed=lambda: 77,
            new_id=lambda: next(ids),
            now_s=lambda: 1_700_000_000.5,
            log=records.append,
        )
        render_fault = make_fault_renderer(api.new_id, api.log)
        async with memory_server(make_api_handler(api), api.settings, render_fault) as server:
            yield Api(server, backend, records)

    return open_it
