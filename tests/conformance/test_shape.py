"""Options of answers, by the official client and real engines: several, logprobs, usage, stops, deadlines, progress."""

import json

import openai
import pytest

from tests.kit.http.http_calls import chat, post
from tlserve.testing import serve_in_thread

USER = [{"role": "user", "content": "Hello"}]
ASKED = {"model": "tiny", "messages": USER, "max_tokens": 12, "seed": 7}


@pytest.fixture
def client(tiny_server):
    with openai.OpenAI(base_url=tiny_server.base_url, api_key="none", max_retries=0) as client:
        yield client


def joined(chunks):
    """Return the content of each choice of a stream."""
    texts = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return [texts[index] for index in sorted(texts)]


# --- several answers


@pytest.mark.spec("API-60")
def test_several_answers_differ_and_the_first_equals_a_single_one(client):
    three = client.chat.completions.create(**ASKED, n=3)
    one = client.chat.completions.create(**ASKED)
    contents = [choice.message.content for choice in three.choices]
    assert ([choice.index for choice in three.choices], len(set(contents))) == ([0, 1, 2], 3)
    assert contents[0] == one.choices[0].message.content
    assert (three.usage.prompt_tokens, three.usage.completion_tokens) == (one.usage.prompt_tokens, 36)


@pytest.mark.spec("API-60")
def test_a_stream_of_several_answers_joins_to_the_whole_answers(client):
    whole = client.chat.completions.create(**ASKED, n=3)
    assert joined(client.chat.completions.create(**ASKED, n=3, stream=True)) == [
        choice.message.content for choice in whole.choices
    ]


# --- sampling


@pytest.mark.spec("API-61")
def test_a_bias_decides_and_a_penalty_keeps_from_repeating(client):
    def ids(**fields):
        answer = client.chat.completions.create(
            **ASKED, temperature=0, **fields, extra_body={"return_token_ids": True, "ignore_eos": True}
        )
        return answer.choices[0].model_extra["token_ids"]

    assert ids(logit_bias={"70": 100}) == [70] * 12
    assert len(set(ids(logit_bias={"70": 2}, frequency_penalty=2))) > len(set(ids(logit_bias={"70": 100})))
    assert 70 not in ids(logit_bias={"70": -100})


@pytest.mark.spec("API-63", "CASE-41")
def test_stops_wait_for_min_tokens(client):
    free = client.chat.completions.create(**ASKED, extra_body={"return_token_ids": True}).choices[0]
    stop = free.model_extra["token_ids"][2]
    soon = client.chat.completions.create(**ASKED, extra_body={"stop_token_ids": [stop]})
    late = client.chat.completions.create(**ASKED, extra_body={"stop_token_ids": [stop], "min_tokens": 9})
    assert (soon.choices[0].finish_reason, soon.usage.completion_tokens <= 3) == ("stop", True)
    assert late.usage.completion_tokens >= 10


# --- log-probabilities


@pytest.mark.spec("API-65")
def test_completions_have_logprobs_with_offsets_also_for_an_echoed_prompt(client):
    asked = {"model": "tiny", "prompt": "Hello é", "max_tokens": 8, "temperature": 0, "logprobs": 2}
    plain = client.completions.create(**asked).choices[0]
    echoed = client.completions.create(**asked, echo=True).choices[0]
    assert len(plain.logprobs.tokens) == len(plain.logprobs.text_offset) == 8
    assert all(2 <= len(top) <= 3 for top in plain.logprobs.top_logprobs)
    before = len(echoed.logprobs.tokens) - 8
    assert (echoed.logprobs.token_logprobs[0], echoed.logprobs.top_logprobs[0]) == (None, None)
    assert echoed.logprobs.token_logprobs[before:] == plain.logprobs.token_logprobs
    assert [place - len("Hello é") for place in echoed.logprobs.text_offset[before:]] == plain.logprobs.text_offset
    streamed = [chunk.choices[0] for chunk in client.completions.create(**asked, echo=True, stream=True)]
    parts = [choice.logprobs for choice in streamed if choice.logprobs]
    assert [value for part in parts for value in part.token_logprobs] == echoed.logprobs.token_logprobs
    assert "".join(choice.text for choice in streamed) == echoed.text


