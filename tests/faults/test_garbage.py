"""Bytes that are not requests, and connections that are reset, while streams run: no bit of the streams changes."""

import random
import socket
import struct

import pytest
import trio

from tests.kit.http.gated_server import gated, gated_server
from tests.kit.http.http_calls import chat
from tests.kit.model.tiny_models import write_tiny_gguf
from tlserve.model.load import load_model

CHAT_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET " + b"/" * 100_000,
    CHAT_HEAD + b"Content-Length: -1\r\n\r\n",
    CHAT_HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    CHAT_HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    CHAT_HEAD + b"Content-Length: 1000000000\r\n\r\n{",
    CHAT_HEAD + b"Content-Length: 7\r\n\r\n\xff\xfe{\x00}\x00\x00",
    CHAT_HEAD + b"".join(b"X-%d: y\r\n" % i for i in range(300)) + b"\r\n",
    CHAT_HEAD + b"X-Request-Id: " + b"a" * 20_000 + b"\r\nContent-Length: 2\r\n\r\n{}",
    CHAT_HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
    b"\r\n" * 1000,
    b"\x00" * 4096,
]

BODIES = [
    {
        **chat(f"stream {i}", model="tiny", max_tokens=24, stream=True, seed=i, temperature=i % 2),
        "logprobs": True,
        "top_logprobs": 3,
    }
    for i in range(3)
]


async def throw(host, data, reset):
    """Write `data` on a new connection and close it, with a reset or after reading the answer."""
    stream = await host.raw()
    async with stream:
        try:
            await stream.send_all(data)
            if not reset:
                await stream.send_eof()
                while await stream.receive_some():
                    pass
        except trio.BrokenResourceError:
            return  # the server had answered and closed before all of it was written
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def choices(events):
    """Return an answer without its id and time."""
    return [chunk["choices"] for chunk in events if chunk != "[DONE]"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return load_model(write_tiny_gguf(tmp_path_factory.mktemp("garbage") / "tiny.gguf"))


@pytest.mark.spec("FAULT-9")
async def test_garbage_and_resets_change_no_bit_of_a_stream(tiny):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    async with gated_server(gated(tiny), "tiny") as host:
        host.gate.open_all()
        alone = [choices(await (await host.send(body)).events()) for body in BODIES]
    async with gated_server(gated(tiny), "tiny", http__max_connections=64) as host:
        streams = [await host.send(body) for body in BODIES]
        pieces = [*GARBAGE, *(chance.randbytes(chance.randrange(1, 2000)) for _ in range(10))]
        for piece in chance.sample(pieces, len(pieces)):
            await throw(host, piece, reset=chance.random() < 0.5)
            await host.step()
        host.gate.open_all()
        assert [choices(await stream.events()) for stream in streams] == alone
        assert host.backend.admitted == 0


@pytest.mark.spec("FAULT-9")
@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: repr(data[:24]))
async def test_garbage_is_refused_and_admits_nothing(data):
    async with gated_server() as host:
        await throw(host, data, reset=False)
        assert (host.backend.admitted, host.gate.steps) == (0, 0)
        assert (await host.get("/v1/models")).status == 200
