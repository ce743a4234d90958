"""Clients of a simulated server: each plays one connection of a plan over a memory stream, and keeps what it got."""

from __future__ import annotations

import random
from collections.abc import Iterator

import attrs
import h11
import trio

from tests.simulation.plan import Ask, Client

GARBAGE = (b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n", b"\x00" * 40, b"A" * 40_000)


@attrs.define
class Reply:
    """What one request got: `whole` says that its answer came to the end."""

    ask: Ask
    status: int | None = None
    body: bytes = b""
    whole: bool = False


@attrs.define
class Played:
    """One client after its run. `left`: it went before its last answer came; `broken`: the server ended the connection.

    A client that stays has an idle connection from `waited_from` until the server closes it, at `closed_at`.
    """

    client: Client
    replies: list[Reply]
    left: bool = False
    broken: bool = False
    waited_from: float | None = None
    closed_at: float | None = None


def pieces(data: bytes, client: Client) -> Iterator[bytes]:
    """Cut `data` as the client sends it."""
    if client.manner != "bytes":
        yield data
        return
    chance = random.Random(client.cut_seed)
    at = 0
    while at < len(data):
        size = chance.choice((1, 3, 17, 200))
        yield data[at : at + size]
        at += size


async def play(client: Client, stream: trio.abc.Stream) -> Played:
    """Play `client` over `stream`, and close it."""
    played = Played(client, [])
    try:
        await _play(client, stream, played)
    except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
        played.broken = True
    finally:
        await trio.aclose_forcefully(stream)
    return played


async def _play(client: Client, stream: trio.abc.Stream, played: Played) -> None:
    if client.manner == "garbage":
        await _send_garbage(client, stream, played)
    elif client.manner == "pipelines":
        played.replies = [Reply(ask) for ask in client.asks]
        await stream.send_all(b"".join(ask.raw(close=ask is client.asks[-1]) for ask in client.asks))
        await _read_all(client, stream, played)
    else:
        await _ask_one_by_one(client, stream, played)


async def _send_garbage(client: Client, stream: trio.abc.Stream, played: Played) -> None:
    played.left = True
    await stream.send_all(random.Random(client.cut_seed).choice(GARBAGE))
    with trio.move_on_after(60):
        while await stream.receive_some(65_536):
            pass


async def _ask_one_by_one(client: Client, stream: trio.abc.Stream, played: Played) -> None:
    reader = _Reader(client, stream, played)
    for ask in client.asks:
        played.replies.append(Reply(ask))
        for piece in pieces(ask.raw(close=False), client):
            await stream.send_all(piece)
            if client.manner == "bytes":
                await trio.sleep(client.pause_s / 20)
        if client.manner == "half_closes" and ask is client.asks[-1]:
            assert isinstance(stream, trio.StapledStream)
            played.left = True  # the end of input means that the client has gone
            await stream.send_eof()
        if not await reader.read_reply(played.replies[-1], ask):
            return
    if client.manner == "stays":
        played.waited_from = trio.current_time()
        while await stream.receive_some(65_536):
            pass
        played.closed_at = trio.current_time()


async def _read_all(client: Client, stream: trio.abc.Stream, played: Played) -> None:
    reader = _Reader(client, stream, played)
    for reply in played.replies:
        if not await reader.read_reply(reply, reply.ask):
            return


class _Reader:
    """Reads answers in order; a client that leaves does so after so many bytes."""

    def __init__(self, client: Client, stream: trio.abc.Stream, played: Played) -> None:
        self._client = client
        self._stream = stream
        self._played = played
        self._received = 0
        self._machine = h11.Connection(h11.CLIENT)

    async def read_reply(self, reply: Reply, ask: Ask) -> bool:
        """Read one answer; False if there is no more to come."""
        machine = self._machine
        if machine.our_state is h11.DONE:
            machine.start_next_cycle()
        machine.send(
            h11.Request(method="POST", target=ask.path, headers=[("Host", "localhost"), ("Content-Length", "0")])
        )
        machine.send(h11.EndOfMessage())
        while True:
            event = machine.next_event()
            if event is h11.NEED_DATA:
                if not await self._receive():
                    return False
            elif isinstance(event, h11.Response):
                reply.status = event.status_code
            elif isinstance(event, h11.Data):
                reply.body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                reply.whole = True
                return machine.their_state is h11.DONE
            elif isinstance(event, h11.ConnectionClosed):
                self._played.broken = True
                return False

    async def _receive(self) -> bool:
        """Take in more bytes; False once the client leaves."""
        client = self._client
        if client.manner == "leaves" and self._received >= client.leaves_after:
            self._played.left = True
            return False
        if client.manner == "slow_reader":
            await trio.sleep(client.pause_s)
        most = 16 if client.manner == "slow_reader" else 65_536
        data = await self._stream.receive_some(most)
        self._received += len(data)
        self._machine.receive_data(bytes(data))
        return True
