"""The node over memory streams answers, refuses connections, and cuts them on request."""

import pytest
import trio
import trio.testing

from tests.kit.fleet.http_node import http_node
from tlserve.fleet.link import NodeLost


async def test_it_answers_unless_it_does_not_listen(autojump_clock: trio.testing.MockClock) -> None:
    async with http_node() as at:
        assert (await at.link().hello()).slots == 2
        at.listens = False
        with pytest.raises(NodeLost):
            await at.link().hello()


async def test_cut_connections_end_for_those_who_read(autojump_clock: trio.testing.MockClock) -> None:
    async with http_node() as at:
        stream = await at.open_stream()
        await at.cut_connections()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some(1)
