"""A Hugging Face directory behind the whole server: its template, its ends, and its default sampling."""

import json
import logging
import shutil

import pytest

import tlserve.testing
from tests.kit.http.http_calls import chat, post
from tests.kit.model.golden_kin import KIN, kin_cases, write_kin
from tlserve.config.settings import EngineSettings, SamplingSettings
from tlserve.programs.hosted_model import default_sampling
from tlserve.programs.local_models import load
from tlserve.sampling_params import SamplingParams

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.fixture
def qwen2(tmp_path):
    """Return a tiny qwen2 with the tokenizer of its family."""
    directory = write_kin(tmp_path / "tiny-qwen", kin_cases()["qwen2"])
    shutil.copy(KIN.parent / "tokenizers" / "qwen2.json", directory / "tokenizer.json")
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    (directory / "generation_config.json").write_text(json.dumps({"do_sample": False, "typical_p": 0.9}))
    return directory


def answer(server, **request):
    reply = post(server.address, "/v1/chat/completions", chat("hello", max_tokens=12, model="tiny-qwen", **request))
    assert reply.status == 200, reply.json
    return reply.json["choices"][0]["message"]["content"], reply.json["usage"]["prompt_tokens"]


def test_a_hugging_face_directory_answers_greedily_as_its_makers_advise(qwen2):
    with tlserve.testing.serve_in_thread(str(qwen2)) as server:
        first = answer(server, seed=1, temperature=None)
        assert answer(server, seed=2, temperature=None) == first == answer(server, seed=3, temperature=0)
        assert answer(server, seed=1, temperature=2) != answer(server, seed=2, temperature=2)
        assert first[1] > 5


@pytest.mark.spec("SET-22")
def test_the_operator_wins_over_the_makers_and_the_request_over_both(qwen2):
    hot = {"engine.sampling.temperature": "2", "engine.sampling.top_k": "0"}
    with tlserve.testing.serve_in_thread(str(qwen2), settings=hot) as server:
        assert answer(server, seed=1, temperature=None) != answer(server, seed=2, temperature=None)
        assert answer(server, seed=1, temperature=0) == answer(server, seed=2, temperature=0)


@pytest.mark.spec("SET-22")
def test_each_value_is_the_operators_or_that_of_the_makers():
    makers = SamplingParams(temperature=0.6, top_p=0.9, top_k=20, repetition_penalty=1.1)
    assert default_sampling(SamplingSettings(), makers) == makers
    operator = SamplingSettings(temperature=0.0, min_p=0.1, presence_penalty=0.5)
    assert default_sampling(operator, makers) == SamplingParams(
        temperature=0, top_p=0.9, top_k=20, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.5
    )


@pytest.mark.spec("MOD-51")
def test_an_unsupported_default_is_in_the_log(qwen2, caplog):
    with caplog.at_level(logging.WARNING, "tlserve"):
        load(EngineSettings(model_dir=str(qwen2), threads=1))
    messages = [record.getMessage() for record in caplog.records if record.name == "tlserve"]
    assert messages == [
        "tiny-qwen: generation_config.json asks for typical_p 0.9, which is not served: answers are sampled without it"
    ]
