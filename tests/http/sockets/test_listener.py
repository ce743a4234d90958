"""Listening addresses over real sockets of this machine's loopback."""

from collections.abc import Sequence

import pytest
import trio

from tlserve.errors import AddressInUse, OperatorError, SettingsError
from tlserve.http.sockets.listener import bound_addresses, open_listeners


async def close_all(listeners: Sequence[trio.abc.AsyncResource]) -> None:
    for listener in listeners:
        await listener.aclose()


async def test_port_0_is_a_free_port_that_is_reported() -> None:
    listeners = await open_listeners("127.0.0.1:0")
    (address,) = bound_addresses(listeners)
    host, port = address.rsplit(":", 1)
    assert host == "127.0.0.1"
    assert int(port) > 0
    async with await trio.open_tcp_stream(host, int(port)):
        pass
    await close_all(listeners)


async def test_an_ipv6_address_is_bound_and_written_in_brackets_or_refused_in_one_line() -> None:
    try:
        listeners = await open_listeners("[::1]:0")
    except OperatorError as error:
        said = error.message
    else:
        (said,) = bound_addresses(listeners)
        await close_all(listeners)
    assert said.removeprefix("cannot listen on ").startswith("[::1]:")


async def test_an_empty_host_is_every_interface_on_one_port() -> None:
    listeners = await open_listeners(":0")
    (address,) = bound_addresses(listeners)
    async with await trio.open_tcp_stream("127.0.0.1", int(address.rsplit(":", 1)[1])):
        pass
    await close_all(listeners)


async def test_a_name_is_bound_on_one_port_for_all_its_addresses() -> None:
    listeners = await open_listeners("localhost:0")
    assert len({address.rsplit(":", 1)[1] for address in bound_addresses(listeners)}) == 1
    await close_all(listeners)


@pytest.mark.spec("HTTP-43")
async def test_an_address_in_use_is_one_line_with_the_address_and_the_remedy() -> None:
    listeners = await open_listeners("127.0.0.1:0")
    (address,) = bound_addresses(listeners)
    with pytest.raises(AddressInUse) as caught:
        await open_listeners(address)
    assert address in caught.value.message
    assert "port 0" in caught.value.message
    assert "\n" not in caught.value.message
    await close_all(listeners)


async def test_a_port_can_be_bound_again_right_after_its_connections_closed() -> None:
    listeners = await open_listeners("127.0.0.1:0")
    (address,) = bound_addresses(listeners)
    client = await trio.open_tcp_stream("127.0.0.1", int(address.rsplit(":", 1)[1]))
    accepted = await listeners[0].accept()
    await accepted.aclose()  # our side closes first: the port is in TIME_WAIT
    await client.aclose()
    await close_all(listeners)
    again = await open_listeners(address)
    assert bound_addresses(again) == (address,)
    await close_all(again)


async def test_a_malformed_address_is_refused_with_the_right_form() -> None:
    with pytest.raises(SettingsError, match="add a port"):
        await open_listeners("localhost")


async def test_an_address_of_another_machine_is_refused_in_one_line() -> None:
    with pytest.raises(OperatorError, match=r"cannot listen on 192\.0\.2\.1:0"):
        await open_listeners("192.0.2.1:0")


async def test_an_unknown_host_is_refused_in_one_line() -> None:
    with pytest.raises(OperatorError, match="not known"):
        await open_listeners("no-such-host.invalid:0")
