"""The API in memory, in front of a scripted backend: for faults that need virtual time and no engine."""

import json
from contextlib import asynccontextmanager

import attrs
import pytest

from tests.kit.http.memory_http import MemoryServer, memory_server
from tests.kit.scripted_backend import ScriptedBackend
from tlserve.chat.served_model import Catalogue, Served
from tlserve.chat.templates.template import Template
from tlserve.config.tables.network import HttpSettings
from tlserve.endpoints.api import make_api_handler, make_fault_renderer
from tlserve.endpoints.context import ApiContext
from tlserve.telemetry.request_log import RequestRecord
from tlserve.text.byte_tokenizer import ByteTokenizer

CHAT = "/v1/chat/completions"


@attrs.frozen(eq=False)
class MemoryApi:
    server: MemoryServer
    backend: ScriptedBackend
    records: list[RequestRecord]

    async def ask(self, client, body):
        """Ask over `client` and return the whole answer."""
        return await client.request("POST", CHAT, (), json.dumps(body).encode())


@pytest.fixture
def memory_api():
    @asynccontextmanager
    async def open_it(script=None, http=None, tokenizer=None):
        backend = ScriptedBackend() if script is None else ScriptedBackend(script)
        model = Served(
            model_id="succ",
            backend=backend,
            tokenizer=tokenizer or ByteTokenizer(),
            template=Template.parse("{% for m in messages %}{{ m.content }}{% endfor %}"),
        )
        records: list[RequestRecord] = []
        api = ApiContext(catalogue=Catalogue([model]), settings=http or HttpSettings(), log=records.append)
        fault = make_fault_renderer(api.new_id, api.log)
        async with memory_server(make_api_handler(api), api.settings, fault) as server:
            yield MemoryApi(server, backend, records)

    return open_it
