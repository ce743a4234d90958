"""One request against servers that answer well, badly, and not at all: every outcome has a name."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from tlserve.bench.asking import ask
from tlserve.bench.discover import with_model
from tlserve.bench.exact_prompts import count_tokens
from tlserve.bench.samples import Failure, Sample
from tlserve.bench.target import parse_target
from tlserve.config.tables.network import HttpSettings
from tlserve.errors import OperatorError
from tlserve.http.messages import Response
from tlserve.http.server import Server
from tlserve.http.sockets.listener import bound_addresses, open_listeners
from tlserve.http.sse import DONE, event

TEXT = event('{"choices":[{"delta":{"content":"x"}}]}')
ROLE = event('{"choices":[{"delta":{"role":"assistant","content":""}}]}')
USAGE = event('{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}')


@asynccontextmanager
async def target_of(handler):
    """Serve `handler` on a real socket and give the target."""
    listeners = await open_listeners("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        server = Server(HttpSettings(), handler)
        await nursery.start(server.serve, listeners)
        yield parse_target(f"http://{bound_addresses(listeners)[0]}/some/path", name="t", model="m", api_key="k")
        server.cut()


async def outcome_of(*events, status=200, cut=False, limit_s=30.0):
    async def handler(request, responder):
        await request.read_body()
        assert request.path == "/some/path/v1/chat/completions"
        assert request.headers.get("authorization") == "Bearer k"
        if status != 200:
            await responder.send(Response(status, b"no room"))
            return
        async with responder.stream(200) as body:
            for data in events:
                await body.send(data)
            if cut:
                raise RuntimeError("the server breaks off")

    async with target_of(handler) as target:
        return await ask(target, b"{}", limit_s=limit_s)


async def test_a_whole_answer_is_timed_and_its_usage_is_used():
    outcome = await outcome_of(ROLE, TEXT, TEXT + TEXT, USAGE, DONE)
    assert isinstance(outcome, Sample)
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.counted) == (9, 5, True)
    assert outcome.due_s < outcome.first_token_s <= outcome.last_token_s <= outcome.ended_s


async def test_an_event_that_is_split_anywhere_is_read_completely():
    stream = ROLE + TEXT + b": ping\n\n" + TEXT + USAGE + DONE
    outcome = await outcome_of(*(stream[place : place + 1] for place in range(len(stream))))
    assert outcome.output_tokens == 5


@pytest.mark.spec("BENCH-12")
async def test_without_usage_the_pieces_are_counted():
    outcome = await outcome_of(ROLE, TEXT, TEXT, TEXT, DONE)
    assert (outcome.output_tokens, outcome.counted) == (3, False)


async def test_reasoning_is_also_text():
    thought = event('{"choices":[{"delta":{"reasoning_content":"hm"}}]}')
    assert (await outcome_of(thought, TEXT, DONE)).output_tokens == 2


@pytest.mark.spec("BENCH-11")
@pytest.mark.parametrize(
    ("events", "options", "kind"),
    [
        ((), {"status": 429}, "status 429"),
        ((ROLE, DONE), {}, "empty answer"),
        ((TEXT, event('{"error":{"message":"lost"}}'), DONE), {}, "error event"),
        ((TEXT,), {"cut": True}, "broken"),
        ((b"data: not JSON\n\n",), {}, "broken"),
    ],
)
@pytest.mark.filterwarnings("ignore")
async def test_every_failure_has_a_kind(events, options, kind):
    outcome = await outcome_of(*events, **options)
    assert isinstance(outcome, Failure)
    assert outcome.kind == kind


async def test_a_missing_server_is_a_failure_to_connect():
    listeners = await open_listeners("127.0.0.1:0")
    address = bound_addresses(listeners)[0]
    for listener in listeners:
        await listener.aclose()
    outcome = await ask(parse_target(f"http://{address}", name="t"), b"{}", limit_s=30)
    assert outcome.kind == "connect"


async def test_a_late_answer_is_a_failure():
    async def never(request, responder):
        await trio.sleep_forever()

    async with target_of(never) as target:
        assert (await ask(target, b"{}", limit_s=0.05)).kind == "timeout"


async def say(body, status, request, responder):
    await request.read_body()
    await responder.send(Response(status, body))


@pytest.mark.spec("BENCH-10")
async def test_the_first_listed_model_is_used():
    async with target_of(partial(say, b'{"data":[{"id":"one"},{"id":"two"}]}', 200)) as target:
        assert (await with_model(target)).model == "m", "a model that was named stays"
        unnamed = parse_target(target.url, name="t")
        assert (await with_model(unnamed)).model == "one"


@pytest.mark.parametrize(("body", "status"), [(b"{}", 404), (b"{}", 200), (b'{"data":[]}', 200), (b"<html>", 200)])
async def test_a_server_without_models_or_counts_is_refused_with_the_remedy(body, status):
    async with target_of(partial(say, body, status)) as target:
        with pytest.raises(OperatorError, match=r"name (its model|one)"):
            await with_model(parse_target(target.url, name="t"))
        with pytest.raises(OperatorError, match="number of words"):
            await count_tokens(target, "text")
