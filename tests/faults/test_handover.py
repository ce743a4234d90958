"""A server is replaced while it serves: the next process takes its listening sockets, and no client notices."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.kit.http.gated_server import gated_server
from tests.kit.http.http_calls import chat, content_of
from tlserve.errors import OperatorError
from tlserve.http.client.connection import HttpClient, connect
from tlserve.http.sockets.handover import find_predecessor
from tlserve.testing import TestServer, serve

STREAM = chat("a", max_tokens=5, stream=True)
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("s") / "handover.sock")


@asynccontextmanager
async def replaced(path: str, **settings: str) -> AsyncIterator[TestServer]:
    """Run the next server for the block."""
    async with serve("succ", settings={"http.handover_socket": path, **settings}) as following:
        yield following


def exists(path: str) -> bool:
    return Path(path).exists()


async def status_of(client: HttpClient) -> int:
    return (await client.request("GET", "/v1/models")).status


@pytest.mark.spec("LIFE-14", "LIFE-15")
async def test_open_and_queued_streams_end_where_they_began_and_new_ones_go_to_the_next(path: str) -> None:
    async with gated_server(max_num_seqs=1, http__handover_socket=path) as host:
        running = await host.send(STREAM)
        await host.step()
        queued = await host.send(STREAM)
        async with replaced(path) as following:
            assert following.address == host.server.address
            assert following.health_address == host.server.health_address
            await trio.testing.wait_all_tasks_blocked(0.05)  # the first server has heard that the next one is ready
            new = await host.send(STREAM)
            assert content_of(await new.events()) == "bcdef"
            ready = await host.health("/readyz")
            assert json.loads(ready.body) == {"status": "ready"}
            host.gate.open_all()
            assert [content_of(await talk.events()) for talk in (running, queued)] == ["bcdef", "bcdef"]
            assert await host.server.join() == 0
            assert exists(path)
    assert not exists(path)


@pytest.mark.spec("LIFE-15")
async def test_a_client_that_is_connected_but_has_sent_nothing_gets_its_answer(path: str) -> None:
    async with (
        gated_server(http__handover_socket=path) as host,
        await host.raw() as silent,
        await host.connect() as used,
        await connect("127.0.0.1", int(host.server.health_address.rpartition(":")[2])) as probe,
    ):
        assert await status_of(used) == 200
        async with replaced(path):
            while (last := await used.request("GET", "/v1/models")).headers.get("connection") != "close":
                assert last.status == 200
            assert last.status == 200
            await silent.send_all(GET)
            answer = await silent.receive_some()
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer.lower()
            ready = await probe.request("GET", "/readyz")
            assert (ready.status, ready.headers.get("connection")) == (200, "close")
            assert await host.server.join() == 0


@pytest.mark.spec("LIFE-14")
async def test_a_server_continues_if_the_next_one_ends_before_it_is_ready(path: str) -> None:
    async with gated_server(http__handover_socket=path) as host:
        for _ in range(2):
            found = await find_predecessor(path)
            assert found is not None
            (api,) = found.take("api 127.0.0.1:0")
            assert api.opened.getsockname()[1] == int(host.server.address.rpartition(":")[2])
            api.opened.close()
            await found.aclose()
        async with await connect("127.0.0.1", int(host.server.address.rpartition(":")[2])) as client:
            assert await status_of(client) == 200
        with pytest.raises(OperatorError, match="nowhere"):
            async with serve("nowhere", settings={"http.handover_socket": path}):
                raise AssertionError("there is no such model")
        async with await connect("127.0.0.1", int(host.server.address.rpartition(":")[2])) as client:
            assert await status_of(client) == 200


async def test_the_file_of_a_unix_socket_belongs_to_the_next_server(path: str) -> None:
    api = f"{path}.api"
    settings = {"engine.http_listen": f"unix:{api}", "http.handover_socket": path}
    async with serve("succ", settings=settings) as first, serve("succ", settings=settings) as following:
        assert await first.join() == 0
        async with HttpClient(await trio.open_unix_socket(api)) as client:
            assert await status_of(client) == 200
        following.drain()
    assert not exists(api)


async def test_a_next_server_with_another_address_listens_there(path: str) -> None:
    other = {"engine.http_listen": "127.0.0.1:00"}
    async with gated_server(http__handover_socket=path) as host, replaced(path, **other) as following:
        assert following.address != host.server.address
        assert await host.server.join() == 0


async def test_a_predecessor_that_does_not_hand_over_is_refused(path: str) -> None:
    async def answer(stream: trio.SocketStream) -> None:
        await stream.send_all(b"[1, 2]")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        await listening.bind(path)
        listening.listen()
        nursery.start_soon(trio.serve_listeners, answer, [trio.SocketListener(listening)])
        with pytest.raises(OperatorError, match="is not a tlserve"):
            await find_predecessor(path)
        nursery.cancel_scope.cancel()


async def test_without_a_process_at_the_path_there_is_no_predecessor(path: str) -> None:
    assert await find_predecessor(path) is None
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(path)
    listening.close()
    assert await find_predecessor(path) is None


@pytest.mark.parametrize("wrong", ["relative.sock", "/", "/" + "x" * 200])
async def test_a_path_that_no_unix_socket_can_have_is_refused(wrong: str) -> None:
    with pytest.raises(OperatorError, match="handover_socket"):
        async with serve("succ", settings={"http.handover_socket": wrong}):
            raise AssertionError("the path is wrong")


async def test_a_node_of_a_fleet_does_not_hand_over(path: str) -> None:
    with pytest.raises(OperatorError, match="a node cannot be replaced in place"):
        async with serve("succ", settings={"http.handover_socket": path, "fleet.internal": True}):
            raise AssertionError("a node")
