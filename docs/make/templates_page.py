"""The reference page of chat templates: what each renders, compared with transformers, and in what time, compared with jinja2.

Counts over the recorded renderings of `tests/golden/templates.json`. The times are those that `python -m
tests.benchmarks.templates --output` has measured.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.kit.chat.conversations import CLOCK, FRAME, Conversation, conversations
from tlserve.chat.templates.origin import plain_text, template_text
from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError, ModelRefused

GOLDEN = Path(__file__).parents[2] / "tests/golden"
SOURCES: Mapping[str, str] = {
    file.stem: file.read_text("utf-8") for file in sorted((GOLDEN / "templates").glob("*.jinja"))
}
RECORDED: Mapping[str, Mapping[str, str]] = json.loads((GOLDEN / "templates.json").read_text("utf-8"))
TIMES = GOLDEN / "template_times.json"
DIGEST = re.compile(r"[0-9a-f]{16}")

EQUAL, BOTH_REFUSE, SERVED_HERE, WRONG = "equal", "refused by both", "only served here", "wrong"
SERVED_ALL_THE_SAME: Mapping[str, str] = {
    "TypeError: Object of type generator is not JSON serializable": "a generator is written as JSON as a list",
    "TemplateRuntimeError: No filter named 'from_json' found.": "there is a filter `from_json`",
}
"""Errors of transformers that are none here, as in llama.cpp, and why."""


def variables(conversation: Conversation) -> dict[str, Any]:
    """Return what a template gets: the roles and the frame are the server's, everything else the client's."""
    messages = copy.deepcopy(conversation.messages)
    for message in messages:
        message["role"] = template_text(message["role"])
        if "reasoning_content" in message:
            message["thinking"] = message["reasoning_content"]
    frame = {name: template_text(spelling) for name, spelling in FRAME.items()}
    told = {"messages": messages, "tools": conversation.tools, "documents": None}
    return {"add_generation_prompt": True, **frame, **conversation.more, **told}


def rendered(template: Template, conversation: Conversation) -> str | None:
    """Return the text with its letters, or None if the template refuses the conversation or fails."""
    try:
        return template.render(variables(conversation), clock=lambda: CLOCK)
    except ClientError:
        return None


def parsed(name: str) -> Template | None:
    """Return the template called `name`, or None if it is refused."""
    try:
        return Template.parse(SOURCES[name])
    except ModelRefused:
        return None


def outcome(text: str | None, recorded: str) -> str:
    """Return how a rendering compares with the recorded one."""
    if DIGEST.fullmatch(recorded) is None:
        return BOTH_REFUSE if text is None else SERVED_HERE if recorded in SERVED_ALL_THE_SAME else WRONG
    found = "" if text is None else hashlib.sha256(plain_text(text).encode()).hexdigest()[:16]
    return EQUAL if found == recorded else WRONG


@functools.cache
def outcomes(name: str) -> Mapping[str, str]:
    """Return how each conversation compares, by its title, for the template called `name`."""
    template = parsed(name)
    return {
        title: outcome(None if template is None else rendered(template, conversation), RECORDED[name][title])
        for title, conversation in conversations().items()
    }


def templates_page() -> str:
    """Return the page."""
    total = Counter(found for name in SOURCES for found in outcomes(name).values())
    times = json.loads(TIMES.read_text("utf-8"))
    return _PAGE.format(
        templates=len(SOURCES),
        conversations=len(conversations()),
        all=sum(total.values()),
        equal=total[EQUAL],
        both=total[BOTH_REFUSE],
        here=total[SERVED_HERE],
        wrong=total[WRONG],
        table="\n".join(_table(times["templates"])),
        titles="\n".join(_titles()),
        refusals="\n".join(_refusals()),
        processor=times["processor"],
        python=times["python"],
        ratio=statistics.median(time["ms"] / time["jinja2_ms"] for time in times["templates"].values() if _both(time)),
        both_timed=sum(map(_both, times["templates"].values())),
        slowest=max(time["ms"] for time in times["templates"].values() if time["ms"] is not None),
    )


def _both(time: Mapping[str, Any]) -> bool:
    return time["ms"] is not None and time["jinja2_ms"] is not None


def _table(times: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield f"| template | {EQUAL} | {BOTH_REFUSE} | {SERVED_HERE} | {WRONG} | ms | jinja2, ms | ratio |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in sorted(SOURCES, key=str.lower):
        found, time = Counter(outcomes(name).values()), times[name]
        counts = f"{found[EQUAL]} | {found[BOTH_REFUSE] or ''} | {found[SERVED_HERE] or ''} | {found[WRONG]}"
        ours, theirs = (("" if value is None else f"{value:.1f}") for value in (time["ms"], time["jinja2_ms"]))
        ratio = f"{time['ms'] / time['jinja2_ms']:.2f}" if _both(time) else ""
        yield f"| {name} | {counts} | {ours} | {theirs} | {ratio} |"


def _titles() -> Iterator[str]:
    yield f"| conversation | {EQUAL} | {BOTH_REFUSE} | {SERVED_HERE} | {WRONG} |"
    yield "|---|---|---|---|---|"
    for title in conversations():
        found = Counter(outcomes(name)[title] for name in SOURCES)
        yield f"| {title} | {found[EQUAL]} | {found[BOTH_REFUSE] or ''} | {found[SERVED_HERE] or ''} | {found[WRONG]} |"


def _refusals() -> Iterator[str]:
    """Yield a line for each sentence with which templates refuse conversations in transformers, and here."""
    found: dict[str, list[str]] = {}
    for name, record in RECORDED.items():
        for title, recorded in record.items():
            if outcomes(name)[title] == BOTH_REFUSE:
                found.setdefault(recorded, []).append(name)
    counted: Sequence[tuple[str, list[str]]] = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    for sentence, names in counted:
        words = sentence.replace("|", "\\|").replace("\n", " ")[:160]
        yield f"| {words} | {len(names)} | {', '.join(sorted(set(names), key=str.lower))} |"


_PAGE = """<!-- made by `python -m docs.make`: do not edit -->

