"""GET /props and /tokenizer_info, POST /apply-template."""

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.kit.http.guarded_api import guarded
from tests.kit.scripted_backend import ScriptedBackend
from tlserve.chat.templates.template import Template
from tlserve.endpoints.query import MOST_PARAMETERS
from tlserve.sampling_params import SamplingParams
from tlserve.text.byte_tokenizer import ByteTokenizer

# The answer of llama.cpp's server (b11434) to GET /props, its template cut.
LLAMA_PROPS = json.loads(Path(__file__).with_name("llama_props.json").read_text())
TURNS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
TEMPLATE = Template.parse(TURNS + "{% if add_generation_prompt %}[answer]{% endif %}")
NAMES = ("/props", "/tokenizer_info")


class MarkedTokenizer(ByteTokenizer):
    """A byte tokenizer in which the ids 1 and 2 are "<s>", which begins every prompt, and "</s>"."""

    bos_id = 1
    eos_id = 2
    add_bos = True
    special_tokens = MappingProxyType({"</s>": 2, "<s>": 1})

    def token_spelling(self, token: int) -> bytes:
        return {1: b"<s>", 2: b"</s>"}.get(token) or super().token_spelling(token)

    def encode_with_specials(self, text: str, *, origin: str = "") -> list[int]:
        return [1, *self.encode(text[3:])] if text.startswith("<s>") else self.encode(text)


def kinds(value: Any) -> Any:
    """Return the types of all members, numbers as one type."""
    if isinstance(value, dict):
        return {name: kinds(member) for name, member in value.items()}
    return "number" if type(value) in (int, float) else type(value).__name__


@pytest.mark.spec("API-200")
async def test_props_have_the_names_and_types_of_llama_cpp(open_api) -> None:
    sampling = SamplingParams(temperature=0.5, samplers=("typical_p",), penalty_last_n=7)
    async with open_api(tokenizer=MarkedTokenizer(), template=TEMPLATE, default_sampling=sampling) as api:
        document = json.loads((await api.get("/props")).body)
    own, theirs = kinds(document), kinds(LLAMA_PROPS)
    settings, their_settings = (each["default_generation_settings"].pop("params") for each in (own, theirs))
    assert {name: theirs[name] for name in own} == own
    assert {name: their_settings[name] for name in settings} == settings
    params = document["default_generation_settings"]["params"]
    assert document["default_generation_settings"]["n_ctx"] == 64
    assert (params["temperature"], params["repeat_last_n"]) == (0.5, 7)
    assert params["samplers"] == ["penalties", "dry", "typ_p"]
    assert (document["bos_token"], document["eos_token"]) == ("<s>", "</s>")
    assert document["chat_template"] == TEMPLATE.source
    assert document["model_path"] == "succ"


@pytest.mark.spec("API-200")
async def test_a_template_for_tools_is_in_the_props(open_api) -> None:
    template = Template(TEMPLATE.source, TEMPLATE._compiled, TEMPLATE.variables, Template.parse("{{ tools }}"))
    async with open_api(template=template) as api:
        document = json.loads((await api.get("/props")).body)
    assert document["chat_template_tool_use"] == "{{ tools }}"


@pytest.mark.spec("API-200")
async def test_an_encoder_has_props_without_a_template(open_api) -> None:
    async with open_api(generates=False) as api:
        document = json.loads((await api.get("/props")).body)
        info = json.loads((await api.get("/tokenizer_info")).body)
    assert document["chat_template"] == ""
    assert "chat_template" not in info


@pytest.mark.spec("API-200")
async def test_the_tokenizer_has_the_names_of_its_configuration(open_api) -> None:
    async with open_api(tokenizer=MarkedTokenizer(), template=TEMPLATE) as api:
        document = json.loads((await api.get("/tokenizer_info")).body)
    assert document == {
        "tokenizer_class": "MarkedTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos_token": True,
        "add_eos_token": False,
        "model_max_length": 64,
        "added_tokens_decoder": {"2": "</s>", "1": "<s>"},
        "chat_template": TEMPLATE.source,
    }


@pytest.mark.spec("API-200")
@pytest.mark.parametrize("path", NAMES)
async def test_the_query_names_the_model(open_api, path: str) -> None:
    many = "&".join(f"x{number}=1" for number in range(MOST_PARAMETERS + 1))
    async with open_api(aliases=("org/succ",)) as api:
        named = await api.get(f"{path}?model=org%2Fsucc&zz=1")
        unknown = await api.get(f"{path}?model=other")
        crowded = await api.get(f"{path}?{many}")
    assert (named.status, named.headers.get("x-tl-ignored")) == (200, "zz")
    assert (unknown.status, json.loads(unknown.body)["error"]["code"]) == (404, "model_not_found")
    assert crowded.status == 400


@pytest.mark.spec("ACC-44")
@pytest.mark.parametrize("path", NAMES)
async def test_the_properties_of_a_model_need_a_key(path: str) -> None:
    async with guarded() as api:
        assert (await api.server.client.request("GET", path, ())).status == 401


@pytest.mark.spec("API-201")
async def test_the_text_of_a_template_is_the_prompt_of_the_same_chat(open_api) -> None:
    backend = ScriptedBackend()
    messages = [{"role": "user", "content": "Hi"}]
    async with open_api(backend, tokenizer=MarkedTokenizer(), template=TEMPLATE) as api:
        answer = await api.post("/apply-template", {"messages": messages, "zz": 1})
        await api.chat("Hi")
        text = json.loads(answer.body)["prompt"]
        await api.post("/v1/completions", {"prompt": text})
    assert text == "[user]Hi[answer]"
    assert answer.headers.get("x-tl-ignored") == "zz"
    chat, completion = backend.requests
    assert chat.prompt == completion.prompt == (1, *b"[user]Hi[answer]")


@pytest.mark.spec("API-201")
async def test_the_text_of_a_template_follows_the_options_of_the_chat(open_api) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well"}]
    async with open_api(template=TEMPLATE) as api:
        plain = await api.post("/apply-template", {"messages": messages, "add_generation_prompt": False})
        open_end = await api.post("/apply-template", {"messages": messages, "continue_final_message": True})
        empty = await api.post("/apply-template", {"messages": []})
    assert json.loads(plain.body) == json.loads(open_end.body) == {"prompt": "[user]Hi[assistant]Well"}
    assert (empty.status, json.loads(empty.body)["error"]["param"]) == (400, "messages")


@pytest.mark.spec("API-201", "API-44")
async def test_an_encoder_has_no_template_to_apply(open_api) -> None:
    async with open_api(generates=False) as api:
        answer = await api.post("/apply-template", {"messages": [{"role": "user", "content": "a"}]})
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (422, "model")
