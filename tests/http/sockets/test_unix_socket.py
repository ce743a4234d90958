"""Unix sockets: the file, its permissions, and its removal."""

# ruff: noqa: ASYNC240 - a look at one small file is not worth a thread

import os
import socket
import stat
from pathlib import Path

import pytest
import trio

from tlserve.config.tables.network import HttpSettings
from tlserve.errors import AddressInUse, OperatorError
from tlserve.http.client.connection import HttpClient
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder
from tlserve.http.server import Server
from tlserve.http.sockets.listener import bound_addresses, open_listeners


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s") / "api.sock"


async def show_peer(request: Request, responder: Responder) -> None:
    await responder.send(Response(200, request.peer.encode() + b"|" + await request.read_body()))


@pytest.mark.spec("HTTP-65")
async def test_requests_are_answered_and_there_is_no_peer_address(path: Path) -> None:
    listeners = await open_listeners(f"unix:{path}")
    assert bound_addresses(listeners) == (f"unix:{path}",)
    server = Server(HttpSettings(), show_peer)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, listeners)
            async with HttpClient(await trio.open_unix_socket(path)) as client:
                for body in (b"one", b"two" * 100_000):
                    assert (await client.request("POST", "/", body=body)).body == b"|" + body
                server.drain()
    assert not path.exists()


@pytest.mark.spec("HTTP-65")
@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
async def test_the_file_has_the_requested_permissions(mode: int, path: Path) -> None:
    (listener,) = await open_listeners(f"unix:{path}", unix_mode=mode)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    await listener.aclose()


@pytest.mark.spec("HTTP-68")
async def test_a_socket_that_a_killed_server_left_is_replaced(path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.listen()
    left.close()
    (listener,) = await open_listeners(f"unix:{path}")
    async with await trio.open_unix_socket(path):
        pass
    await listener.aclose()


@pytest.mark.spec("HTTP-68")
async def test_a_socket_in_use_is_refused_and_stays(path: Path) -> None:
    (listener,) = await open_listeners(f"unix:{path}")
    with pytest.raises(AddressInUse, match="in use by another process") as caught:
        await open_listeners(f"unix:{path}")
    assert str(path) in caught.value.message
    async with await trio.open_unix_socket(path):
        pass
    await listener.aclose()


async def test_a_socket_with_a_full_queue_counts_as_in_use(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            try:
                one.connect(str(path))
            except BlockingIOError:
                break
        with pytest.raises(AddressInUse):
            await open_listeners(f"unix:{path}")
        for one in waiting:
            one.close()


@pytest.mark.spec("HTTP-68")
async def test_a_file_that_is_not_a_socket_is_refused_and_stays(path: Path) -> None:
    path.write_text("precious", encoding="utf-8")
    with pytest.raises(OperatorError, match="not a socket"):
        await open_listeners(f"unix:{path}")
    assert path.read_text(encoding="utf-8") == "precious"


async def test_a_link_is_not_followed(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("precious", encoding="utf-8")
    path.symlink_to(target)
    with pytest.raises(OperatorError, match="not a socket"):
        await open_listeners(f"unix:{path}")
    assert target.exists()


async def test_a_missing_folder_is_refused_in_one_line(path: Path) -> None:
    with pytest.raises(OperatorError, match=r"cannot listen on unix:.*No such file"):
        await open_listeners(f"unix:{path.parent}/nowhere/api.sock")


async def test_closing_leaves_a_file_that_replaced_the_socket_alone(path: Path) -> None:
    (listener,) = await open_listeners(f"unix:{path}")
    os.unlink(path)
    path.write_text("another", encoding="utf-8")
    await listener.aclose()
    await listener.aclose()
    assert path.read_text(encoding="utf-8") == "another"
