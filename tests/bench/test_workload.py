"""The sent prompts: new for every cache, with a shared prefix, with lengths in words or in exact tokens."""

import json
import random

import pytest

from tlserve.bench.exact_prompts import exact_prompt
from tlserve.bench.workload import Workload
from tlserve.errors import OperatorError


def messages(workload, prompt="x"):
    return json.loads(workload.body("m", prompt))["messages"]


@pytest.mark.spec("BENCH-3")
def test_prompts_are_new_each_time_and_the_same_for_the_same_seed():
    prompts = Workload(prompt_words=8).prompts(1, 20)
    assert len(set(prompts)) == 20
    assert {len(prompt.split()) for prompt in prompts} == {8}
    assert prompts == Workload(prompt_words=8).prompts(1, 20)
    assert prompts != Workload(prompt_words=8).prompts(2, 20)


def test_a_request_is_a_greedy_stream_of_an_exact_length_with_usage():
    body = json.loads(Workload(output_tokens=7).body("m", "hello"))
    assert body["model"] == "m"
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (7, True, 0)
    assert body["stream"]
    assert body["stream_options"] == {"include_usage": True}


def test_every_request_begins_with_the_shared_words_if_there_are_any():
    shared = Workload(shared_words=256)
    system, user = messages(shared, "one")
    assert system["role"] == "system"
    assert len(system["content"].split()) == 256
    assert user == {"role": "user", "content": "one"}
    assert messages(shared, "two")[0] == system
    assert len(messages(Workload())) == 1


@pytest.mark.spec("BENCH-4")
@pytest.mark.parametrize("per_word", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 2, 7, 100])
async def test_an_exact_prompt_has_exactly_the_requested_number_of_tokens(per_word, tokens):
    async def count(text):
        """Count every filler as one token and every other word as `per_word`."""
        return sum(1 if word == "a" else per_word for word in text.split())

    assert await count(await exact_prompt(random.Random(0), tokens, count)) == tokens


@pytest.mark.spec("BENCH-4")
async def test_a_number_of_tokens_that_no_text_has_is_refused():
    async def count(text):
        return 2 * len(text.split())

    with pytest.raises(OperatorError, match="no words of exactly 7"):
        await exact_prompt(random.Random(0), 7, count)


@pytest.mark.parametrize("tokens", [1, 2, 3, 50, 51, 52, 53])
async def test_an_exact_prompt_is_found_where_every_byte_is_a_token(tokens):
    async def count(text):
        return len(text.encode())

    assert len(await exact_prompt(random.Random(tokens), tokens, count)) == tokens


async def test_exact_prompts_differ():
    async def count(text):
        return len(text.split())

    source = random.Random(5)
    assert len({await exact_prompt(source, 8, count) for _ in range(20)}) == 20
