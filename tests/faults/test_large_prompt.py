"""A megabyte of prompt: while it is read and encoded, other streams continue. Gates give the order, not time."""

import threading

import pytest
import trio

from tests.kit.http.gated_server import gated_server, until
from tests.kit.http.http_calls import chat, content_of, parse_events
from tests.kit.scripted_backend import INFO
from tlserve.text.byte_tokenizer import ByteTokenizer

MEGABYTE = "x" * (1 << 20)


class GatedTokenizer(ByteTokenizer):
    """A tokenizer that stops at large texts until the test lets it continue; a megabyte of them can be one token."""

    longest_token_bytes = len(MEGABYTE)

    def __init__(self):
        self.reached, self.go_on = threading.Event(), threading.Event()

    def encode(self, text):
        if len(text) > INFO.context_tokens:
            self.reached.set()
            assert self.go_on.wait(20)
        return super().encode(text)


@pytest.mark.spec("FAULT-10")
async def test_a_whole_stream_is_generated_while_a_megabyte_is_encoded(memory_api):
    tokenizer = GatedTokenizer()
    async with memory_api(tokenizer=tokenizer) as api, trio.open_nursery() as nursery:
        answers = []

        async def ask_much():
            answers.append(await api.ask(api.server.connect(), chat(MEGABYTE, max_tokens=3)))

        nursery.start_soon(ask_much)
        assert await trio.to_thread.run_sync(tokenizer.reached.wait, 20)
        beside = await api.ask(api.server.client, chat("a", max_tokens=20, stream=True))
        assert content_of(parse_events(beside.body)) == "bcdefghijklmnopqrstu"
        assert answers == []
        tokenizer.go_on.set()
        await until(lambda: answers)
        assert (answers[0].status, b"context_length_exceeded" in answers[0].body) == (400, True)


@pytest.mark.spec("FAULT-10")
async def test_many_large_prompts_wait_for_each_other_and_delay_no_other_request(memory_api):
    tokenizer = GatedTokenizer()
    async with memory_api(tokenizer=tokenizer) as api, trio.open_nursery() as nursery:
        statuses = []

        async def ask_much():
            statuses.append((await api.ask(api.server.connect(), chat(MEGABYTE, max_tokens=3))).status)

        for _ in range(8):
            nursery.start_soon(ask_much)
        assert await trio.to_thread.run_sync(tokenizer.reached.wait, 20)
        assert (await api.ask(api.server.client, chat("a", max_tokens=3))).status == 200
        assert statuses == []
        tokenizer.go_on.set()
    assert statuses == [400] * 8


async def test_a_large_prompt_of_a_client_that_left_is_not_admitted(memory_api):
    tokenizer = GatedTokenizer()
    async with memory_api(tokenizer=tokenizer) as api, trio.open_nursery() as nursery:
        client = api.server.connect()

        async def ask_much():
            await api.ask(client, chat(MEGABYTE, max_tokens=3))

        nursery.start_soon(ask_much)
        assert await trio.to_thread.run_sync(tokenizer.reached.wait, 20)
        nursery.cancel_scope.cancel()
        await client.disconnect()
        await until(lambda: [record.status for record in api.records] == [499])
        tokenizer.go_on.set()
    assert api.backend.requests == []


async def test_over_a_real_socket_a_stream_continues_while_megabytes_are_refused():
    async with gated_server() as host:
        stream = await host.send(chat("a", max_tokens=10, stream=True))
        for _ in range(5):
            large = await host.send(chat(MEGABYTE, max_tokens=3))
            await host.step()
            assert (await large.answer()).status == 400
        host.gate.open_all()
        assert content_of(await stream.events()) == "bcdefghijk"
