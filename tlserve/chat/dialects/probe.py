"""The form of calls, read from what a template writes for a conversation with calls.

Owns the conversation, the search for its names and values in the text, and the check that a dialect reads that text back. The
literals between the values become a `CallForm`. Does not know the families.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    USUAL_FORM,
    ArgumentMarks,
    CallArguments,
    CallForm,
    CallOpened,
    Dialect,
    Slot,
    Tags,
    ToolUse,
    TurnForm,
    marks_in,
)
from tlserve.chat.dialects.described import DescribedDialect
from tlserve.chat.templates.origin import plain_text
from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError

_NAMES = ("probe_tool_one", "probe_tool_two")
_ARGUMENTS = {"alpha_key": "uno dos", "beta_key": 7351}
_IDS = ("probeid01", "probeid02")
_FORMS = (USUAL_FORM, TurnForm(arguments_as_text=True), TurnForm(arguments_as_text=True, null_content=True))
_JSON = re.compile(r'\{\s*+"alpha_key"\s*+:\s*+"uno dos"\s*+,\s*+"beta_key"\s*+:\s*+7351\s*+\}')
_TAGGED = re.compile(r"alpha_key(.{1,80}?)uno dos(.{1,160}?)beta_key(.{1,80}?)7351", re.DOTALL)
_THINKING = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("<reasoning>", "</reasoning>"),
)


def thinking_tags(source: str) -> Tags | None:
    """Return the tags of reasoning that a template contains, or None."""
    return next((tags for tags in _THINKING if tags.end in source), None)


def _tool(name: str) -> dict[str, object]:
    properties = {
        "alpha_key": {"type": "string", "description": "a"},
        "beta_key": {"type": "integer", "description": "b"},
    }
    schema = {"type": "object", "properties": properties, "required": ["alpha_key"]}
    return {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}


def _call(number: int, *, as_text: bool) -> dict[str, object]:
    arguments: object = json.dumps(_ARGUMENTS) if as_text else dict(_ARGUMENTS)
    function = {"name": _NAMES[number], "arguments": arguments}
    return {"id": _IDS[number], "type": "function", "function": function}


@attrs.frozen
class Probe:
    """What a template writes: `written` is the text of an answer with `count` calls, or None if it writes no calls."""

    written: str | None
    count: int = 0
    form: TurnForm = USUAL_FORM

    @classmethod
    def of(cls, template: Template) -> Probe:
        """Render the conversation, in the first form of turns for which the template writes the calls."""
        for count in (2, 1):
            for form in _FORMS:
                text = _written(template, count, form)
                if text is not None:
                    return cls(text, count, form)
        return cls(None)

    def dialect(self, reasoning: Tags | None) -> Dialect | None:
        """Return the dialect whose calls these are, if it reads them back; None if their form is not understood."""
        for calls in _forms_of(self):
            found = DescribedDialect(name="template", calls=calls, form=self.form, reasoning=reasoning)
            if reads_back(found, self):
                return found
        return None


def _written(template: Template, count: int, form: TurnForm) -> str | None:
    """Return what the template writes for an answer with calls: its text after that of the turns before."""
    asked = {"role": "user", "content": "Hi"}
    calls = [_call(number, as_text=form.arguments_as_text) for number in range(count)]
    answer = {"role": "assistant", "content": None if form.null_content else "", "tool_calls": calls}
    tools = [_tool(name) for name in _NAMES]
    frame = {"tools": tools, "bos_token": "", "eos_token": "", "add_generation_prompt": False}
    try:
        texts = [
            plain_text(template.render({**frame, "messages": messages})) for messages in ([asked, answer], [asked])
        ]
    except ClientError:
        return None
    written = texts[0][len(_common(*texts)) :]
    is_double = '\\"alpha_key' in written
    return None if is_double or any(written.count(name) < 1 for name in _NAMES[:count]) else written


def _common(first: str, second: str) -> str:
    """Return the longest text with which both begin."""
    least = min(len(first), len(second))
    return first[: next((at for at in range(least) if first[at] != second[at]), least)]


def reads_back(dialect: Dialect, probe: Probe) -> bool:
    """Say whether the dialect reads exactly the calls that the template wrote, in its own form."""
    if probe.written is None:
        return False
    dialect = attrs.evolve(dialect, habits=()) if isinstance(dialect, DescribedDialect) else dialect
    schema = {"properties": {"alpha_key": {"type": "string"}, "beta_key": {"type": "integer"}}}
    tools = ToolUse(schemas=dict.fromkeys(_NAMES, schema))
    wanted = [(name, _ARGUMENTS) for name in _NAMES[: probe.count]]
    begins = {max(probe.written.find(_first_mark(dialect, probe.written)), 0), 0}
    return any(_calls_in(dialect, probe.written[begin:], tools) == wanted for begin in begins)


def _calls_in(dialect: Dialect, text: str, tools: ToolUse) -> list[tuple[str, object]]:
    """Return the names and arguments of the calls that the dialect reads in `text`."""
    reader = dialect.open_reader(FROM_NOTHING, tools)
    pieces = [*reader.feed(text), *reader.finish()]
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, CallOpened):
            calls.append([piece.name, ""])
        elif isinstance(piece, CallArguments):
            calls[-1][1] += piece.text
    return [(name, _loaded(arguments)) for name, arguments in calls]


def _first_mark(dialect: Dialect, written: str) -> str:
    """Return the text with which the calls of an answer begin, so that the template's text before them is left out."""
    form = dialect.call_form({})
    first = next((part for part in form.before + form.call if isinstance(part, str)), "")
    marks = [mark for mark in (form.begin, *marks_in(first), first) if mark and mark in written]
    return min(marks, key=written.find, default="")


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _forms_of(probe: Probe) -> Iterator[CallForm]:
    """Yield the forms that the written calls may have: arguments as JSON, or between tags."""
    assert probe.written is not None
    spans = list(_JSON.finditer(probe.written))
    if len(spans) == probe.count:
        yield from _json_forms(probe, [span.span() for span in spans])
    elif not spans:
        yield from _tag_forms(probe)


