"""Cutting and joining text is charged by its parts: a template that does nothing else reaches its limits within seconds."""

import time
import tracemalloc

import pytest

from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError

TEXTS = "{% set s = 'a' * 50000 %}{% set n = '\n' * 50000 %}{% set l = range(50000) | list %}"


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
        "('ß' * 50000).upper()",
        "l | select('none') | list",
        "l[1:]",
        "l + l[:1]",
        "l | tojson",
        "l ~ s",
        "l | map('string') | join",
    ],
)
def test_a_template_that_cuts_text_forever_ends_soon(work: str) -> None:
    template = Template.parse(TEXTS + "{% for i in range(100000) %}{% set x = " + work + " %}{% endfor %}")
    began_s = time.process_time()
    with pytest.raises(ClientError, match="too many steps"):
        template.render({"messages": []})
    assert time.process_time() - began_s < 6


GROWING = "{{% set ns = namespace(l=[], s='') %}}{{% for i in range(100000) %}}{{% set ns.{} %}}{{% endfor %}}"


@pytest.mark.slow
@pytest.mark.spec("CHAT-5")
@pytest.mark.parametrize(
    "step",
    [
        "l = ns.l + ['a' * 2000000 ~ i]",
        "l = [ns.l, 'a' * 2000000 ~ i]",
        "l = ns.l + ns.l + [i]",
        "s = ns.s ~ 'a' * 999",
    ],
)
def test_a_template_that_keeps_more_and_more_text_takes_little_memory(step: str) -> None:
    template = Template.parse(GROWING.format(step))
    tracemalloc.start()
    try:
        with pytest.raises(ClientError, match=r"too large|too many steps"):
            template.render({"messages": []})
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.spec("CHAT-5")
@pytest.mark.parametrize(
    "call", ["center(10**8)", "ljust(10**8)", "zfill(10**8)", "join(['b'] * 999)", "expandtabs(10**8)"]
)
def test_a_method_in_a_loop_is_checked_before_it_makes_its_text(call: str) -> None:
    source = "{% set s = '\t' * 100000 %}{% for m in messages %}{{ s." + call + " }}{% endfor %}"
    template = Template.parse(source)
    tracemalloc.start()
    try:
        with pytest.raises(ClientError, match="too large"):
            template.render({"messages": [{"role": "user"}]})
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
