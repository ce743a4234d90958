"""The dialects whose calls are a name, and then the arguments as JSON, between marks of each family's own.

Sources: the chat template of each family.
"""

from __future__ import annotations

from tlserve.chat.dialect import CallForm, Slot, TurnForm
from tlserve.chat.dialects.described import DescribedDialect
from tlserve.chat.output.markup_reader import THINK

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001 - the model's own spelling
BEGIN, END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001 - the model's own spelling
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001 - the model's own spelling

DEEPSEEK_R1 = DescribedDialect(
    name="deepseek_r1",
    template_words=(ALL_BEGIN, THINK.end),
    reasoning=THINK,
    calls=CallForm(
        before=(ALL_BEGIN,),
        call=(BEGIN, "function", SEPARATOR, Slot.NAME, "\n```json\n", Slot.ARGUMENTS, "\n```", END),
        between=("\n",),
        after=(ALL_END,),
        begin=BEGIN,
        end=END,
        dropped=(ALL_BEGIN, ALL_END, END),
    ),
    form=TurnForm(arguments_as_text=True, null_content=True),
)
"""The arguments are in a fenced block, after a kind, a separator and the name: DeepSeek R1 and its distillates.

The template joins the arguments of earlier calls to strings, and needs these calls to have no content.
"""

DEEPSEEK_V3_1 = DescribedDialect(
    name="deepseek_v3_1",
    template_words=(ALL_BEGIN, SEPARATOR, THINK.end),
    reasoning=THINK,
    calls=CallForm(
        before=(ALL_BEGIN,),
        call=(BEGIN, Slot.NAME, SEPARATOR, Slot.ARGUMENTS, END),
        after=(ALL_END,),
        begin=BEGIN,
        end=END,
        dropped=(ALL_BEGIN, ALL_END, SEPARATOR, END),
    ),
    form=TurnForm(arguments_as_text=True, null_content=True),
)
"""The name, a separator, the arguments: DeepSeek V3.1."""

KIMI_K2 = DescribedDialect(
    name="kimi_k2",
    template_words=("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"),
    reasoning=THINK,
    calls=CallForm(
        before=("<|tool_calls_section_begin|>",),
        call=(
            *("<|tool_call_begin|>functions.", Slot.NAME, ":", Slot.NUMBER, "<|tool_call_argument_begin|>"),
            *(Slot.ARGUMENTS, "<|tool_call_end|>"),
        ),
        after=("<|tool_calls_section_end|>",),
        begin="<|tool_call_begin|>",
        end="<|tool_call_end|>",
        dropped=(
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
            "<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
        omitted="functions.",
    ),
    ends_reasoning=True,
)
"""`functions.`, the name and the number of the call, then the arguments."""

FUNCTIONARY_V3_1 = DescribedDialect(
    name="functionary_v3_1",
    template_words=("<function=", "</function>", "<|python_tag|>"),
    calls=CallForm(
        call=("<function=", Slot.NAME, ">", Slot.ARGUMENTS, "</function>"), begin="<function=", end="</function>"
    ),
)
"""`<function=name>`, the arguments, `</function>`."""

SOLAR = DescribedDialect(
    name="solar_open",
    template_words=("<|tool_call:begin|>", "<|tool_call:args|>"),
    reasoning=None,
    calls=CallForm(
        before=("<|tool_calls|>",),
        call=(
            *("<|tool_call:begin|>", Slot.ID, "<|tool_call:name|>", Slot.NAME, "<|tool_call:args|>"),
            *(Slot.ARGUMENTS, "<|tool_call:end|>"),
        ),
        begin="<|tool_call:begin|>",
        end="<|tool_call:end|>",
        dropped=("<|tool_calls|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
    ),
)
