"""Values that a model can write and JSON cannot hold: every reader makes valid JSON of them, or returns them as content."""

import json

import msgspec
import pytest

from tests.chat.dialects.test_dialects import Read, run
from tests.kit.http.feeding import assert_same_at_every_split
from tlserve.chat.dialect import ToolUse
from tlserve.chat.dialects.named_calls import ALL_BEGIN, ALL_END, BEGIN, END, SEPARATOR
from tlserve.chat.output.json_scan import ValueScanner, as_json, is_json

KINDS = ("", "string", "integer", "number", "boolean", "object", "array")
TOOLS = {
    kind: ToolUse(schemas={"calc": {"type": "object", "properties": {"x": {"type": kind}} if kind else {}}})
    for kind in KINDS
}
HALF = "\\ud800"
NESTED = "[" * 300 + "]" * 300
VALUES = (
    "1e999",
    "-1e999",
    "9" * 5000,
    "Infinity",
    "NaN",
    "inf",
    f'"{HALF}"',
    f'"{HALF}a{HALF}\\n{HALF}"',
    '"\\udc00\\ud83d\\ude00\\ud83d"',
    f'{{"{HALF}": "{HALF}"}}',
    f'"[\\"{HALF}\\"]"',
    f'"{{\\"a\\": \\"\\{HALF}\\"}}"',
    NESTED,
    f'"{NESTED}"',
    '{"a": ' * 300 + "1" + "}" * 300,
)
FORMS = {
    "llama3": ("[calc(x={})]", '{{"name": "calc", "parameters": {{"x": {}}}}}'),
    "hermes": ('<tool_call>{{"name": "calc", "arguments": {{"x": {}}}}}</tool_call>',),
    "qwen3": ('<tool_call>{{"arguments": {{"x": {}}}, "name": "calc"}}</tool_call>',),
    "smollm3": ('<tool_call>{{"name": "calc", "arguments": {{"x": {}}}}}</tool_call>',),
    "qwen3_coder": ("<tool_call><function=calc><parameter=x>{}</parameter></function></tool_call>",),
    "mistral": ('[TOOL_CALLS][{{"name": "calc", "arguments": {{"x": {}}}}}]', '[TOOL_CALLS]calc{{"x": {}}}'),
    "deepseek_r1": (f"{ALL_BEGIN}{BEGIN}function{SEPARATOR}calc\n```json\n" + '{{"x": {}}}' + f"\n```{END}{ALL_END}",),
}
CASES = [(name, form) for name, forms in FORMS.items() for form in forms]


def read_strictly(text):
    """Return the value of a JSON text that a strict reader takes."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert isinstance(msgspec.json.encode(text), bytes)
    value = json.loads(text, parse_constant=refuse, parse_int=str, parse_float=str)
    json.dumps(value, ensure_ascii=False).encode()  # no half of a pair is left
    return value


@pytest.mark.spec("CHAT-74")
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(("name", "form"), CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_strange_value_becomes_valid_json_or_content(name, form, value, kind):
    read = run(name, tools=TOOLS[kind])([form.format(value)])
    assert read.calls or read.content
    msgspec.json.encode(read.content)
    for called, arguments, complete in read.calls:
        msgspec.json.encode(called)
        if complete:
            read_strictly(arguments)


@pytest.mark.parametrize("name", ["llama3", "hermes"])
def test_a_name_with_half_a_surrogate_pair_can_be_sent(name):
    form = {"llama3": '{"name": "%s", "parameters": {}}', "hermes": '<tool_call>{"name": "%s"}</tool_call>'}[name]
    read = run(name, tools=ToolUse(schemas={"�": {}}))([form % HALF])
    assert read.calls == (("�", "{}", True),)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("x=1e999", '{"x": 1e999}'),
        ("x=" + "9" * 5000, '{"x": ' + "9" * 5000 + "}"),
        (r'x="\ud800"', '{"x": "�"}'),
        (r'x="\ud83d\ude00"', '{"x": "😀"}'),
        (r'x={"\udc00": [1, (True, None)]}', '{"x": {"�": [1, [true, null]]}}'),
        (r"x='a\"b', x=2", '{"x": 2}'),
    ],
)
def test_python_literals_become_json_texts(written, arguments):
    assert run("llama3", tools=TOOLS[""])([f"[calc({written})]"]) == Read(calls=(("calc", arguments, True),))


@pytest.mark.parametrize("word", ["inf", "nan", "Infinity", "NaN", "float('inf')", "1_000", "0x10"])
def test_a_python_value_that_json_has_not_stays_content(word):
    text = f"[calc(x={word})]"
    assert run("llama3", tools=TOOLS[""])([text]) == Read(content=text)


def test_half_a_pair_is_replaced_at_every_split():
    text = r'{"name": "calc", "parameters": {"x": "\ud800\ud83d\ude00\udc00a\ud83d\n\u00e9\ud800"}}'
    read = run("llama3", tools=TOOLS[""])
    assert read([text]).calls[0][1] == r'{"x": "\ufffd\ud83d\ude00\ufffda\ufffd\n\u00e9\ufffd"}'
    assert_same_at_every_split(text, read)


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', r'"\u00e9\\ud800"', '"é"', '{"a": [1, "b"]}'])
def test_valid_json_passes_unchanged(text):
    assert as_json(text) == text
    assert is_json(text)


@pytest.mark.parametrize("text", [r'"\ud800"', r'["\udc00"]', r'"\ud83d\u0041"'])
def test_json_with_half_a_pair_is_replaced_and_not_exact(text):
    assert not is_json(text)
    read_strictly(as_json(text))


def test_an_escape_that_breaks_off_is_given_back():
    scanner = ValueScanner()
    assert scanner.read(r'"a\ud83d\u12z"') == (r'"a\ud83d\u12', 12)
    assert scanner.failed
