"""The official client's asynchronous side, which runs on asyncio."""

import asyncio
import time

import openai
import pytest

MESSAGES = [{"role": "user", "content": "a"}]
HAND = {"model": "succ", "messages": MESSAGES, "max_tokens": 3, "temperature": 0}


def run(server, ask):
    async def main():
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", max_retries=0) as client:
            return await ask(client)

    return asyncio.run(main())


async def joined(stream):
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def test_a_chat_answers_and_streams(succ_server):
    async def ask(client):
        whole = await client.chat.completions.create(**HAND)
        return whole.choices[0].message.content, await joined(await client.chat.completions.create(**HAND, stream=True))

    assert run(succ_server, ask) == ("bcd", "bcd")


def test_many_streams_at_once_each_get_their_own_answer(succ_server):
    async def ask(client):
        async def one(text):
            messages = [{"role": "user", "content": text}]
            return await joined(await client.chat.completions.create(**{**HAND, "messages": messages}, stream=True))

        return await asyncio.gather(*(one(chr(97 + i)) for i in range(20)))

    assert run(succ_server, ask) == ["".join(chr(98 + i + k) for k in range(3)) for i in range(20)]


def test_a_task_that_is_cancelled_leaves_the_server_free(succ_server):
    async def ask(client):
        stream = await client.chat.completions.create(**{**HAND, "max_tokens": 4000}, stream=True)
        task = asyncio.create_task(joined(stream))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await stream.close()
        return await client.chat.completions.create(**HAND)

    assert run(succ_server, ask).choices[0].message.content == "bcd"
    deadline = time.monotonic() + 10
    while succ_server.server.running.assembled.backend.admitted:
        assert time.monotonic() < deadline


def test_the_other_routes_answer(succ_server):
    async def ask(client):
        completion = await client.completions.create(model="succ", prompt="ab", max_tokens=2, temperature=0)
        embedding = await client.embeddings.create(model="succ", input="a")
        models = [model.id async for model in client.models.list()]
        return completion.choices[0].text, len(embedding.data), models

    assert run(succ_server, ask) == ("cd", 1, ["succ"])


def test_an_error_is_typed(succ_server):
    async def ask(client):
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(**{**HAND, "model": "nobody"})
        with pytest.raises(openai.UnprocessableEntityError):
            await client.chat.completions.create(**HAND, extra_body={"best_of": 2})

    run(succ_server, ask)