@pytest.mark.spec("API-66")
def test_the_logprobs_of_a_prompt_are_those_of_its_echo(client):
    asked = {"model": "tiny", "prompt": "Hello é", "max_tokens": 1, "temperature": 0}
    echoed = client.completions.create(**asked, echo=True, logprobs=0).choices[0].logprobs.token_logprobs
    answer = client.completions.create(**asked, extra_body={"prompt_logprobs": 1, "return_token_ids": True}).choices[0]
    ids, entries = answer.model_extra["prompt_token_ids"], answer.model_extra["prompt_logprobs"]
    own = [entry and entry[str(token)]["logprob"] for token, entry in zip(ids, entries, strict=True)]
    assert own == echoed[:-1]


@pytest.fixture(scope="module")
def smol_server(smol_path):
    with serve_in_thread(smol_path) as server:
        yield server


@pytest.mark.spec("CASE-10", "API-64")
def test_a_real_models_emojis_have_the_raw_bytes_of_their_tokens(smol_server):
    """Each of its emojis takes several tokens."""
    asked = {
        "model": "smol-135m",
        "messages": [{"role": "user", "content": "Repeat exactly: 👩‍👩‍👧 漢字 é"}],
        "max_tokens": 24,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 5,
    }
    with openai.OpenAI(base_url=smol_server.base_url, api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, stream=True))
    choice, entries = whole.choices[0], whole.choices[0].logprobs.content
    data = bytes(byte for entry in entries for byte in entry.bytes)
    assert "👩" in choice.message.content
    assert data.decode(errors="replace") == choice.message.content
    assert len(entries) == whole.usage.completion_tokens - (choice.finish_reason == "stop")
    assert len(entries) > len(choice.message.content) / 2
    assert all(entry.token and entry.bytes != [239, 191, 189] for entry in entries)
    assert all(top.bytes and top.token for entry in entries for top in entry.top_logprobs)
    streamed = [entry for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert [(entry.bytes, entry.logprob) for entry in streamed] == [(entry.bytes, entry.logprob) for entry in entries]
    assert joined(chunks) == [choice.message.content]


# --- usage


@pytest.mark.spec("API-68")
def test_a_stream_reports_its_growing_usage(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    whole = client.chat.completions.create(**ASKED, n=2)
    chunks = list(client.chat.completions.create(**ASKED, n=2, stream=True, stream_options=options))
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert (counts[0], counts == sorted(counts), chunks[-1].choices) == (0, True, [])
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == 0


# --- time


@pytest.mark.spec("API-138")
def test_a_deadline_is_an_error_of_the_server_with_its_code(client):
    endless = {**ASKED, "max_tokens": None, "extra_body": {"ignore_eos": True}}
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**endless, extra_headers={"X-TL-Deadline-Ms": "1"})
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")


@pytest.mark.spec("API-139")
def test_the_official_client_ignores_progress(client, tiny_server):
    asked = {**ASKED, "messages": [{"role": "user", "content": "Hello " * 40}]}
    plain = joined(client.chat.completions.create(**asked, stream=True))
    told = joined(client.chat.completions.create(**asked, stream=True, extra_headers={"X-TL-Progress": "1"}))
    assert told == plain
    body = chat("Hello " * 40, model="tiny", max_tokens=3, stream=True, cache_salt="never seen")
    raw = post(tiny_server.address, "/v1/chat/completions", body, X_TL_Progress="1").body.decode()
    comments = [block for block in raw.split("\n\n") if block.startswith(":")]
    assert all(comment.startswith(": progress ") for comment in comments)
    assert json.loads(raw.split("data: ")[1])["choices"][0]["delta"]["role"] == "assistant"
