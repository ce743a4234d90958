"""The dialects whose calls are JSON objects with a name and arguments, between marks of each family's own.

Sources: the chat template of each family; "Hermes Function Calling" of Nous Research.
"""

from __future__ import annotations

import attrs

from tlserve.chat.dialect import CallForm, Slot, Tags
from tlserve.chat.dialects.described import DescribedDialect
from tlserve.chat.output.markup_reader import THINK

_OBJECT = ('{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, "}")


def listed_calls(begin: str, end: str, names: tuple[str, str] = ("name", "arguments")) -> CallForm:
    """Return the form of a JSON list of calls between two marks; `names` are those of the name and the arguments."""
    return CallForm(
        before=(f"{begin}[",),
        call=(f'{{"{names[0]}": "', Slot.NAME, f'", "{names[1]}": ', Slot.ARGUMENTS, "}"),
        between=(", ",),
        after=(f"]{end}",),
        begin=begin,
        end=end,
    )


HERMES_CALLS = CallForm(
    call=("<tool_call>\n", *_OBJECT, "\n</tool_call>"), between=("\n",), begin="<tool_call>", end="</tool_call>"
)
HERMES = DescribedDialect(name="hermes", template_words=("<tool_call>",), calls=HERMES_CALLS)
"""JSON between `<tool_call>` and `</tool_call>`: Qwen 2.5 and many finetunes."""

QWEN3 = DescribedDialect(name="qwen3", template_words=(THINK.end, "<tool_call>"), reasoning=THINK, calls=HERMES_CALLS)
"""Reasoning, then calls in the form of `hermes`."""

SMOLLM3 = DescribedDialect(name="smollm3", template_words=(THINK.end, "/no_think"), reasoning=THINK, calls=HERMES_CALLS)
"""As `qwen3`; its template contains `/no_think`, and may take the tools under the name `xml_tools`."""

GRANITE4 = DescribedDialect(name="granite4", template_words=("<tool_call>", "<|start_of_role|>"), calls=HERMES_CALLS)
"""As `hermes`: Granite 4."""

GRANITE3 = DescribedDialect(
    name="granite3",
    template_words=("<|tool_call|>", "<|start_of_role|>"),
    reasoning=THINK,
    content=Tags("<response>", "</response>"),
    calls=listed_calls("<|tool_call|>", ""),
    habits=("<tool_call>",),
)
"""A list after `<|tool_call|>`, or in some answers `<tool_call>`: Granite 3."""

APRIEL = DescribedDialect(
    name="apriel",
    template_words=("[BEGIN FINAL RESPONSE]", "<tool_calls>"),
    reasoning=Tags("Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"),
    calls=listed_calls("<tool_calls>", "</tool_calls>"),
)
NEMOTRON = DescribedDialect(
    name="nemotron_v2",
    template_words=("<TOOLCALL>", "</TOOLCALL>"),
    reasoning=THINK,
    calls=listed_calls("<TOOLCALL>", "</TOOLCALL>"),
)
"""A list between `<TOOLCALL>` and `</TOOLCALL>`: Nemotron Nano v2."""

APERTUS = DescribedDialect(
    name="apertus",
    template_words=("<|tools_prefix|>", "<|tools_suffix|>"),
    reasoning=Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    calls=CallForm(
        before=("<|tools_prefix|>[",),
        call=('{"', Slot.NAME, '": ', Slot.ARGUMENTS, "}"),
        between=(", ",),
        after=("]<|tools_suffix|>",),
        begin="<|tools_prefix|>",
        end="<|tools_suffix|>",
    ),
)
"""Objects whose only member has the tool's name."""

COMMAND_R7B = DescribedDialect(
    name="command_r7b",
    template_words=("<|START_ACTION|>", "<|END_ACTION|>"),
    reasoning=Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    content=Tags("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    calls=CallForm(
        before=("<|START_ACTION|>[\n    ",),
        call=(
            *('{"tool_call_id": "', Slot.NUMBER, '", "tool_name": "', Slot.NAME),
            *('", "parameters": ', Slot.ARGUMENTS, "}"),
        ),
        between=(",\n    ",),
        after=("\n]<|END_ACTION|>",),
        begin="<|START_ACTION|>",
        end="<|END_ACTION|>",
    ),
)
"""A list with `tool_name` and `parameters`: Command R7B and Command A."""

COHERE2_MOE = attrs.evolve(
    COMMAND_R7B,
    name="cohere2moe",
    template_words=(*COMMAND_R7B.template_words, "<|START_TEXT|>"),
    content=Tags("<|START_TEXT|>", "<|END_TEXT|>"),
)
"""As `command_r7b`, with other tags around the content."""

_GIGACHAT = "<|message_sep|>\n\nfunction call<|role_sep|>\n"
GIGACHAT3 = DescribedDialect(
    name="gigachat3",
    template_words=("<|message_sep|>", "function call"),
    calls=CallForm(call=(_GIGACHAT + str(_OBJECT[0]), *_OBJECT[1:]), begin=_GIGACHAT),
    habits=("<|function_call|>",),
)
"""An object after a message that ends with `function call`: GigaChat 3."""

COMMAND_R = DescribedDialect(
    name="command_r",
    template_words=("Action:", "tool_name", "<|CHATBOT_TOKEN|>"),
    calls=CallForm(
        before=("Action:\n```json\n[\n    ",),
        call=('{"tool_name": "', Slot.NAME, '", "parameters": ', Slot.ARGUMENTS, "}"),
        between=(",\n    ",),
        after=("\n]```",),
        begin="Action:",
        end="```",
    ),
    dropped=("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
)
"""A list in a fenced block after `Action:`: Command R and R+."""