# Chat templates

A conversation becomes a prompt by the chat template in the model's files, a program in the language Jinja. Its text is that of
transformers: {templates} templates of public models (llama.cpp b11434 has them) are rendered with {conversations} conversations,
and compared with recorded texts of transformers 5.24. Of {all} renderings {equal} are equal, {both} are refused or fail in both,
{here} are only served here, and {wrong} are wrong.

- **Refused by both.** Transformers raises an exception, and here the request gets 400. If the template refuses the conversation
  itself, for example because it takes no system turn, the answer has the template's own sentence, else the name of the error.
- **Only served here.** As in llama.cpp, a generator is written as JSON as a list, and there is a filter `from_json`.
- **Control tokens.** Only what the template itself writes can be a control token of the prompt. A spelling with a character of
  the client is text.
- **Tools.** A template without a place for tools gets them described in the system turn, or in the first user turn if it takes
  no system turn. Earlier calls are then the assistant's text, and their results are the user's if the template does not print
  them.
- **No template.** If the files of a model have none, each turn is written as a line `<|role|>` and its text, and a warning at the
  start says so. The setting [`chat_template`](settings.md) names a file with another one.

## Templates

*ms* is the processor time for 1,000 messages with 100 tools, here and in plain jinja2 with the settings of transformers, on
{processor} with Python {python}. The median of the ratios is {ratio:.2f}, over {both_timed} templates that render this
conversation in both. The slowest takes {slowest:.0f} ms. `python -m tests.benchmarks.templates` measures it again.

{table}

## Conversations

{titles}

## Refused by both

| the words of transformers | times | templates |
|---|---|---|
{refusals}
"""
