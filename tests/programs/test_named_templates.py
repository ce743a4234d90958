"""A model with a template of its own for tools, behind the whole server."""

import logging

import pytest

import tlserve.testing
from tests.kit.http.http_calls import chat, post
from tests.kit.model.tiny_models import write_tiny_gguf

HERMES = (
    "{{ tools | tojson }}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}{% endfor %}"
)
TOOL = {"type": "function", "function": {"name": "f", "description": "A tool.", "parameters": {"type": "object"}}}


@pytest.mark.spec("MOD-97")
def test_the_template_for_tools_renders_them_and_decides_the_dialect(tmp_path, caplog):
    path = write_tiny_gguf(tmp_path / "two.gguf", tool_template=HERMES)
    with caplog.at_level(logging.INFO, "tlserve"), tlserve.testing.serve_in_thread(str(path)) as server:
        counts = []
        for tools in ({}, {"tools": [TOOL]}):
            reply = post(server.address, "/v1/chat/completions", chat("Hi", max_tokens=1, model="two", **tools))
            assert reply.status == 200, reply.json
            counts.append(reply.json["usage"]["prompt_tokens"])
    assert counts[0] + 50 < counts[1]
    assert any("dialect hermes" in record.getMessage() for record in caplog.records)
