"""Conversations in every form that chat templates look at: for tests of templates against the renderings of transformers.

Each is what a template gets: messages, tools (or None), and further variables.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs

Message = dict[str, Any]

FRAME = {"bos_token": "<s>", "eos_token": "</s>"}
CLOCK = datetime(2026, 11, 30, 7, 0)
"""With which the recorded renderings were made."""


@attrs.frozen
class Conversation:
    """The variables of a rendering."""

    messages: list[Message]
    tools: list[Message] | None = None
    more: Mapping[str, Any] = attrs.field(factory=dict)


def say(role: str, content: Any, **more: Any) -> Message:
    """Return a message."""
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any, call_id: str = "call00001") -> Message:
    """Return a tool call of an assistant's message; its id has nine letters and digits, as Mistral's templates demand."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(content: Any, *made: Message, **more: Any) -> Message:
    """Return an assistant's message with calls."""
    return say("assistant", content, tool_calls=list(made), **more)


def tool(
    name: str, properties: Any, description: str | None = "Looks it up.", required: tuple[str, ...] = ()
) -> Message:
    """Return a tool."""
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


TEXT = {"type": "string", "description": "a text"}
WEATHER = tool("get_weather", {"city": TEXT, "unit": {"type": "string", "enum": ["c", "f"]}}, required=("city",))
ODD_NAMES = tool("odd", dict.fromkeys(("id", "text", "start", "end", "name", "object", "type", "items", "a"), TEXT))
UNDESCRIBED = tool("bare", {"x": {"type": "integer"}}, None)
WITHOUT_PARAMETERS = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {}}}
DEEP = tool(
    "deep",
    {
        "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "number", "default": 1.5}}}},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": 'says "this"\nand é'},
        "map": {"type": "object", "additionalProperties": {"type": "boolean"}, "nullable": True},
    },
)
NESTED = {"a": [1, 2.5, None, True], "é": {"ü": "“q”"}, "s": 'a"b\\c\nd', "id": "text"}
HELLO = [say("system", "Be brief."), say("user", "Hello!")]
AND_NOW = say("user", "And now?")
PARIS = call("get_weather", {"city": "Paris", "unit": "c"})
RESULT = say("tool", '{"degrees": 21}', tool_call_id="call00001", name="get_weather")
CALLED = [say("user", "Weather in Paris?"), calls("", PARIS), RESULT]
THOUGHT = "<think>\nThe user greets.\n</think>\n\nHi there."


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def _many() -> Conversation:
    pair = [say("user", "Tell me more. " * 8), say("assistant", "Well. " * 40)]
    tools = [tool(f"tool_{number}", {"id": TEXT, "text": TEXT, "n": {"type": "integer"}}) for number in range(100)]
    return Conversation([*itertools.islice(itertools.cycle(pair), 999), AND_NOW], tools)


MANY = "1,000 messages, 100 tools"


def conversations() -> dict[str, Conversation]:
    """Return the conversations by name."""
    return {**_texts(), **_tools(), **_thoughts(), MANY: _many()}


def _texts() -> dict[str, Conversation]:
    hi = say("assistant", "Hi.")
    talk = [say("user", "Hello!"), hi, AND_NOW, say("assistant", "Fine."), say("user", "Bye")]
    image = {"type": "image", "image": "x.png"}
    quotes = "He said \"a\\b\"\n'c' & <d> {{ 7*7 }} {% x %} %s %(a)s {0}"
    return {
        "system and user": Conversation(HELLO),
        "no system": Conversation(HELLO[1:]),
        "no generation prompt": Conversation(HELLO, more={"add_generation_prompt": False}),
        "five turns": Conversation(talk),
        "a later system turn": Conversation([*HELLO, hi, say("system", "Now rhyme."), AND_NOW]),
        "two system turns first": Conversation([say("system", "A."), say("system", "B."), AND_NOW]),
        "developer": Conversation([say("developer", "Be kind."), AND_NOW]),
        "ends with an answer": Conversation([*HELLO, hi], more={"add_generation_prompt": False}),
        "empty texts": Conversation([say("system", ""), say("user", ""), say("assistant", ""), say("user", " ")]),
        "no message": Conversation([]),
        "spaces": Conversation(
            [say("system", "\n A \n"), say("user", " \tb\r\n"), say("assistant", "\n\nc "), AND_NOW]
        ),
        "unicode": Conversation([say("user", "é ß İ Σ 你好 👩‍👩‍👧 \u202eabc\u0301 \ufeff \ue000")]),
        "quotes": Conversation([say("user", quotes)]),
        "text parts": Conversation([say("user", [_text("One "), _text("two")])]),
        "image part": Conversation([say("user", [image, _text("What?")])]),
        "names": Conversation([say("user", "Hello", name="Ann"), say("assistant", "Hi", name="Bot"), AND_NOW]),
    }


def _tools() -> dict[str, Conversation]:
    two = [call("get_weather", {"city": "Rome"}, "call00002"), call("bare", {"x": 3}, "call00003")]
    results = [say("tool", "21", tool_call_id="call00002"), say("tool", "ok", tool_call_id="call00003")]
    asked = say("user", "x")
    return {
        "one tool": Conversation(HELLO, [WEATHER]),
        "odd names of parameters": Conversation(HELLO, [ODD_NAMES]),
        "tools without description": Conversation(HELLO, [UNDESCRIBED, WITHOUT_PARAMETERS]),
        "deep schemas": Conversation(HELLO, [DEEP, WEATHER]),
        "null content": Conversation([say("user", "Go"), calls(None, call("bare", {"x": 1})), RESULT], [UNDESCRIBED]),
        "called": Conversation(CALLED, [WEATHER, ODD_NAMES]),
        "called and asked again": Conversation(
            [*HELLO[:1], *CALLED, say("assistant", "21 degrees."), AND_NOW], [WEATHER]
        ),
        "two calls": Conversation([say("user", "Both"), calls("Sure.", *two), *results], [WEATHER, UNDESCRIBED]),
        "nested arguments": Conversation([asked, calls("", call("odd", NESTED)), RESULT], [ODD_NAMES]),
        "arguments as text": Conversation([asked, calls("", call("odd", json.dumps(NESTED))), RESULT], [ODD_NAMES]),
        "calls without tools": Conversation(CALLED),
        "a result in parts": Conversation(
            [*CALLED[:2], say("tool", [_text("21")], tool_call_id="call00001")], [WEATHER]
        ),
    }


def _thoughts() -> dict[str, Conversation]:
    on = {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}
    return {
        "a thought in the text": Conversation([*HELLO, say("assistant", THOUGHT), AND_NOW]),
        "a thought in a field": Conversation([*HELLO, say("assistant", "Hi.", reasoning_content="Greets.\n"), AND_NOW]),
        "a thought and a call": Conversation([CALLED[0], calls("<think>\nhm\n</think>\n", PARIS), RESULT], [WEATHER]),
        "a thought in a field and a call": Conversation(
            [CALLED[0], calls("", PARIS, reasoning_content="hm"), RESULT], [WEATHER]
        ),
        "thinking off": Conversation(
            [say("system", "A /no_think"), say("user", "b /think")], more={"enable_thinking": False}
        ),
        "thinking on": Conversation(HELLO, [WEATHER], on),
    }
