"""The bodies of all requests together have a limit."""

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.kit.http.memory_http import memory_server
from tlserve.config.tables.network import HttpSettings
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder


@pytest.mark.spec("HTTP-80")
async def test_bodies_in_flight_have_a_limit_together() -> None:
    release = trio.Event()

    async def handle(request: Request, responder: Responder) -> None:
        body = await request.read_body()
        if request.path == "/wait":
            await release.wait()
        await responder.send(Response(200, b"%d" % len(body)))

    async with memory_server(handle, HttpSettings(max_bytes_in_flight=100)) as server, trio.open_nursery() as nursery:

        async def hold() -> None:
            assert (await server.request("POST", "/wait", body=b"a" * 60)).body == b"60"

        nursery.start_soon(hold)
        await wait_all_tasks_blocked()
        assert (await server.request("POST", "/", body=b"b" * 40)).body == b"40"
        for _ in range(3):
            refused = await server.request("POST", "/", body=b"b" * 41)
            assert (refused.status, refused.headers.get("retry-after")) == (503, "1")
            assert b"max_bytes_in_flight" in refused.body
        release.set()
        await wait_all_tasks_blocked()
        assert (await server.request("POST", "/", body=b"b" * 100)).body == b"100"
        assert (await server.request("POST", "/", body=b"b" * 101)).status == 413
        assert (await server.request("POST", "/", body=b"b" * 100)).body == b"100"
