"""The reference page of dialects: how many cases of llama.cpp's and vLLM's tests of parsers are read as those programs read them.

Counts over the recorded cases of `tests/golden/dialect_cases.json`. A case that is read in another way is listed, with its reason
where there is one among REASONS.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import attrs

from docs.make.dialect_answers import GOLDEN, Answer, count_lines, gathered, left_out_lines, plain
from docs.make.vllm_cases import vllm_lines
from tlserve.chat.dialect import FROM_NOTHING, Dialect, Opening, ToolUse
from tlserve.chat.dialects.registry import find_dialect
from tlserve.chat.templates.origin import plain_text
from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError

_OPENING_CHARS = 256

_CUT = "an answer that is cut inside a call: llama.cpp passes on its beginning earlier"
REASONS: Mapping[str, str] = {
    **dict.fromkeys(("LFM2-8B-A1B", "LFM2.5-8B-A1B", "LFM2.5-Instruct", "Reka-Edge", "Cohere2MoE"), _CUT),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": _CUT,
    "Apriel-1.6-15b-Thinker-fixed": "the words with which the prompt opens the reasoning; they are not a part of it here",
    "openai-gpt-oss-120b": "a message to a tool that is not a function; its text is content here and lost there",
    "google-gemma-4-31B-it": "a mark that is doubled at the beginning of the answer; the first one stays content",
    "fireworks-ai-llama-3-firefunction-v2": "the template takes no tools under the usual name; they are described in words here",
}
"""The template of cases that are read in another way than by llama.cpp, and why."""


@attrs.frozen
class Case:
    """One recorded case: `reader` of the template's dialect opens a reader after the template's prompt."""

    template: str
    said: str
    expected: Answer
    opening: Opening
    tools: ToolUse | None

    def read(self, parts: Sequence[str]) -> Answer:
        """Return what the template's dialect reads in the parts of the answer."""
        reader = dialect_of(self.template)[1].open_reader(self.opening, self.tools)
        pieces = [piece for part in parts for piece in reader.feed(part)]
        content, reasoning, calls = gathered([*pieces, *reader.finish()])
        return plain(((self.opening.begun or "") + content, reasoning, calls))


_PREFILLED = "Hello, "
_LFM2 = {"<|tool_call_start|>": 0, "<|tool_call_end|>": 1}
"""The special tokens of LFM2, by which it is recognised: its first templates have no calls."""


@cache
def dialect_of(name: str) -> tuple[Template, Dialect]:
    """Return the template called `name`, and its dialect."""
    template = Template.parse((GOLDEN / "templates" / f"{name}.jinja").read_text("utf-8"))
    return template, find_dialect(template, _LFM2 if name.startswith("LFM2") else {}).dialect


_END = re.compile(r"</think>|\[/THINK\]|<\|END_THINKING\|>")
_UNREAD = "leaves the reasoning in the content, by an option that this server does not have"


def not_applicable(case: Mapping[str, Any]) -> str:
    """Return why a case does not apply to this server, or ""."""
    continued = case.get("continue_final_message", "")
    if case.get("reasoning_format", "").endswith("NONE"):
        return _UNREAD
    if "reasoning_format" not in case and not case.get("reasoning") and _END.search(case["said"]):
        return _UNREAD
    if continued.endswith("REASONING"):
        return "continues a reasoning; a message is continued in its content here"
    if "```json" in case["said"] and "json_schema" in case:
        return "a fenced block where the grammar of the schema allows only JSON"
    if "messages" in case and not continued:
        return "about the messages of the prompt, not about the answer"
    return ""


def cases() -> tuple[list[Case], Counter[str]]:
    """Return the cases that apply, and the number of the others by their reason."""
    recorded = json.loads((GOLDEN / "dialect_cases.json").read_text("utf-8"))
    left = Counter(filter(None, map(not_applicable, recorded["cases"])))
    return [_case(case, recorded["tools"]) for case in recorded["cases"] if not not_applicable(case)], left


def _case(case: Mapping[str, Any], tools: Mapping[str, Any]) -> Case:
    offered = [tools[name] for name in case.get("tools", ())]
    continued = "continue_final_message" in case
    reasoning = "" if continued else case.get("reasoning", "")  # that of a continued message is the client's
    return Case(
        template=case["template"],
        said=case["said"],
        expected=plain((case.get("content", ""), reasoning, case.get("calls", ()))),
        opening=Opening(begun=_PREFILLED if "prefill_content" in case["messages"] else "")
        if continued
        else _opening(case, offered),
        tools=ToolUse(schemas={tool["name"]: tool["parameters"] for tool in offered}) if offered else None,
    )


def _opening(case: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> Opening:
    template, _ = dialect_of(case["template"])
    described = [{"type": "function", "function": {**tool, "description": ""}} for tool in tools]
    variables = {
        "bos_token": "",
        "eos_token": "",
        "add_generation_prompt": True,
        **({"tools": described} if described else {}),
        "messages": [{"role": "user", "content": "Hey there!"}],
        "enable_thinking": case.get("enable_thinking", "true") == "true",
    }
    try:
        return Opening(template=plain_text(template.render(variables))[-_OPENING_CHARS:])
    except ClientError:  # a template that needs variables of its own
        return FROM_NOTHING


def wrong_cases() -> list[tuple[Case, Answer]]:
    """Return the cases that are read in another way, with what is read."""
    return [(case, got) for case in cases()[0] if (got := case.read([case.said])) != case.expected]


def dialects_page() -> str:
    """Return the page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    apply, left = cases()
    wrong = wrong_cases()
    yield "# Dialects against the tests of llama.cpp and vLLM"
    yield ""
    yield "## llama.cpp"
    yield ""
    yield "How many answers in llama.cpp's tests of chat parsers (b11434) are read as llama.cpp reads"
    yield "them: the content, the reasoning, and the names and arguments of calls. Blanks at the ends of a text do not count."
    yield "Each answer is read whole, one character at a time, and cut at random places, with the same result."
    yield ""
    yield from count_lines(len(apply), len(wrong))
    yield from _table(apply, wrong)
    yield from left_out_lines(left)
    yield from vllm_lines()


def _table(apply: Sequence[Case], wrong: Sequence[tuple[Case, Answer]]) -> Iterator[str]:
    total, other = Counter(case.template for case in apply), Counter(case.template for case, _ in wrong)
    yield "| template | dialect | the same | otherwise | why |"
    yield "|---|---|---|---|---|"
    for name in sorted(total, key=str.lower):
        own = dialect_of(name)[1].name
        yield f"| {name} | `{own}` | {total[name] - other[name]} | {other[name] or ''} | {REASONS.get(name, '')} |"
    yield ""
