"""Calls that models write otherwise than their template, where nothing else can be meant; and text that is none."""

import attrs
import pytest

from tests.chat.dialects.test_dialects import Read, read
from tlserve.chat.dialect import PlacedSchema, ToolUse

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string"},
        "days": {"type": "int"},
        "share": {"type": "float"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "zip": {"type": "integer"}, "in": {"type": "object"}},
        },
    },
}
TOOLS = ToolUse(schemas={"weather": SCHEMA})
DSML = "｜DSML｜"  # noqa: RUF001 - the model's own spelling
M3 = "]<]minimax[>["
_KIMI_CALL = "<|tool_call_begin|>{}<|tool_call_argument_begin|>{}<|tool_call_end|>"
KIMI = f"<|tool_calls_section_begin|>{_KIMI_CALL}<|tool_calls_section_end|>"


def coder(inside):
    return f"<tool_call>\n<function=weather>\n{inside}\n</function>\n</tool_call>"


def invoked(inside):
    return f'<{DSML}tool_calls>\n<{DSML}invoke name="weather">\n{inside}\n</{DSML}invoke>\n</{DSML}tool_calls>'


def nested(inside):
    return f'{M3}<tool_call>\n{M3}<invoke name="weather">{inside}{M3}</invoke>\n{M3}</tool_call>'.replace("^", M3)


def mini(inside):
    return f'<function name="weather">{inside}</function>'


HABITS = [
    (
        "qwen3_coder",
        coder("<parameter=city>\nParis\n<parameter=unit>\nC\n</parameter>"),
        '{"city": "Paris", "unit": "C"}',
    ),
    ("qwen3_coder", coder("<parameter=city>\nParis"), '{"city": "Paris"}'),
    (
        "qwen3_coder",
        coder("<parameter=share>\n2.5\n</parameter>\n<parameter=days>\n3\n</parameter>"),
        '{"share": 2.5, "days": 3}',
    ),
    (
        "qwen3_coder",
        coder("<parameter=place>\n{'name': 'Paris', 'zip': 7}\n</parameter>"),
        '{"place": {"name": "Paris", "zip": 7}}',
    ),
    ("qwen3_coder", coder("<parameter=days>\n007\n</parameter>"), '{"days": 7}'),
    (
        "seed_oss",
        coder("<parameter=city> a\n</parameter>").replace("tool_call>", "seed:tool_call>"),
        '{"city": " a\\n"}',
    ),
    ("qwen3_coder", coder("<parameter=city>Paris</parameter>").replace("weather>", "weather"), '{"city": "Paris"}'),
    ("llama3", "<|python_start|>[weather(city='Paris')]<|python_end|>", '{"city": "Paris"}'),
    ("gigachat3", '<|function_call|>{"name": "weather", "arguments": {"days": 1}}', '{"days": 1}'),
    (
        "deepseek_v4",
        invoked(f'<{DSML}parameter name="arguments" string="false">{{"city":"Paris"}}</{DSML}parameter>'),
        '{"city":"Paris"}',
    ),
    ("deepseek_v4", invoked("").partition("\n")[2].replace("\n\n", "\n"), "{}"),
    ("deepseek_v3_2", invoked("").replace("tool_calls", "function_calls").partition("\n")[2], "{}"),
    ("minicpm5", mini('<param name="properties">{"city": "Paris"}</param>'), '{"city": "Paris"}'),
    ("minicpm5", mini("<param name=\"arguments\">{'city': 'Paris'}</param>"), '{"city": "Paris"}'),
    (
        "minicpm5",
        mini('<paramname="city">Paris</param>').replace("<function name", "<functionname"),
        '{"city": "Paris"}',
    ),
    ("minicpm5", mini('<param name="city"><![CDATA[\nParis\n]]></param>'), '{"city": "\\nParis\\n"}'),
    ("kimi_k2", KIMI.format("weather:0 ", '{"city": "Paris"}'), '{"city": "Paris"}'),
    ("granite3", '<tool_call> [{"name": "weather", "arguments": {"city": "Paris"}}]', '{"city": "Paris"}'),
    ("gemma4", '<|tool_call>:weather{city:<|"|>Paris<|"|>}<tool_call|>', '{"city": "Paris"}'),
    (
        "lfm2",
        "<|tool_call_start|>[weather(tags={'a', 'b', 'a'}, days=07)]<|tool_call_end|>",
        '{"tags": ["a", "b"], "days": 7}',
    ),
    ("minimax_m3", nested("^<tags>^<item>a^</item>^<item>b^</item>^</tags>"), '{"tags": ["a", "b"]}'),
    ("minimax_m3", nested("^<tags>^</tags>^<city>^</city>"), '{"tags": [], "city": ""}'),
    ("minimax_m3", nested("^<place>^<name>7^</name>^<zip>75^</zip>^</place>"), '{"place": {"name": "7", "zip": 75}}'),
    (
        "minimax_m3",
        nested("^<place>^<in>^<place>^<x>1^</x>^</place>^</in>^</place>"),
        '{"place": {"in": {"place": {"x": "1"}}}}',
    ),
    ("minimax_m3", nested("^<other>^<x>1^</x>^<x>2^</x>^</other>"), '{"other": {"x": ["1", "2"]}}'),
]


