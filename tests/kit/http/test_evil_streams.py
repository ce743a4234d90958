"""The evil streams do what their names say."""

import pytest
import trio

from tests.kit.http.evil_streams import BrittleStream, DeafStream, TricklingStream


async def test_a_trickling_stream_gives_its_pieces_and_records_sent_bytes() -> None:
    stream = TricklingStream([b"a", b"", b"bc"])
    assert [await stream.receive_some() for _ in range(4)] == [b"a", b"bc", b"", b""]
    await stream.send_all(b"x")
    await stream.send_all(b"y")
    assert stream.writes == [b"x", b"y"]


async def test_a_trickling_stream_without_an_end_waits_after_its_pieces(autojump_clock: trio.testing.MockClock) -> None:
    stream = TricklingStream([b"a"], ends=False)
    assert await stream.receive_some() == b"a"
    with trio.move_on_after(1000) as waiting:
        await stream.receive_some()
    assert waiting.cancelled_caught


async def test_a_closed_trickling_stream_refuses_both_directions() -> None:
    stream = TricklingStream([b"a"])
    await stream.aclose()
    with pytest.raises(trio.ClosedResourceError):
        await stream.receive_some()
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"x")


async def test_a_brittle_stream_breaks_at_its_operation_and_stays_broken() -> None:
    stream = BrittleStream(TricklingStream([b"a", b"b"]), breaks_at=2)
    assert await stream.receive_some() == b"a"
    await stream.send_all(b"x")
    with pytest.raises(trio.BrokenResourceError):
        await stream.receive_some()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"y")


async def test_a_deaf_stream_sends_its_bytes_and_never_reads(autojump_clock: trio.testing.MockClock) -> None:
    stream = DeafStream(b"abc")
    assert await stream.receive_some(2) == b"ab"
    assert await stream.receive_some() == b"c"
    with trio.move_on_after(1000) as waiting:
        await stream.send_all(b"x")
    assert waiting.cancelled_caught
