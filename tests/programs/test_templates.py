"""The chat template of a model, behind the whole server: its own one, one for tools, one from the settings, or none."""

import logging

import pytest

import tlserve.testing
from tests.kit.http.http_calls import chat, post
from tests.kit.model.tiny_models import write_tiny_gguf
from tlserve.errors import SettingsError

HERMES = (
    "{{ tools | tojson }}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "f", "description": "A tool.", "parameters": {"type": "object"}}}


def prompt_tokens(server, **fields):
    reply = post(server.address, "/v1/chat/completions", chat("Hi", max_tokens=1, **fields))
    assert reply.status == 200, reply.json
    return reply.json["usage"]["prompt_tokens"]


@pytest.mark.spec("MOD-97")
def test_the_template_for_tools_renders_them_and_decides_the_dialect(tmp_path, caplog):
    path = write_tiny_gguf(tmp_path / "two.gguf", tool_template=HERMES)
    with caplog.at_level(logging.INFO, "tlserve"), tlserve.testing.serve_in_thread(str(path)) as server:
        counts = [prompt_tokens(server, model="two", **tools) for tools in ({}, {"tools": [TOOL]})]
    assert counts[0] + 50 < counts[1]
    assert any("dialect hermes" in record.getMessage() for record in caplog.records)


@pytest.mark.spec("MOD-98")
def test_a_model_without_a_template_says_how_turns_are_written_and_what_to_do(tmp_path, caplog):
    path = write_tiny_gguf(tmp_path / "base.gguf", chat_template="")
    with caplog.at_level(logging.WARNING, "tlserve"), tlserve.testing.serve_in_thread(str(path)) as server:
        assert prompt_tokens(server, model="base") == len("<|user|>\nHi\n<|assistant|>\n")
    (warning,) = [record.getMessage() for record in caplog.records if "chat template" in record.getMessage()]
    assert all(part in warning for part in ("base: ", "<|role|>", "engine.chat_template", "/v1/completions"))


@pytest.mark.spec("MOD-98")
@pytest.mark.parametrize("own", ["", "{{ 'x' * 100 }}"], ids=["no template", "another template"])
def test_a_template_in_the_settings_replaces_that_of_the_model(tmp_path, caplog, own):
    path = write_tiny_gguf(tmp_path / "base.gguf", chat_template=own, tool_template=own)
    file = tmp_path / "mine.jinja"
    file.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    settings = {"engine.chat_template": str(file)}
    with (
        caplog.at_level(logging.INFO, "tlserve"),
        tlserve.testing.serve_in_thread(str(path), settings=settings) as server,
    ):
        assert prompt_tokens(server, model="base") == len("[Hi]")
        assert post(server.address, "/api/show", {"model": "base"}).json["template"] == file.read_text()
    assert any(str(file) in record.getMessage() for record in caplog.records if record.levelno == logging.INFO)
    assert not any("no chat template" in record.getMessage() for record in caplog.records)


@pytest.mark.spec("MOD-98")
@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("{% for %}", r"cannot be parsed.*line 1.*name a Jinja file")]
)
def test_a_template_in_the_settings_that_cannot_be_used_is_refused(tmp_path, text, message):
    file = tmp_path / "mine.jinja"
    if text is not None:
        file.write_text(text)
    with (
        pytest.raises(SettingsError, match=message) as refused,
        tlserve.testing.serve_in_thread("succ", settings={"engine.chat_template": str(file)}),
    ):
        pass
    assert str(refused.value).startswith("chat_template = ")
