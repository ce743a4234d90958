"""The grammar of a whole answer: free reasoning, then calls or content in a format.

Combines the parts. Reasoning that the prompt opened continues to its end tag; a model that can reason may open reasoning itself.
Then follow calls, or content in a format, or either of them, as the request allows. Does not know how each part is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from tlserve.chat.dialect import Dialect, Opening, Tags, ToolUse
from tlserve.chat.grammars.call_rules import CallGrammar, CallRules
from tlserve.chat.grammars.formats import AnswerFormat
from tlserve.chat.grammars.lark import ANY_TEXT, quoted, spelled_row
from tlserve.chat.grammars.source import GrammarSource
from tlserve.generation import Grammar

_ANY_CONTENT = AnswerFormat(field="tools", rule="")
"""Stands for the format of an answer that has none: only its tools need a grammar."""


def answer_grammar(
    answer_format: AnswerFormat | None,
    tools: ToolUse | None,
    dialect: Dialect,
    opening: Opening,
    special_tokens: Mapping[str, int],
) -> Grammar | None:
    """Return the grammar of an answer, or None if the answer is free.

    Required calls are the whole answer. Other calls can come instead of content in a format, or among free text.
    """
    calls = _call_rules(answer_format, tools, dialect, special_tokens)
    if answer_format is None and calls is None:
        return None
    form, calls = answer_format or _ANY_CONTENT, calls or CallRules(lines=(), schemas={})
    is_free = form.rule and not (tools is not None and tools.required)
    content = (f"content: {_around(form.rule, dialect.content, special_tokens)}",) if is_free else ()
    body = "(calls | content)" if calls.lines and content else "calls" if calls.lines else "content"
    start, reasoning = _reasoning(dialect.reasoning, opening, special_tokens)
    return GrammarSource(
        field=form.field,
        rules="\n".join([f"start: {start} {body}", *reasoning, *content, *calls.lines]),
        larks={**calls.larks, **form.larks},
        schemas={**calls.schemas, **form.schemas},
    ).grammar()


def _call_rules(
    answer_format: AnswerFormat | None, tools: ToolUse | None, dialect: Dialect, special_tokens: Mapping[str, int]
) -> CallRules | None:
    """Return the rules for the calls of an answer, or None if the model is free in its calls."""
    if tools is None or tools.enforced is None:
        return None
    writer = CallGrammar(dialect.call_form(special_tokens), special_tokens, tools)
    return writer.forced() if tools.required or answer_format is not None else writer.among_text()


def _reasoning(tags: Tags | None, opening: Opening, special_tokens: Mapping[str, int]) -> tuple[str, tuple[str, ...]]:
    """Return the start of an answer, and its rules. A token ends the reasoning, or the token's spelling in text."""
    if tags is None:
        return "", ()
    begin, end = (spelled_row(tag.strip(), special_tokens) for tag in (tags.begin, tags.end))
    lines = (
        "reasoning: (thought" + (f" | THOUGHT {end}" if end.startswith("<[") else "") + ") GAP",
        f"thought[lazy]: THOUGHT {quoted(tags.end.strip())}",
        f"THOUGHT: {ANY_TEXT}",
        r"GAP: /\n{0,2}/",
    )
    if opening.is_inside(tags.begin, tags.end):
        return "reasoning", lines
    if opening.begun is not None:
        return "", ()
    spellings = dict.fromkeys((tags.begin.strip(), tags.begin.rstrip()))
    opens = " | ".join([*map(quoted, spellings), *([begin] if "<[" in begin else [])])
    return f"(({opens}) reasoning)?", lines


def _around(rule: str, tags: Tags | None, special_tokens: Mapping[str, int]) -> str:
    """Return the rule of the content between the tags around it; the answer can also end without the last one."""
    if tags is None:
        return rule
    begin, end = (spelled_row(tag, special_tokens) for tag in (tags.begin, tags.end))
    return f"{begin} ({rule})" + (f" ({end})?" if end else "")
