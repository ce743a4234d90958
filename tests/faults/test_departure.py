"""A client leaves, at every moment of its request and in every way: within a step the engine has nothing of it."""

import logging
import socket
import struct

import pytest

from tests.kit.http.gated_server import gated_server, until
from tests.kit.http.http_calls import chat, content_of

LONG = "x" * 100


async def close(client):
    await client.aclose()


async def half_close(client):
    client.stream.socket.shutdown(socket.SHUT_WR)


async def reset(client):
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await client.aclose()


WAYS = [close, half_close, reset]


def assert_nothing_is_left(host, *, running=0):
    now = host.statistics
    assert (now.queue_depth, now.active_sequences) == (0, running)
    assert now.finished_aborted_total == 1
    if not running:
        assert now.kv_used == 0


@pytest.mark.spec("CASE-32", "FAULT-1", "FAULT-12")
@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_the_queue_is_never_computed(leave, stream):
    async with gated_server(max_num_seqs=1) as host:
        first = await host.send(chat("a", max_tokens=3))
        await host.wait_step()
        leaver = await host.send(chat("x", max_tokens=50, stream=stream))
        await leave(leaver.client)
        await until(lambda: host.backend.admitted == 1)
        await host.pass_step()
        await host.step()  # the abort is a command: read at the next turn of the engine's loop, before its step
        assert_nothing_is_left(host, running=1)
        host.gate.open_all()
        assert (await first.document())["choices"][0]["message"]["content"] == "bcd"
        assert host.gate.steps == 3


@pytest.mark.spec("CASE-32", "FAULT-1")
@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_during_prefill_frees_its_blocks_within_a_chunk(leave, stream):
    async with gated_server(prefill_chunk=16, block_size=4) as host:
        leaver = await host.send(chat(LONG, max_tokens=50, stream=stream))
        await host.step()
        await host.wait_step()
        assert host.statistics.kv_used > 0
        await leave(leaver.client)
        await until(lambda: host.backend.admitted == 0)
        await host.pass_step()
        await until(lambda: host.statistics.finished_aborted_total)
        assert_nothing_is_left(host)
        assert host.gate.steps == 2


@pytest.mark.spec("CASE-32", "FAULT-1")
@pytest.mark.parametrize("leave", WAYS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_during_decoding_frees_its_blocks_within_a_step(leave, stream):
    async with gated_server(block_size=4) as host:
        leaver = await host.send(chat("a", max_tokens=50, stream=stream))
        for _ in range(3):
            await host.step()
        await host.wait_step()
        await leave(leaver.client)
        await until(lambda: host.backend.admitted == 0)
        await host.pass_step()
        await until(lambda: host.statistics.finished_aborted_total)
        assert_nothing_is_left(host)
        assert host.gate.steps == 4


async def test_a_client_that_leaves_is_logged_as_499_and_its_place_is_free(caplog):
    caplog.set_level(logging.INFO, "tlserve.request")
    async with gated_server(max_num_seqs=1, queue_capacity=0) as host:
        leaver = await host.send(chat("a", max_tokens=50, stream=True))
        await host.wait_step()
        await leaver.client.aclose()
        await until(lambda: host.backend.admitted == 0)
        follower = await host.send(chat("a", max_tokens=3))
        host.gate.open_all()
        assert (await follower.document())["choices"][0]["message"]["content"] == "bcd"
    assert [record.message.count(" status=499 ") for record in caplog.records] == [1, 0]


async def test_a_client_that_leaves_does_not_affect_other_answers():
    async with gated_server() as host:
        stayers = [await host.send(chat(text, max_tokens=6, stream=True)) for text in "adg"]
        leaver = await host.send(chat("x", max_tokens=50, stream=True))
        await host.step()
        await host.wait_step()
        await reset(leaver.client)
        await until(lambda: host.backend.admitted == 3)
        host.gate.open_all()
        assert [content_of(await stayer.events()) for stayer in stayers] == ["bcdefg", "efghij", "hijklm"]


@pytest.mark.spec("FAULT-1")
async def test_embeddings_of_a_client_that_left_are_not_continued():
    async with gated_server(max_num_seqs=1) as host:
        leaver = await host.send({"model": "succ", "input": ["a", "b", "c", "d"]}, "/v1/embeddings")
        await host.wait_step()
        await leaver.client.aclose()
        await until(lambda: host.backend.admitted == 0)
        await host.pass_step()
        await until(lambda: host.statistics.queue_depth == 0 and host.statistics.active_sequences == 0)
        assert host.gate.steps == 1


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_never_admitted():
    async with gated_server() as host:
        stream = await host.raw()
        await stream.send_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        await stream.aclose()
        assert (await host.get("/v1/models")).status == 200
        assert host.backend.admitted == 0
        assert host.gate.steps == 0
