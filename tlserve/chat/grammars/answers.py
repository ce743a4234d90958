"""The grammar of a whole answer: its reasoning, which is free, and then what was asked for.

Owns how the parts are put together: reasoning that the prompt opened goes on to its end; reasoning that the answer may open is
left open to it; then come calls, or content in a format, or both as the request allows. Refuses to know how each is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from tlserve.chat.dialect import Dialect, Opening, Tags, ToolUse
from tlserve.chat.grammars.call_rules import CallGrammar, CallRules
from tlserve.chat.grammars.formats import AnswerFormat
from tlserve.chat.grammars.lark import ANY_TEXT, quoted, token_reference
from tlserve.chat.grammars.source import GrammarSource
from tlserve.generation import Grammar

_NO_RULES = CallRules(lines=(), schemas={})


def answer_grammar(
    wanted: AnswerFormat | None,
    tools: ToolUse | None,
    dialect: Dialect,
    opening: Opening,
    special_tokens: Mapping[str, int],
) -> Grammar | None:
    """Return the grammar of an answer, None where it is free.

    Calls that are required are the answer; other calls may take the place of content in a format, or stand among free text.
    """
    holds = tools is not None and tools.enforced is not None
    if wanted is None and not holds:
        return None
    body, lines, calls = "", [], _NO_RULES
    if tools is not None and holds:
        writer = CallGrammar(dialect.call_form(special_tokens), special_tokens, tools)
        calls = writer.forced() if tools.required or wanted is not None else writer.among_text()
        body = "calls"
    if wanted is not None and not (tools is not None and tools.required):
        body = f"({body} | content)" if body else "content"
        lines.append(f"content: {wanted.rule}")
    start, reasoning = _reasoning(dialect.reasoning, opening, special_tokens)
    return GrammarSource(
        field="tools" if wanted is None else wanted.field,
        rules="\n".join([f"start: {start} {body}", *reasoning, *lines, *calls.lines]),
        larks={} if wanted is None else wanted.larks,
        schemas={**calls.schemas, **({} if wanted is None else wanted.schemas)},
    ).grammar()


def _reasoning(tags: Tags | None, opening: Opening, special_tokens: Mapping[str, int]) -> tuple[str, tuple[str, ...]]:
    """Return what an answer begins with, and its rules. What ends the reasoning is a token, or its spelling in text."""
    if tags is None:
        return "", ()
    begin, end = (special_tokens.get(tag) for tag in (tags.begin, tags.end))
    lines = (
        "reasoning: (thought" + ("" if end is None else f" | THOUGHT {token_reference(end)}") + ") GAP",
        f"thought[lazy]: THOUGHT {quoted(tags.end)}",
        f"THOUGHT: {ANY_TEXT}",
        r"GAP: /\n{0,2}/",
    )
    if opening.is_inside(tags.begin, tags.end):
        return "reasoning", lines
    if opening.begun is not None:
        return "", ()
    opens = quoted(tags.begin) + ("" if begin is None else f" | {token_reference(begin)}")
    return f"(({opens}) reasoning)?", lines
