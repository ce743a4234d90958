"""Addresses of servers, and the one line about a TLS handshake that fails."""

import pytest

from tests.kit.http.certificates import Certificates
from tlserve.errors import OperatorError
from tlserve.http.client.origin import HandshakeFailed, Origin, open_client, parse_origin, trust
from tlserve.testing import serve


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://10.0.0.7:8000", Origin("http", "10.0.0.7", 8000)),
        ("https://node.example", Origin("https", "node.example", 443)),
        ("http://node.example/", Origin("http", "node.example", 80)),
        ("http://[fd00::7]:8000", Origin("http", "fd00::7", 8000)),
    ],
)
def test_an_address_is_parsed(url, origin):
    assert parse_origin(url) == origin
    assert parse_origin(origin.url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "node:8000",
        "ftp://node",
        "http://",
        "http://node:70000",
        "http://me@node",
        "http://node/path",
        "http://fd00::7:80",
        "http://no de",
        "http://node?x",
        "",
    ],
)
def test_a_wrong_server_address_is_refused(url):
    with pytest.raises(ValueError, match="is not an address like"):
        parse_origin(url)


async def test_a_handshake_with_a_server_in_clear_text_says_so():
    async with serve("succ") as server:
        with pytest.raises(HandshakeFailed, match="the server does not use TLS at this port"):
            await open_client(parse_origin(f"https://{server.address}"))


async def test_a_certificate_is_trusted_by_its_file_and_else_the_reason_is_given(tmp_path):
    made, file = Certificates(tmp_path), tmp_path / "ca.pem"
    made.authority.cert_pem.write_to_path(str(file))
    async with serve("succ", settings={"tls.certificate": str(made.certificate), "tls.key": str(made.key)}) as server:
        origin = parse_origin(f"https://{server.address}")
        with pytest.raises(
            HandshakeFailed, match="the server's certificate is not trusted: unable to get local issuer"
        ):
            await open_client(origin)
        async with await open_client(origin, trust(str(file))) as client:
            assert (await client.request("GET", "/v1/models")).status == 200


def test_a_file_without_certificates_is_refused(tmp_path):
    (tmp_path / "empty.pem").write_text("nothing\n")
    with pytest.raises(OperatorError, match=r"empty.pem has no certificate in PEM form"):
        trust(str(tmp_path / "empty.pem"))
    with pytest.raises(OperatorError, match=r"cannot read the certificates in .*missing.pem: No such file"):
        trust(str(tmp_path / "missing.pem"))
