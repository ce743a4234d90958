"""/metrics through Prometheus' own parser, before, during and after every kind of fault."""

import json

import pytest

from tests.kit.http.gated_server import CHAT, gated_server, until
from tests.kit.http.http_calls import chat

ODD = ['a"b', "a\\b", "a\nb", "a{b}=c", "ä€😀", "\x00", "x" * 5000, "tl_engine:x"]


def counters(samples):
    return {name: value for name, value in samples.items() if "_total" in name.partition("{")[0]}


def assert_never_fell(before, after):
    assert {name for name, value in counters(before).items() if after[name] < value} == set()


def requests(samples, **labels):
    """Return how many requests ended with all of `labels`."""
    wanted = [f"{name}={value!r}" for name, value in labels.items()]
    series = [name for name in samples if name.startswith("tl_http_requests_total{")]
    return sum(samples[name] for name in series if all(label in name for label in wanted))


@pytest.mark.spec("CASE-35", "FAULT-11", "TEL-5", "FAULT-17")
async def test_every_scrape_is_well_formed_and_the_finishes_are_the_requests():
    async with gated_server(max_num_seqs=1, queue_capacity=1) as host:
        before = await host.metrics()
        assert requests(before) == 0
        running = await host.send(chat("a", max_tokens=3))
        await host.step()
        during = await host.metrics()
        assert (during["tl_engine_active_sequences{}"], during["tl_engine_kv_blocks{state='used'}"]) == (1, 1)
        leaver = await host.send(chat("a", max_tokens=3, stream=True))
        assert (await (await host.send(chat("a", max_tokens=3))).answer()).status == 429
        await leaver.client.aclose()
        await until(lambda: host.backend.admitted == 1)
        host.gate.open_all()
        assert (await running.answer()).status == 200
        stopped = await host.send(chat("a", max_tokens=3000, stop="d"))
        assert (await stopped.document())["choices"][0]["finish_reason"] == "stop"
        embedded = await host.send({"model": "succ", "input": ["a", "b"]}, "/v1/embeddings")
        assert (await embedded.answer()).status == 200
        await until(lambda: host.statistics.active_sequences == 0)
        after = await host.metrics()
        for earlier, later in ((before, during), (during, after)):
            assert_never_fell(earlier, later)
            assert set(earlier) <= set(later)
        assert after["tl_engine_kv_blocks{state='used'}"] == 0
        assert requests(after) == 5
        assert requests(after, status="200", finish="length") == 1
        assert requests(after, status="200", finish="stop") == 1
        assert requests(after, status="200", finish="", route="/v1/embeddings") == 1
        assert requests(after, status="499", finish="") == 1
        assert requests(after, status="429", finish="") == 1


@pytest.mark.spec("CASE-35", "FAULT-17")
async def test_a_thousand_names_of_models_and_odd_texts_create_no_series():
    async with gated_server() as host:
        host.gate.open_all()
        async with await host.connect() as client:

            async def ask(model):
                body = json.dumps({**chat("a", max_tokens=1), "model": model}).encode()
                return (await client.request("POST", CHAT, (), body)).status

            assert await ask("succ") == 200
            assert await ask("unknown") == 404
            one = await host.metrics()
            assert {await ask(f"model-{i}") for i in range(1000)} == {404}
            assert {await ask(name) for name in ODD} == {404}
            for path in ("/%22%0A", "/v1/models/%5C%22%0A", "/metrics%7B"):
                await client.request("GET", path)
            for method in ("BREW", "X" * 200):
                assert (await client.request(method, "/v1/models")).status == 405
            many = await host.metrics()
        fresh = set(many) - set(one)
        assert {name.partition("{")[0] for name in fresh} <= {"tl_http_requests_total"}
        assert len(fresh) <= 3  # the routes, methods and statuses of the three paths and the two methods
        assert_never_fell(one, many)
