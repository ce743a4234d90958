"""Addresses: the accepted forms, and the remedy in every refusal."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tlserve.config.addresses import Address, parse_address, parse_listen
from tlserve.errors import SettingsError


@pytest.mark.spec("SET-11")
@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", Address("127.0.0.1", 8000)),
        (":8000", Address("", 8000)),
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:80", Address("::1", 80)),
        ("[fe80::1%eth0]:65535", Address("fe80::1%eth0", 65535)),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.spec("SET-11")
@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("8000", "write ':8000'"),
        ("localhost", "add a port"),
        ("", "add a port"),
        ("http://localhost:8000", "leave the scheme out"),
        ("::1:80", "in brackets"),
        ("[localhost]:80", "only an IPv6 address"),
        ("a b:80", "a host has"),
        (":65536", "from 0 to 65535"),
        (":-1", "from 0 to 65535"),
        (":http", "from 0 to 65535"),
        ("unix:/a\ud800", "characters that no file name has"),
        (":", "from 0 to 65535"),
        (":\u0661", "from 0 to 65535"),
    ],
)
def test_a_refused_address_names_the_remedy(text: str, remedy: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_listen(text)
    assert repr(text) in caught.value.message
    assert remedy in caught.value.message


@settings(deadline=None)
@given(host=st.from_regex(r"[a-z0-9.-]*", fullmatch=True) | st.ip_addresses(v=6).map(str), port=st.integers(0, 65535))
def test_an_address_written_back_parses_to_itself(host: str, port: int) -> None:
    address = Address(host, port)
    assert parse_address(str(address)) == address


@settings(deadline=None)
@given(text=st.text(max_size=30))
def test_any_text_is_an_address_or_one_refusal(text: str) -> None:
    refusals: tuple[str, ...] = ("",)
    try:
        parse_address(text)
    except SettingsError as error:
        refusals = error.refusals
    assert len(refusals) == 1
