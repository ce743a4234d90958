"""The official ollama client as it is used: chats and texts, whole and streamed, vectors, models, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ollama
import pytest

USER_A = [{"role": "user", "content": "a"}]
SURE = {"temperature": 0, "num_predict": 3}


@pytest.fixture(scope="module")
def client(succ_server: Any) -> Iterator[ollama.Client]:
    with ollama.Client(host=f"http://{succ_server.address}") as client:
        yield client


@pytest.mark.spec("OLL-1", "OLL-2")
@pytest.mark.parametrize("name", ["succ", "succ:latest"])
def test_a_chat_answers(client: ollama.Client, name: str) -> None:
    answer = client.chat(model=name, messages=USER_A, options=SURE)
    assert (answer.message.content, answer.done, answer.done_reason) == ("bcd", True, "length")
    assert (answer.prompt_eval_count, answer.eval_count) == (1, 3)
    assert (answer.total_duration or 0) >= (answer.eval_duration or 0) > 0


@pytest.mark.spec("OLL-3")
def test_a_chat_streams_lines(client: ollama.Client) -> None:
    parts = list(client.chat(model="succ", messages=USER_A, options=SURE, stream=True))
    assert "".join(part.message.content or "" for part in parts) == "bcd"
    assert [part.done for part in parts] == [False, False, False, True]
    assert (parts[-1].done_reason, parts[-1].eval_count) == ("length", 3)


@pytest.mark.spec("OLL-4")
@pytest.mark.parametrize("raw", [False, True])
def test_a_text_is_continued(client: ollama.Client, raw: bool) -> None:
    answer = client.generate(model="succ", prompt="a", options=SURE, raw=raw)
    streamed = client.generate(model="succ", prompt="a", options=SURE, raw=raw, stream=True)
    assert (answer.response, "".join(part.response for part in streamed)) == ("bcd", "bcd")


@pytest.mark.spec("OLL-5")
def test_a_request_without_a_prompt_says_that_the_model_is_loaded(client: ollama.Client) -> None:
    assert client.generate(model="succ").done_reason == "load"
    assert client.chat(model="succ", messages=[]).done_reason == "load"


@pytest.mark.spec("OLL-6")
def test_texts_become_vectors(client: ollama.Client) -> None:
    both = client.embed(model="succ", input=["a", "b"]).embeddings
    assert len(both) == 2
    assert list(client.embeddings(model="succ", prompt="a").embedding) == list(both[0])


@pytest.mark.spec("OLL-7")
def test_models_are_listed_and_shown(client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["succ:latest"]
    assert [model.model for model in client.ps().models] == ["succ:latest"]
    shown = client.show("succ:latest")
    assert "completion" in (shown.capabilities or [])


@pytest.mark.spec("OLL-8")
@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "nothing"}, 404, "nothing"),
        ({"options": {"temperature": 9}}, 400, "options.temperature"),
        ({"options": {"mirostat": 3}}, 400, "options.mirostat"),
        ({"messages": [{"role": "user", "content": "a", "images": [b"x"]}]}, 422, "messages[0].images"),
        ({"think": True}, 422, "think"),
        ({"keep_alive": 0}, 422, "keep_alive"),
    ],
)
def test_errors_name_the_field(client: ollama.Client, fields: Any, status: int, words: str) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(**{"model": "succ", "messages": USER_A, **fields})
    assert caught.value.status_code == status
    assert words in caught.value.error