@pytest.mark.spec("CHAT-80")
@pytest.mark.parametrize(("name", "text", "arguments"), HABITS)
def test_a_habit_is_read_as_the_call_that_is_meant(name, text, arguments) -> None:
    assert read(name, text, tools=TOOLS) == Read(calls=(("weather", arguments, True),))


MEANT = [
    (
        "qwen3_coder",
        coder("<parameter=city>\nA\n<parameter=zone>\nB\n</parameter>"),
        '{"city": "A\\n<parameter=zone>\\nB"}',
    ),
    ("qwen3_coder", coder("<parameter=city>\nA <parameter=unit>\n</parameter>"), '{"city": "A <parameter=unit>"}'),
    ("qwen3_coder", coder("<parameter=city>\nA\n</function>\n</parameter>"), '{"city": "A\\n</function>"}'),
    ("qwen3_coder", coder("<parameter=city>\n{'a': 1}\n</parameter>"), '{"city": "{\'a\': 1}"}'),
    ("qwen3_coder", coder("<parameter=zone>\n07\n</parameter>"), '{"zone": "07"}'),
    (
        "minicpm5",
        mini('<param name="arguments">{"zone": "Paris"}</param>'),
        '{"arguments": "{\\"zone\\": \\"Paris\\"}"}',
    ),
    ("minicpm5", mini('<param name="city">{"unit": "C"}</param>'), '{"city": "{\\"unit\\": \\"C\\"}"}'),
    ("minimax_m3", nested("^<city>^<x>1^</x>^</city>"), f'{{"city": "{M3}<x>1{M3}</x>"}}'),
    ("minimax_m3", nested("^<place>a ^<x>1^</x>^</place>"), f'{{"place": "a {M3}<x>1{M3}</x>"}}'),
    ("minimax_m3", nested("^<place>^<x>1^</y>^</place>"), f'{{"place": "{M3}<x>1{M3}</y>"}}'),
]


@pytest.mark.spec("CHAT-80")
@pytest.mark.parametrize(("name", "text", "arguments"), MEANT)
def test_a_value_that_only_looks_like_a_habit_is_kept(name, text, arguments) -> None:
    assert read(name, text, tools=TOOLS) == Read(calls=(("weather", arguments, True),))


CONTENT = [
    ("qwen3_coder", "<tool_call>\n<function=weather\n<b>"),
    ("gemma4", "<|channel>"),
    ("llama3", "<|python_start|>[other(city='Paris')]"),
    ("gigachat3", '<|function_call|>{"name": "other", "arguments": {}}'),
    ("lfm2", "<|tool_call_start|>[]<|tool_call_end|>"),
    ("deepseek_v4", f'<{DSML}invoke name="other">\n</{DSML}invoke>'),
    ("minicpm5", '<functionname="other"></function>'),
    ("granite3", '<tool_call> [{"name": "other", "arguments": {}}]'),
    ("gemma4", "<|tool_call>: weather is {fine}, call it<tool_call|>"),
    ("lfm2", "<|tool_call_start|>[weather(tags={'a': 1, 'b'})]"),
]


@pytest.mark.spec("CHAT-80")
@pytest.mark.parametrize(("name", "text"), CONTENT)
def test_a_text_that_only_looks_like_a_call_is_content(name, text) -> None:
    assert read(name, text, tools=TOOLS) == Read(text)


@pytest.mark.spec("CHAT-80")
def test_no_end_of_a_value_is_taken_as_missing_where_a_grammar_holds_the_call() -> None:
    held = attrs.evolve(TOOLS, enforced={"weather": PlacedSchema("tools", SCHEMA)})
    text = coder("<parameter=city>\nA\n<parameter=unit>\nB\n</parameter>")
    assert read("qwen3_coder", text, tools=held).calls == (("weather", '{"city": "A\\n<parameter=unit>\\nB"}', True),)


@pytest.mark.spec("CHAT-80")
def test_the_mark_of_the_reasoning_is_enough() -> None:
    answer = read("gemma4", "<|channel>thousand reasons<channel|>Done", tools=TOOLS)
    assert (answer.reasoning, answer.content) == ("thousand reasons", "Done")
