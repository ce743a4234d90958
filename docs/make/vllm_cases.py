"""The recorded cases of vLLM's tests of parsers: which dialect reads each, which do not apply, and why some are read otherwise.

Reads `tests/golden/vllm_cases.json`. A case has no prompt: where vLLM reads reasoning that no tag of the answer begins, the
prompt began it. Where a test offers no tools, those that are called are offered. Blanks beside a call do not count.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import attrs

from docs.make.dialect_answers import GOLDEN, Answer, count_lines, gathered, left_out_lines, plain
from tlserve.chat.dialect import FROM_NOTHING, Opening, ToolUse
from tlserve.chat.dialects.registry import BY_NAME

DIALECT_OF: Mapping[str, str] = {
    "apertus": "apertus",
    "deepseek_r1": "deepseek_r1",
    "deepseekv3": "deepseek_r1",
    "deepseekv31": "deepseek_v3_1",
    "deepseek_v32": "deepseek_v3_2",
    "deepseek_v4": "deepseek_v4",
    "gemma4": "gemma4",
    "gigachat3": "gigachat3",
    "glm47_moe": "glm4",
    "granite": "granite3",
    "granite4": "granite4",
    "hermes": "hermes",
    "kimi_k2": "kimi_k2",
    "lfm2": "lfm2",
    "llama": "llama3",
    "llama4_pythonic": "llama3",
    "minicpm5xml": "minicpm5",
    "minimax_m2": "minimax_m2",
    "minimax_m3": "minimax_m3",
    "nemotron_v3": "qwen3_coder",
    "pythonic": "llama3",
    "qwen3": "qwen3_coder",
    "step3p5": "qwen3_coder",
}
"""vLLM's parser -> the dialect that reads the same answers here."""


_AFTER = "text after or between calls, which is lost there and content here"
_CUT = "a call that is cut: vLLM completes it, or shows it as text; here it stays open"
_QUOTES = "quotes inside a text that are not escaped"
_LINE = "calls in the middle of a line, which are text here"
OTHERWISE: tuple[tuple[str, str, str], ...] = (
    ("deepseek_v4", "function_calls", "the section of another version, whose end is content too"),
    ("deepseekv31", "suffix text", _AFTER),
    ("gemma4", '<|"|>London', _CUT),
    ("gemma4", "Before\n", "reasoning that does not begin the answer, which is content here"),
    ("granite", '|> {"name": "func"', "a call that is not in a list, which is a call here"),
    ("granite", "I'll get that information", _AFTER),
    ("granite4", "final_answer", _CUT),
    ("hermes", "final_answer", _CUT),
    ("kimi_k2", "After tools", _AFTER),
    ("kimi_k2", "spurious noise", _AFTER),
    ("kimi_k2", "functions.invalid.0", "a call with a wrong id, which is lost there and text here"),
    ("lfm2", "bash(command=", _QUOTES),
    ("lfm2", "grocery.orderIngredients", _AFTER),
    ("llama", "Here ", _LINE),
    ("minicpm5xml", "Intro before", _AFTER),
    ("minicpm5xml", "Head\n", _AFTER),
    ("minicpm5xml", "北京</param>", _CUT),
    ("step3p5", "hello<tool_call>", _AFTER),
)
"""Cases that are read in another way than by vLLM: its parser, a part of the answer, and why."""


def reason(case: VllmCase) -> str:
    """Return why a case is read otherwise, or ""."""
    return next((why for parser, part, why in OTHERWISE if parser == case.parser and part in case.said), "")


@attrs.frozen
class VllmCase:
    """One recorded case, and whether the reasoning was begun by the prompt."""

    parser: str
    said: str
    expected: Answer
    opening: Opening
    tools: ToolUse | None
    reads: str

    def read(self, parts: Sequence[str]) -> Answer:
        """Return what the dialect reads in the parts of the answer."""
        reader = BY_NAME[DIALECT_OF[self.parser]].open_reader(self.opening, self.tools)
        pieces = [piece for part in parts for piece in reader.feed(part)]
        content, reasoning, calls = gathered([*pieces, *reader.finish()])
        return plain((content, reasoning, calls))


@cache
def recorded() -> Mapping[str, Any]:
    """Return the schemas and the cases of the file."""
    found: Mapping[str, Any] = json.loads((GOLDEN / "vllm_cases.json").read_text("utf-8"))
    return found


def not_applicable(case: Mapping[str, Any]) -> str:
    """Return why a case does not apply to this server, or ""."""
    said, names = case["said"], [name for name, _ in case.get("calls", ())]
    if case["parser"] not in DIALECT_OF or (case["parser"] == "granite" and case["reads"] == "reasoning"):
        return "a family without a dialect of its own here"
    if said.endswith("</s>"):
        return "the end token as text; here it ends the answer"
    if "\u0120" in said or "\u010a" in said:
        return "blanks in the spelling of a tokenizer's bytes, which are decoded here before an answer is read"
    if any(len(name.split()) != 1 or "<" in name for name in names):
        return "vLLM reads a name with blanks or tags in it, which no tool can have"
    if any(name not in said for name in names):
        return "vLLM calls another tool than the model did, by a list of names in its parser"
    return _not_read_here(case)


