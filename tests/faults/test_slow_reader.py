"""A client that does not read: it is cut after the write time, and no other client notices."""

import json
import socket

import pytest
import trio
from trio.testing import MockClock

from tests.kit.http.gated_server import CHAT, gated_server, until
from tests.kit.http.http_calls import chat, content_of, parse_events
from tests.kit.scripted_backend import Script
from tlserve.config.tables.network import HttpSettings


def request_bytes(body):
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(data), data)


@pytest.mark.spec("FAULT-2")
async def test_a_reader_that_never_reads_is_cut_after_the_write_time_and_others_finish(
    memory_api, autojump_clock: MockClock
) -> None:
    http = HttpSettings(write_timeout_ms=7000)
    async with memory_api(Script(token_s=1.0), http) as api:
        deaf = api.server.connect_raw(lockstep=True)
        begin = trio.current_time()
        await deaf.send_all(request_bytes(chat("a", max_tokens=30, stream=True)))
        answer = await api.ask(api.server.client, chat("a", max_tokens=20, stream=True))
        assert content_of(parse_events(answer.body)) == "bcdefghijklmnopqrstu"
        assert trio.current_time() - begin == 19
        assert (api.backend.counts.aborted, api.backend.counts.open) == (1, 0)
        assert [record.status for record in api.records] == [499, 200]
        assert api.records[0].total_ms == 7000


@pytest.mark.spec("FAULT-2")
async def test_a_reader_that_never_reads_is_cut_over_a_real_socket_and_frees_its_place() -> None:
    async with gated_server(http__write_timeout_ms=100) as host:
        host.gate.open_all()
        deaf = trio.socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with deaf:
            name, _, port = host.server.address.partition(":")
            await deaf.connect((name, int(port)))
            heavy = {**chat("a", max_tokens=4000, stream=True), "logprobs": True, "top_logprobs": 20}
            await trio.SocketStream(deaf).send_all(request_bytes(heavy))
            await until(lambda: host.backend.admitted == 1)
            beside = await host.send(chat("a", max_tokens=3, stream=True))
            assert content_of(await beside.events()) == "bcd"
            await until(lambda: host.backend.admitted == 0)
            await until(lambda: (host.statistics.active_sequences, host.statistics.kv_used) == (0, 0))
