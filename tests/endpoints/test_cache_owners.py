"""Which keys find each other's prompts in the cache, on one engine and through a head."""

import json
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kit.engine.hash_backend import HashBackend
from tests.kit.fleet.fake_node import fake_fleet
from tests.kit.http.guarded_api import RIGHT, guarded

OTHER = "sk-other-0123456789"
OTHERS = ("Authorization", f"Bearer {OTHER}")
PROMPT = "the password is on the yellow note under the keyboard"


@asynccontextmanager
async def one_engine(nursery):
    backend = HashBackend()
    await nursery.start(backend.run)
    yield backend


@asynccontextmanager
async def a_fleet(_):
    async with fake_fleet(2) as fleet:
        yield fleet.heads[0]


async def ask(api, key, **fields: Any):
    """Return the answer's text and its cached tokens."""
    body = {"model": "succ", "prompt": PROMPT, "max_tokens": 5, "seed": 3, **fields}
    answer = await api.ask("POST", "/v1/completions", key, body=body)
    assert answer.status == 200, answer.body
    document = json.loads(answer.body)
    return document["choices"][0]["text"], document["usage"]["prompt_tokens_details"]["cached_tokens"]


both = pytest.mark.parametrize("backend", [one_engine, a_fleet])


@pytest.mark.spec("ACC-60")
@both
async def test_a_key_finds_its_own_prompts_and_no_others(backend, nursery, autojump_clock):
    async with backend(nursery) as served, guarded(served={"backend": served}, others=[OTHER]) as api:
        first, cached = await ask(api, RIGHT)
        assert cached == 0
        assert await ask(api, OTHERS) == (first, 0)
        assert await ask(api, RIGHT) == (first, 48)
        assert await ask(api, OTHERS) == (first, 48)
        assert await ask(api, OTHERS, cache_salt="2:ci") == (first, 0)


@pytest.mark.spec("ACC-60")
@both
async def test_keys_share_the_cache_where_the_operator_says_so(backend, nursery, autojump_clock):
    async with (
        backend(nursery) as served,
        guarded(served={"backend": served}, others=[OTHER], share_cache=True) as api,
    ):
        first, cached = await ask(api, RIGHT)
        assert cached == 0
        assert await ask(api, OTHERS) == (first, 48)
        assert await ask(api, OTHERS, cache_salt="mine") == (first, 0)