def _parts(probe: Probe, spans: list[tuple[int, int]]) -> tuple[str, str, str, str, str] | None:
    """Return the texts around the calls: before them all, before a call, between name and arguments, after a call, after all."""
    text = str(probe.written)
    name = text.rfind(_NAMES[0], 0, spans[0][0])
    if name < 0:
        return None
    before, middle = text[:name], text[name + len(_NAMES[0]) : spans[0][0]]
    after = text[spans[-1][1] :]
    if probe.count == 1:
        return "", before, middle, after, ""
    second = text.rfind(_NAMES[1], spans[0][1], spans[1][0])
    if second < 0:
        return None
    gap = text[spans[0][1] : second]
    head = _common(before[::-1], gap[::-1])[::-1]
    tail = _common(after, gap[: len(gap) - len(head)])
    return before[: len(before) - len(head)], head, middle, tail, after[len(tail) :]


def _json_forms(probe: Probe, spans: list[tuple[int, int]]) -> Iterator[CallForm]:
    parts = _parts(probe, spans)
    if parts is None:
        return
    section, head, middle, tail, rest = parts
    marks = [mark for mark in marks_in(section + head) if mark in head] or list(marks_in(section + head))
    ends = [*marks_in(tail), *(mark for mark in marks_in(rest) if _closes(mark, marks))]
    middle = re.sub("|".join(_IDS), "", middle)
    for begin in reversed(marks):
        before = section[section.find(begin) :] if begin in section else ""
        call = head if begin in section else head[head.find(begin) :]
        end = ends[-1] if ends else ""
        after = rest[: rest.find(end) + len(end)] if end and end in rest else ""
        yield CallForm(
            before=tuple(filter(None, (before,))),
            call=(call, Slot.NAME, middle, Slot.ARGUMENTS, tail),
            between=_between(probe, spans, head, tail),
            after=tuple(filter(None, (after,))),
            begin=begin,
            end=end,
            dropped=tuple(mark for mark in (*marks_in(section), *ends) if mark not in (begin, end)),
        )


def _closes(mark: str, begins: list[str]) -> bool:
    """Say whether `mark` is the closing form of one of `begins`."""
    words = {re.sub(r"\W|begin|start|prefix", "", begin, flags=re.IGNORECASE) for begin in begins}
    return re.sub(r"\W|end|suffix", "", mark, flags=re.IGNORECASE) in words


def _between(probe: Probe, spans: list[tuple[int, int]], head: str, tail: str) -> tuple[str, ...]:
    if probe.count == 1:
        return ()
    text = str(probe.written)
    gap = text[spans[0][1] : text.rfind(_NAMES[1], spans[0][1], spans[1][0])]
    return tuple(filter(None, (gap[len(tail) : len(gap) - len(head)],)))


def _tag_forms(probe: Probe) -> Iterator[CallForm]:
    """Yield the form of calls with a tag around each argument."""
    text = str(probe.written)
    spans = [match.span() for match in _TAGGED.finditer(text)]
    first = _TAGGED.search(text)
    if first is None or len(spans) != probe.count:
        return
    parts = _parts(probe, spans)
    if parts is None:
        return
    section, head, middle, tail, rest = parts
    key_end, json_key_end, gap = first[1], first[3], first[2]
    key_begin = _common(middle[::-1], gap[::-1])[::-1]
    value_end = gap[: len(gap) - len(key_begin)]
    marks = ArgumentMarks(
        key_begin=key_begin,
        key_end=key_end,
        json_key_end="" if json_key_end == key_end else json_key_end,
        value_end=value_end,
    )
    closing = tail.removeprefix(value_end.rstrip()).lstrip() if tail.startswith(value_end.rstrip()) else tail
    name_end = middle[: len(middle) - len(key_begin)]
    ends = [mark for mark in marks_in(closing) if mark.startswith("</") or _closes(mark, [*marks_in(head)])]
    if not ends:
        return
    section_ends = [mark for mark in marks_in(rest) if _closes(mark, [*marks_in(section)])]
    for begin in [*marks_in(section)[-1:], *marks_in(head)[:1]]:
        in_section = begin in section
        yield CallForm(
            before=(section[section.find(begin) :],) if in_section else (),
            call=(
                head if in_section else head[head.find(begin) :],
                Slot.NAME,
                name_end,
                Slot.ARGUMENTS,
                "\n".join(ends),
            ),
            between=_between(probe, spans, head, tail),
            after=tuple(section_ends[:1]) if in_section else (),
            begin=begin,
            end=(section_ends or ends or [""])[0] if in_section else (ends or [""])[-1],
            arguments=marks,
        )
