"""The server over TLS, on real sockets: the differences, and what must stay the same."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
import trustme
from cryptography.hazmat.primitives import serialization

from tests.kit.http.certificates import Certificates
from tests.kit.http.loopback import on_loopback
from tests.kit.http.memory_http import statuses
from tlserve.config.tables.network import HttpSettings
from tlserve.errors import SettingsError
from tlserve.http.client.connection import HttpClient
from tlserve.http.exchange import Handler
from tlserve.http.messages import Request, Response
from tlserve.http.responder import Responder
from tlserve.http.server import Server
from tlserve.http.sockets.certificate_dates import read_dates
from tlserve.http.sockets.tls import Certificate, TlsListener

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
RESET = (socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def tls_server(
    handler: Handler, made: Certificates, settings: HttpSettings | None = None
) -> AsyncIterator[tuple[Server, int, Certificate]]:
    certificate = Certificate(str(made.certificate), str(made.key))
    server = Server(settings or HttpSettings(), handler)
    async with on_loopback(server, lambda plain: [TlsListener(listener, certificate) for listener in plain]) as port:
        yield server, port, certificate


async def echo(request: Request, responder: Responder) -> None:
    await responder.send(Response(200, await request.read_body(), [("X-Peer", request.peer)]))


async def until_nobody_is_connected(server: Server) -> None:
    while server.open_connections:
        await trio.lowlevel.checkpoint()


async def test_requests_are_answered_and_the_peer_is_known(made: Certificates) -> None:
    async with tls_server(echo, made) as (_, port, _):
        stream = await made.connect(port)
        async with HttpClient(stream) as client:
            for body in (b"one", b"two" * 300_000):
                answer = await client.request("POST", "/", body=body)
                assert answer.body == body
            host, own_port = stream.transport_stream.socket.getsockname()
            assert answer.headers.get("x-peer") == f"{host}:{own_port}"


@pytest.mark.spec("HTTP-60")
async def test_http_1_1_and_the_newest_version_are_agreed_on(made: Certificates) -> None:
    async with tls_server(echo, made) as (_, port, _):
        context = made.client_context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        async with await made.connect(port, context) as stream:
            assert (stream.version(), stream.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")


@pytest.mark.spec("HTTP-60")
async def test_tls_1_2_is_supported(made: Certificates) -> None:
    async with tls_server(echo, made) as (_, port, _):
        context = made.client_context()
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        async with await made.connect(port, context) as stream:
            assert stream.version() == "TLSv1.2"


@pytest.mark.spec("HTTP-60")
async def test_tls_1_1_is_refused_even_to_a_client_without_newer_versions(made: Certificates) -> None:
    async with tls_server(echo, made) as (server, port, _):
        context = made.client_context()
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(trio.BrokenResourceError):
            await made.connect(port, context)
        await until_nobody_is_connected(server)


@pytest.mark.spec("HTTP-66")
async def test_a_client_that_speaks_plain_http_gets_an_error_and_is_closed(made: Certificates) -> None:
    async with tls_server(echo, made) as (server, port, _):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(GET)
        answer = await receive_all(stream)
        assert statuses(answer) == [400]
        assert answer.endswith(b"use https, not http://\n")
        assert int(answer.partition(b"Content-Length: ")[2].partition(b"\r")[0]) == len(
            answer.partition(b"\r\n\r\n")[2]
        )
        await until_nobody_is_connected(server)


@pytest.mark.spec("HTTP-61")
@pytest.mark.parametrize("what", [b"", b"\x16\x03\x01", b"\0" * 100, bytes(range(256)), b"SSH-2.0-x\r\n"])
async def test_a_handshake_of_garbage_or_none_does_no_harm(what: bytes, made: Certificates) -> None:
    async with tls_server(echo, made) as (server, port, _):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        if what:
            await stream.send_all(what)
        await stream.send_eof()
        await until_nobody_is_connected(server)
        async with HttpClient(await made.connect(port)) as client:
            assert (await client.request("GET", "/")).status == 200
        await stream.aclose()


@pytest.mark.spec("HTTP-61")
async def test_a_handshake_that_takes_too_long_is_closed(made: Certificates) -> None:
    async with tls_server(echo, made, HttpSettings(handshake_timeout_ms=20)) as (server, port, _):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        assert await receive_all(stream) == b""
        await until_nobody_is_connected(server)


@pytest.mark.spec("HTTP-61")
async def test_a_drain_ends_a_handshake_and_an_idle_connection_and_finishes_a_stream(made: Certificates) -> None:
    release = trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            await body.send(b"begun")
            await release.wait()
            await body.send(b"ended")

    async with tls_server(handler, made) as (server, port, _):
        waiting = await trio.open_tcp_stream("127.0.0.1", port)
        idle = await made.connect(port)
        async with HttpClient(await made.connect(port)) as client:
            answer = await client.open("GET", "/")
            assert await answer.receive() == b"begun"
            while server.open_connections < 3:
                await trio.lowlevel.checkpoint()
            server.drain()
            assert await receive_all(waiting) == b""
            assert await receive_all(idle) == b""  # by close_notify: anything else would be an error here
            release.set()
            assert await answer.read() == b"ended"


@pytest.mark.spec("HTTP-63")
@pytest.mark.parametrize("leave", ["close_notify", "end of the transport", "reset"])
async def test_a_departure_is_noticed_while_nothing_is_sent(leave: str, made: Certificates) -> None:
    started, cancelled = trio.Event(), trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with tls_server(handler, made) as (_, port, _):
        stream = await made.connect(port)
        await stream.send_all(GET + GET)
        await started.wait()
        if leave == "close_notify":
            await stream.aclose()
        else:
            if leave == "reset":
                stream.transport_stream.setsockopt(*RESET)
            await trio.aclose_forcefully(stream)
        await cancelled.wait()


@pytest.mark.spec("HTTP-62")
async def test_a_whole_answer_ends_by_close_notify_and_a_cut_one_does_not(made: Certificates) -> None:
    async def handler(request: Request, responder: Responder) -> None:
        async with responder.stream(200) as body:
            await body.send(b"begun")
            if request.path == "/cut":
                await trio.sleep_forever()

    async with tls_server(handler, made) as (server, port, _):
        whole = await made.connect(port)
        await whole.send_all(b"GET / HTTP/1.0\r\n\r\n")
        assert (await receive_all(whole)).endswith(b"begun")
        cut = await made.connect(port)
        await cut.send_all(b"GET /cut HTTP/1.0\r\n\r\n")
        received = b""
        while not received.endswith(b"begun"):
            received += await cut.receive_some()
        server.cut()
        with pytest.raises(trio.BrokenResourceError):
            await cut.receive_some()
        await trio.aclose_forcefully(cut)


@pytest.mark.spec("HTTP-63")
async def test_a_client_that_sends_a_large_body_before_it_reads_still_gets_its_413(made: Certificates) -> None:
    async with (
        tls_server(echo, made, HttpSettings(max_body_bytes=1000)) as (_, port, _),
        HttpClient(await made.connect(port)) as client,
    ):
        answer = await client.request("POST", "/", body=bytes(5_000_000))
        assert (answer.status, answer.headers.get("connection")) == (413, "close")


@pytest.mark.spec("HTTP-63")
async def test_a_reader_that_does_not_read_is_cut(made: Certificates) -> None:
    cancelled = trio.Event()

    async def handler(request: Request, responder: Responder) -> None:
        try:
            async with responder.stream(200) as body:
                while True:
                    await body.send(bytes(65_536))
        finally:
            cancelled.set()

    async with tls_server(handler, made, HttpSettings(write_timeout_ms=50)) as (_, port, _):
        deaf = await made.connect(port)
        await deaf.send_all(GET)
        await cancelled.wait()
        await trio.aclose_forcefully(deaf)


# --- certificates


@pytest.mark.spec("HTTP-64")
async def test_new_connections_get_a_renewed_certificate_and_open_ones_continue(made: Certificates) -> None:
    async with tls_server(echo, made) as (_, port, certificate):
        old = await made.connect(port)
        before = old.getpeercert(binary_form=True)
        made.renew()
        certificate.reload()
        new = await made.connect(port)
        assert new.getpeercert(binary_form=True) != before
        for stream in (old, new):
            async with HttpClient(stream) as client:
                assert (await client.request("GET", "/")).status == 200


@pytest.mark.spec("HTTP-64")
async def test_files_that_are_broken_leave_the_old_certificate(made: Certificates) -> None:
    async with tls_server(echo, made) as (_, port, certificate):
        before = ssl.PEM_cert_to_DER_cert(first_certificate(made))
        made.certificate.write_text("nothing", encoding="utf-8")
        with pytest.raises(SettingsError, match="in PEM form"):
            certificate.reload()
        async with await made.connect(port) as stream:
            assert stream.getpeercert(binary_form=True) == before


def first_certificate(made: Certificates) -> str:
    return made.certificate.read_text(encoding="utf-8").partition("-----END")[0] + "-----END CERTIFICATE-----\n"


def test_one_file_can_hold_certificate_and_key(made: Certificates) -> None:
    made.certificate.write_bytes(made.key.read_bytes() + made.certificate.read_bytes())
    assert Certificate(str(made.certificate)).paths == (str(made.certificate),)


def break_key_of_another(made: Certificates) -> None:
    made.key.write_bytes(trustme.CA().issue_cert("x").private_key_pem.bytes())


def break_missing(made: Certificates) -> None:
    made.key.unlink()


def break_empty(made: Certificates) -> None:
    made.key.write_bytes(b"")


def break_encrypted(made: Certificates) -> None:
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))


@pytest.mark.spec("HTTP-67")
@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (break_key_of_another, "does not belong to the certificate"),
        (break_missing, "No such file"),
        (break_empty, "in PEM form"),
        (break_encrypted, "the private key is encrypted"),
    ],
)
def test_unusable_files_are_reported_in_one_line_with_their_names(broken, words: str, made: Certificates) -> None:
    broken(made)
    with pytest.raises(SettingsError, match=words) as caught:
        Certificate(str(made.certificate), str(made.key))
    assert str(made.certificate) in caught.value.message
    assert "\n" not in caught.value.message


async def receive_all(stream: trio.abc.Stream) -> bytes:
    """Read to the end of `stream` and close it."""
    received = b""
    while data := await stream.receive_some(65_536):
        received += data
    await stream.aclose()
    return received


# --- dates


def issue(made: Certificates, start: datetime, end: datetime) -> None:
    """Write a certificate that is valid from `start` to `end`."""
    issued = made.authority.issue_cert("localhost", not_before=start, not_after=end)
    made.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    made.key.write_bytes(issued.private_key_pem.bytes())


@pytest.mark.spec("HTTP-81")
@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (2020, 2021, "expired at 2021-01-01 00:00:00 UTC; renew it"),
        (2090, 2091, "not valid before 2090-01-01 00:00:00 UTC"),
        (1960, 1970, "expired at 1970-01-01"),
    ],
)
def test_a_certificate_outside_its_dates_is_refused(start: int, end: int, words: str, made: Certificates) -> None:
    issue(made, datetime(start, 1, 1, tzinfo=UTC), datetime(end, 1, 1, tzinfo=UTC))
    with pytest.raises(SettingsError, match=words) as caught:
        Certificate(str(made.certificate), str(made.key))
    assert str(made.certificate) in caught.value.message


@pytest.mark.spec("HTTP-81")
def test_an_expired_certificate_leaves_the_old_one(made: Certificates) -> None:
    certificate = Certificate(str(made.certificate), str(made.key))
    before = certificate.context
    issue(made, datetime(2020, 1, 1, tzinfo=UTC), datetime(2021, 1, 1, tzinfo=UTC))
    with pytest.raises(SettingsError, match="expired"):
        certificate.reload()
    assert certificate.context is before


@pytest.mark.spec("HTTP-81")
@pytest.mark.parametrize("year", [1999, 2049, 2050, 2100])
def test_the_dates_of_both_forms_are_read(year: int, made: Certificates) -> None:
    start, end = datetime(1980, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    issue(made, start, end)
    assert read_dates(made.certificate.read_text(encoding="ascii")) == (start, end)
    assert Certificate(str(made.certificate), str(made.key), clock=lambda: start)
    assert Certificate(str(made.certificate), str(made.key), clock=lambda: end)


@pytest.mark.parametrize("cut", [0, 1, 4, 40, 200])
def test_a_certificate_that_is_cut_has_no_dates(cut: int, made: Certificates) -> None:
    der = ssl.PEM_cert_to_DER_cert(first_certificate(made))[:cut]
    with pytest.raises((ValueError, IndexError)):
        read_dates(ssl.DER_cert_to_PEM_cert(der))
