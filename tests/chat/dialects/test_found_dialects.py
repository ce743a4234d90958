"""The dialect of every public template: recognised or read off, and always one that reads what the template writes."""

import time

import pytest

from tests.chat.dialects.test_dialects import PARIS_CALL, Read, call, read, run
from tests.kit.http.feeding import assert_same_at_every_split
from tests.kit.source_tree import GOLDEN
from tlserve.chat.dialect import ToolUse
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.dialects.probe import Probe, reads_back
from tlserve.chat.dialects.registry import find_dialect
from tlserve.chat.templates.template import Template

SOURCES = {file.stem: file.read_text("utf-8") for file in sorted((GOLDEN / "templates").glob("*.jinja"))}
NAMED = {
    "Apertus-8B-Instruct": "apertus",
    "ByteDance-Seed-OSS": "seed_oss",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command_r7b",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command_r",
    "GLM-4.6": "glm4",
    "GLM-4.7-Flash": "glm4",
    "LFM2.5-8B-A1B": "lfm2",
    "MiniMax-M1": "template",
    "MiniMax-M2": "minimax_m2",
    "MiniMax-M3": "minimax_m3",
    "NVIDIA-Nemotron-Nano-v2": "nemotron_v2",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v3_1",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_v3_2",
    "deepseek-ai-DeepSeek-V4": "deepseek_v4",
    "google-gemma-2-2b-it": "plain",
    "google-gemma-4-31B-it": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite3",
    "ibm-granite-granite-4.0": "granite4",
    "meetkai-functionary-medium-v3.1": "functionary_v3_1",
    "meetkai-functionary-medium-v3.2": "functionary_v3_2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "llm-jp-llm-jp-4.1-8b-thinking": "harmony",
    "openai-gpt-oss-120b": "harmony",
    "mistralai-Ministral-3-14B-Reasoning-2512": "magistral",
    "moonshotai-Kimi-K2": "kimi_k2",
    "Qwen-Qwen3-0.6B": "qwen3",
    "Qwen3-Coder": "qwen3_coder",
    "upstage-Solar-Open-100B": "solar_open",
}


@pytest.mark.spec("CHAT-22")
@pytest.mark.parametrize(("name", "dialect"), NAMED.items())
def test_a_public_template_has_its_dialect(name, dialect):
    found = find_dialect(Template.parse(SOURCES[name]), {})
    assert found.dialect.name == dialect
    assert found.is_known


BACKWARDS = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson | reverse }} for {{ c.function.name }}
{% endfor %}{% endfor %}"""
"""Calls in a form that no dialect has."""


@pytest.mark.spec("CHAT-22")
def test_a_form_of_calls_that_nothing_reads_is_said():
    found = find_dialect(Template.parse(BACKWARDS), {})
    assert (found.dialect, found.is_known) == (PLAIN, False)
    assert "is not known; tools are described in words" in found.how


@pytest.mark.spec("CHAT-22")
@pytest.mark.parametrize("name", SOURCES)
def test_a_dialect_reads_what_the_template_writes(name):
    template = Template.parse(SOURCES[name])
    found, probe = find_dialect(template, {}), Probe.of(template)
    if probe.written is not None and found.dialect.name != PLAIN.name:
        assert reads_back(found.dialect, probe)


def test_the_dialect_of_a_template_is_found_quickly():
    took = []
    for source in SOURCES.values():
        template = Template.parse(source)
        begin = time.perf_counter()
        find_dialect(template, {})
        took.append(time.perf_counter() - begin)
    assert sorted(took)[len(took) // 2] < 0.05


UNION = {"properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}
PARAMETERS = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
ARGUMENTS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
CALLED = "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
HABITS = [
    ("llama3", f"I look.\n{PARAMETERS}", Read("I look.", calls=(PARIS_CALL,))),
    ("llama3", f'{{"type": "function", "function": {PARAMETERS}}}', Read(calls=(PARIS_CALL,))),
    ("llama3", '<function=get_weather>{"city": "Paris"}</function>', Read(calls=(PARIS_CALL,))),
    ("hermes", f"<tool_call>\n```json\n{ARGUMENTS}\n```\n</tool_call>", Read(calls=(PARIS_CALL,))),
    ("hermes", f"<tool_call>\n{{{ARGUMENTS}}}\n</tool_call>", Read(calls=(PARIS_CALL,))),
    ("qwen3_coder", CALLED, Read(calls=(PARIS_CALL,))),
    ("qwen3_coder", f"I look.\n{CALLED}", Read("I look.", calls=(PARIS_CALL,))),
]


ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
TO_WEATHER = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
HARMONY = [
    ("<|channel|>final<|message|>Hello", Read("Hello")),
    (f"{ANALYSIS}<|channel|>final<|message|>Hello<|return|>", Read("Hello", "Hm.")),
    (f'{ANALYSIS}{TO_WEATHER}{{"city": "Paris"}}<|call|>', Read("", "Hm.", (PARIS_CALL,))),
    (' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}', Read(calls=(PARIS_CALL,))),
    (f'{TO_WEATHER}{{"city": "Pa', Read(calls=(call("get_weather", '{"city": "Pa', complete=False),))),
    ("Hello", Read("Hello")),
]


@pytest.mark.spec("CHAT-23")
@pytest.mark.parametrize(("text", "expected"), HARMONY)
def test_messages_with_channels_are_read_at_every_split(text, expected):
    assert read("harmony", text) == expected


@pytest.mark.spec("CHAT-24")
@pytest.mark.parametrize(("name", "text", "expected"), HABITS)
def test_the_habits_of_small_models_are_calls(name, text, expected):
    assert read(name, text) == expected


@pytest.mark.spec("CHAT-24")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", f"For example:\n```json\n{PARAMETERS}\n```"),
        ("llama3", f"I would send {PARAMETERS}"),
        ("llama3", 'A list:\n{"name": "nobody", "parameters": {}}'),
        ("llama3", "<function=nobody>{}</function>"),
        ("qwen3_coder", "<function=nobody>\n</function>"),
        ("glm4", "<tool_call>two words\n</tool_call>"),
        ("gemma4", "<|tool_call>said: {a}<tool_call|>"),
        ("minimax_m2", "<minimax:tool_call>\nno</minimax:tool_call>"),
    ],
)
def test_text_that_only_looks_like_a_call_stays_text(name, text):
    assert read(name, text) == Read(text)


@pytest.mark.spec("CHAT-26")
def test_a_value_between_tags_takes_a_type_of_a_union():
    text = "<tool_call>\n<function=f>\n<parameter=n>\n%s\n</parameter>\n</function>\n</tool_call>"
    for value, written in (("5", "5"), ("null", "null"), ("much", '"much"')):
        one = run("qwen3_coder", tools=ToolUse(schemas={"f": UNION}))
        assert assert_same_at_every_split(text % value, one) == Read(calls=(call("f", f'{{"n": {written}}}'),))
