"""A head reads the written events of a placement, for all acknowledgements and repeated polls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.fleet.mini_head import key
from tlserve.errors import ServerFault
from tlserve.fleet.link import WINDOW, Ack
from tlserve.fleet.node.event_buffer import EventBuffer
from tlserve.generation import TokenEvent


@pytest.mark.spec("NODE-1")
@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1), st.booleans()), max_size=20), st.booleans())
def test_every_event_is_read_once_and_in_order(steps: list[tuple[int, float, bool]], fails: bool) -> None:
    buffer, written, read = EventBuffer(key()), list[TokenEvent](), list[TokenEvent]()
    for count, share, lost in steps:
        batch = [TokenEvent(len(written) + more, 7) for more in range(count)]
        written += batch
        buffer.add(batch)
        assert buffer.acknowledge(Ack(key(), int(share * len(read)), 0))  # an old poll, which changes nothing
        assert buffer.acknowledge(Ack(key(), len(read), len(read) + WINDOW))
        rest = buffer.rest()
        if rest is not None and not lost:
            assert rest.start == len(read)
            read += rest.events
    buffer.end(ServerFault("it broke") if fails else None)
    assert buffer.acknowledge(Ack(key(), len(read), 0))
    rest = buffer.rest()
    assert read + list(rest.events if rest else ()) == written
    assert (rest is not None and rest.error is not None) == fails
    assert not buffer.acknowledge(Ack(key(), len(written) + fails + 1, 0))
    assert buffer.acknowledge(Ack(key(), len(written) + fails, 0))
    assert buffer.is_over


def test_it_is_full_at_the_window_and_not_before() -> None:
    buffer = EventBuffer(key())
    buffer.add([TokenEvent(index, 7) for index in range(WINDOW - 1)])
    assert not buffer.is_full
    buffer.add([TokenEvent(WINDOW - 1, 7)])
    assert buffer.is_full
    buffer.acknowledge(Ack(key(), WINDOW, WINDOW))
    assert buffer.is_full
    buffer.acknowledge(Ack(key(), WINDOW, WINDOW + 1))
    assert not buffer.is_full
