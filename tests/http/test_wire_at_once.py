"""Writes that the kernel accepts at once, over real sockets: the rest waits with a time-out, in order, and no task starves."""

import socket

import pytest
import trio

from tlserve.http.wire import TURN_WRITES, PeerGone, Wire

MORE_THAN_FITS = bytes(range(256)) * (1 << 15)


def connected() -> tuple[trio.SocketStream, trio.SocketStream]:
    """Return the two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
    one, other = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (accepted, client))
    return one, other


async def test_data_that_does_not_fit_at_once_arrives_complete_and_in_order():
    ours, theirs = connected()
    wire = Wire(ours, write_timeout_s=60)
    received = bytearray()

    async def read():
        async for data in theirs:
            received.extend(data)

    async with ours, theirs, trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wire.send(b"before")
        await wire.send(MORE_THAN_FITS)
        await wire.send(b"after")
        await wire.close()
    assert bytes(received) == b"before" + MORE_THAN_FITS + b"after"


async def test_a_reader_that_does_not_read_is_given_up_in_time():
    ours, theirs = connected()
    wire = Wire(ours, write_timeout_s=0.05)
    async with ours, theirs:
        with pytest.raises(PeerGone):
            await wire.send(MORE_THAN_FITS)
        assert wire.broken
        with pytest.raises(PeerGone):
            await wire.send(b"after")


async def test_nothing_is_written_to_a_descriptor_that_was_closed_and_reused():
    ours, theirs = connected()
    wire = Wire(ours, write_timeout_s=60)
    number = ours.socket.fileno()
    await ours.aclose()
    other, its_peer = connected()
    async with theirs, other, its_peer:
        assert number in {other.socket.fileno(), its_peer.socket.fileno()}
        with pytest.raises(PeerGone):
            await wire.send(b"not for them")
        for stream in (other, its_peer):
            with trio.move_on_after(0.01) as waited:
                await stream.receive_some()
            assert waited.cancelled_caught


async def test_an_endless_writer_lets_other_tasks_run():
    ours, theirs = connected()
    wire = Wire(ours, write_timeout_s=60)
    turns = 0

    async def other():
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with ours, theirs, trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(TURN_WRITES * 10):
            await wire.send(b"x")
        nursery.cancel_scope.cancel()
    assert turns >= 9  # one of the ten can run before the other task has begun


async def test_a_cancelled_task_is_cancelled_at_its_next_write():
    ours, theirs = connected()
    wire = Wire(ours, write_timeout_s=60)
    async with ours, theirs:
        with trio.CancelScope() as scope:
            scope.cancel()
            await wire.send(b"x")
        assert scope.cancelled_caught
        assert not wire.broken, "the write was complete"
