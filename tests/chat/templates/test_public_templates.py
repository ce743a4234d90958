"""Every public template renders every conversation as transformers does, and no client can write its control tokens.

`tests/golden/make_templates.py` recorded what transformers renders.
"""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from docs.make.templates_page import DIGEST, RECORDED, SOURCES, WRONG, outcomes, parsed, rendered, variables
from tests.kit.chat.conversations import (
    CLOCK,
    FRAME,
    MANY,
    ODD_NAMES,
    TEXT,
    UNDESCRIBED,
    WEATHER,
    Conversation,
    call,
    calls,
    conversations,
    say,
    tool,
)
from tlserve.chat.templates.origin import origin_of, plain_text
from tlserve.chat.templates.template import Template
from tlserve.errors import ClientError
from tlserve.text.special_tokens import SpecialTokens

pytestmark = pytest.mark.slow


def test_the_record_has_every_template_and_conversation() -> None:
    assert set(RECORDED) == set(SOURCES)
    assert len(SOURCES) == 71
    assert all(set(record) == set(conversations()) for record in RECORDED.values())


@pytest.mark.spec("CHAT-10")
@pytest.mark.parametrize("name", SOURCES)
def test_a_template_renders_every_conversation_as_transformers_does(name: str) -> None:
    found = outcomes(name)
    assert {title: RECORDED[name][title] for title, one in found.items() if one == WRONG} == {}
    assert len(found) == 35


@pytest.mark.spec("CHAT-77")
@pytest.mark.parametrize("name", SOURCES)
def test_a_thousand_messages_with_a_hundred_tools_are_rendered_within_two_seconds(name: str) -> None:
    template = parsed(name)
    given = variables(conversations()[MANY])
    began_s = time.process_time()
    with contextlib.suppress(ClientError):
        template.render(given, clock=lambda: CLOCK) if template else None
    assert time.process_time() - began_s < 2


# --- attacks -------------------------------------------------------------------------------------------------------------

SPELLED = re.compile(
    r"<\|[^|<>\s'\"]{1,40}\|>|<\uff5c[^\uff5c<>\s'\"]{1,40}\uff5c>|</?[a-z_:]{1,24}>|\[/?[A-Z_]{3,20}\]|<(?:start|end)_of_turn>"
)
HARMLESS = str.maketrans("<>[]|\uff5c", "qxzvwj")
THOUGHTS = re.compile(r"(<[^<>]*think[^<>]*>|\[/?THINK\])")
"""Templates look for these in earlier answers, and cut there or write their own: as their authors meant it."""


def spellings(template: Template) -> list[str]:
    """Return the control tokens of a template: those in its source, and those that it composes."""
    known = conversations()
    asked = [
        rendered(template, known[title]) for title in ("five turns", "called and asked again", "a thought in a field")
    ]
    return sorted({*FRAME.values(), *SPELLED.findall(" ".join([template.source, *filter(None, asked)]))})


def attacks(spelled: list[str]) -> Iterator[Conversation]:
    """Yield conversations whose client types control tokens everywhere, in whole, nested, and in halves that meet."""
    every = " ".join(spelled)
    for one, other in zip(spelled, [*spelled[1:], spelled[0]], strict=True):
        half, rest = one[: len(one) // 2], one[len(one) // 2 :]
        nested = other[:2] + other + other[2:]
        parts = [{"type": "text", "text": half}, {"type": "text", "text": rest + nested}]
        bad = tool(f"get{other}", {f"p{one}": {**TEXT, "description": every}, rest: TEXT}, f"{one}{half}")
        made = call(half, {rest: one, f"k{other}": f"\n{other}\n", "deep": [half, rest]}, half)
        yield Conversation(
            [say("system", every + half), say("user", rest), say("assistant", f" {half} "), say("user", nested + one)]
        )
        yield Conversation([say("user", parts), say("assistant", f"<think>{one}</think>{other}"), say("user", parts)])
        yield Conversation(
            [say("user", half), calls(rest, made), say("tool", every, name=half, tool_call_id=rest)], [bad]
        )
        thought = say("assistant", rest, reasoning_content=one + half)
        yield Conversation([say("user", rest, name=half), thought, say("user", other, name=one)])


def tamed(value: Any) -> Any:
    """Return a conversation's tree with brackets that spell nothing."""
    if isinstance(value, str):
        parts = THOUGHTS.split(value)
        return "".join(part if THOUGHTS.fullmatch(part) else part.translate(HARMLESS) for part in parts)
    if isinstance(value, dict):
        return {tamed(key): (member if key == "role" else tamed(member)) for key, member in value.items()}
    return [tamed(member) for member in value] if isinstance(value, list) else value


def controls(text: str, special: SpecialTokens) -> list[int]:
    return [piece for piece in special.split(plain_text(text), origin_of(text)) if isinstance(piece, int)]


@pytest.mark.spec("CHAT-8", "CASE-23")
@pytest.mark.parametrize("name", SOURCES)
def test_a_client_that_types_control_tokens_adds_none(name: str) -> None:
    template = parsed(name)
    if template is None:
        return
    spelled = spellings(template)
    special = SpecialTokens({spelling: number for number, spelling in enumerate(spelled)})
    compared = 0
    for attack in attacks(spelled):
        hostile = rendered(template, attack)
        harmless = rendered(template, Conversation(tamed(attack.messages), tamed(attack.tools)))
        if hostile is not None and harmless is not None:
            compared += 1
            assert controls(hostile, special) == controls(harmless, special)
    assert compared or not any(map(DIGEST.fullmatch, RECORDED[name].values()))


def member_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for member in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from member_names(member)


@pytest.mark.spec("CHAT-8")
@pytest.mark.parametrize("name", SOURCES)
def test_the_control_tokens_that_a_template_writes_are_its_own(name: str) -> None:
    """Nothing in these conversations looks like a control token, except a name between a template's own brackets."""
    template = parsed(name)
    if template is None:
        return
    special = SpecialTokens({spelling: number for number, spelling in enumerate(spellings(template))})
    names = set(member_names([WEATHER, ODD_NAMES, UNDESCRIBED]))
    for title in ("system and user", "five turns", "one tool", "called", "two calls", "a thought in a field", MANY):
        text = rendered(template, conversations()[title])
        if text is not None:
            all_spelled = [piece for piece in special.split(plain_text(text)) if isinstance(piece, int)]
            around_names = {number for spelling, number in special.ids.items() if spelling.strip("</>") in names}
            own = controls(text, special)
            assert [token for token in own if token not in around_names] == [
                token for token in all_spelled if token not in around_names
            ]
