"""Cutting and joining text is charged by its parts: a template that does nothing else reaches its limits within seconds."""

import time

import pytest

from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError

TEXTS = "{% set s = 'a' * 50000 %}{% set n = '\n' * 50000 %}"


@pytest.mark.slow
@pytest.mark.spec("CHAT-5")
@pytest.mark.parametrize(
    "work",
    [
        "s.replace('a', 'b')",
        "s | replace('a', 'b')",
        "s.split('a')",
        "s | join('b')",
        "n | indent",
        "n.splitlines()",
        "s | e",
    ],
)
def test_a_template_that_cuts_text_forever_ends_soon(work: str) -> None:
    template = Template.parse(TEXTS + "{% for i in range(100000) %}{% set x = " + work + " %}{% endfor %}")
    began_s = time.process_time()
    with pytest.raises(ClientError, match="too many steps"):
        template.render({"messages": []})
    assert time.process_time() - began_s < 6