_CHECKED = ('name="City"', 'name="unknown"', "<param>", 'name="extra"', '"unknown": "x"', "北京</param><param name")


def _not_read_here(case: Mapping[str, Any]) -> str:
    """Return the reason that follows from what vLLM reads, or ""."""
    said, content = case["said"], case.get("content", "")
    dialect = BY_NAME[DIALECT_OF[case["parser"]]]
    if case["reads"] == "reasoning":
        tags = dialect.reasoning
        if content.startswith("<think>") or (tags and tags.begin.strip() in said and not case.get("reasoning")):
            return "leaves the reasoning in the content, by an option that this server does not have"
        if any(mark in content for mark in (*dialect.call_form({}).before, dialect.call_form({}).begin) if mark):
            return "a call in the reasoning where no tools are offered; without tools there are no calls here"
    if case["parser"] == "minicpm5xml" and any(part in said for part in _CHECKED):
        return "vLLM's parser of MiniCPM 5 holds arguments against the schema, and shows a call that does not match as text"
    if content.endswith("<|tool_call_start|"):
        return "vLLM passes on a part of a mark"
    return ""


def cases() -> tuple[list[VllmCase], Counter[str]]:
    """Return the cases that apply, and the number of the others by their reason."""
    found = [(case, not_applicable(case)) for case in recorded()["cases"]]
    return [_case(case) for case, why in found if not why], Counter(why for _, why in found if why)


def wrong_cases() -> list[tuple[VllmCase, Answer]]:
    """Return the cases that are read otherwise, with what is read."""
    return [(case, got) for case in cases()[0] if not same(got := case.read([case.said]), case.expected)]


def same(first: Answer, second: Answer) -> bool:
    """Say whether two answers are the same, except for blanks beside a call and the end of a call that is cut."""
    if len(first[2]) != len(second[2]) or first[1] != second[1]:
        return False
    is_same = all(map(_same_call, first[2], second[2]))
    return is_same and "".join(first[0].split()) == "".join(second[0].split())


def _same_call(first: tuple[str, Any], second: tuple[str, Any]) -> bool:
    """Say whether two calls are the same; of arguments that are cut, one may be the beginning of the other."""
    if first[0] == second[0] and isinstance(first[1], str) and isinstance(second[1], str):
        texts = ["".join(text.split()) for text in (first[1], second[1])]
        return texts[0].startswith(texts[1]) or texts[1].startswith(texts[0])
    return first == second


def _case(case: Mapping[str, Any]) -> VllmCase:
    calls = case.get("calls", ())
    offered = {name: recorded()["schemas"][at] for name, at in case.get("tools", {}).items()} or {
        name: {} for name, _ in calls
    }
    reasoning = case.get("reasoning", "")
    dialect = BY_NAME[DIALECT_OF[case["parser"]]]
    begin = getattr(dialect, "short_begin", "") or (
        "" if dialect.reasoning is None else dialect.reasoning.begin.strip()
    )
    begins = bool(reasoning) and begin not in case["said"]
    return VllmCase(
        parser=case["parser"],
        said=case["said"],
        expected=plain((case.get("content", ""), reasoning, calls)),
        opening=Opening(template=dialect.reasoning.begin) if begins and dialect.reasoning else FROM_NOTHING,
        tools=None if case["reads"] == "reasoning" else ToolUse(schemas=offered or {"get_weather": {}}),
        reads=case["reads"],
    )


def vllm_lines() -> Iterator[str]:
    """Yield the lines of the page about these cases."""
    apply, left = cases()
    wrong = wrong_cases()
    yield "## vLLM"
    yield ""
    yield "What vLLM 0.33.0 reads in the answers of its own tests of tool parsers and reasoning parsers, and what is read here by"
    yield "the dialect of that family: content, reasoning, names and arguments. Blanks at the ends of a text and beside a call do"
    yield "not count. Each answer is read whole, one character at a time, and cut in two at every place if it is short, with the"
    yield "same result."
    yield ""
    yield from count_lines(len(apply), len(wrong))
    yield from _table(apply, wrong)
    yield from left_out_lines(left)


def _table(apply: Sequence[VllmCase], wrong: Sequence[tuple[VllmCase, Answer]]) -> Iterator[str]:
    total, other = Counter(case.parser for case in apply), Counter(case.parser for case, _ in wrong)
    yield "| parser of vLLM | dialect | the same | otherwise | why |"
    yield "|---|---|---|---|---|"
    for name in sorted(total):
        why = "; ".join(dict.fromkeys(reason(case) for case, _ in wrong if case.parser == name))
        yield f"| {name} | `{DIALECT_OF[name]}` | {total[name] - other[name]} | {other[name] or ''} | {why} |"
    yield ""
