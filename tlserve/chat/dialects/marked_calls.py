"""The dialects whose calls have marks around each argument: tags, Python, or braces.

Sources: the chat template of each family.
"""

from __future__ import annotations

import attrs

from tlserve.chat.dialect import ArgumentMarks, CallForm, Notation, Slot, Tags
from tlserve.chat.dialects.described import DescribedDialect
from tlserve.chat.output.markup_reader import THINK

_PARAMETERS = ArgumentMarks(key_begin="<parameter=", key_end=">\n", value_end="\n</parameter>\n")
_DSML = "｜DSML｜"  # noqa: RUF001 - the model's own spelling
_M3 = "]<]minimax[>["


def _invoked(section: str, mark: str = "", *, typed: bool = False) -> CallForm:
    """Return the form of a section of `<invoke name="...">` with `<parameter name="...">`."""
    text, other = (' string="true">', ' string="false">') if typed else (">", "")
    return CallForm(
        before=(f"<{mark}{section}>\n",),
        call=(f'<{mark}invoke name="', Slot.NAME, '">\n', Slot.ARGUMENTS, f"</{mark}invoke>\n"),
        after=(f"</{mark}{section}>",),
        begin=f"<{mark}{section}>",
        end=f"</{mark}{section}>",
        arguments=ArgumentMarks(
            key_begin=f'<{mark}parameter name="',
            key_end=f'"{text}',
            json_key_end=f'"{other}' if other else "",
            value_end=f"</{mark}parameter>\n",
        ),
    )


QWEN3_CODER = DescribedDialect(
    name="qwen3_coder",
    template_words=("<function=", "<tool_call>", "<parameter="),
    reasoning=THINK,
    calls=CallForm(
        call=("<tool_call>\n<function=", Slot.NAME, ">\n", Slot.ARGUMENTS, "</function>\n</tool_call>"),
        between=("\n",),
        begin="<tool_call>",
        end="</tool_call>",
        arguments=_PARAMETERS,
    ),
    ends_reasoning=True,
    habits=("<function=",),
)
"""`<tool_call>`, `<function=name>`, `<parameter=key>` around each value: Qwen3-Coder, Qwen 3.5, Nemotron 3."""

SEED_OSS = DescribedDialect(
    name="seed_oss",
    template_words=("<seed:tool_call>",),
    reasoning=Tags("<seed:think>", "</seed:think>"),
    calls=CallForm(
        call=("<seed:tool_call>\n<function=", Slot.NAME, ">\n", Slot.ARGUMENTS, "</function>\n</seed:tool_call>"),
        between=("\n",),
        begin="<seed:tool_call>",
        end="</seed:tool_call>",
        arguments=ArgumentMarks(key_begin="<parameter=", key_end=">", value_end="</parameter>\n"),
    ),
)
GLM4 = DescribedDialect(
    name="glm4",
    template_words=("<arg_key>", "<arg_value>", "<tool_call>"),
    reasoning=THINK,
    calls=CallForm(
        call=("<tool_call>", Slot.NAME, "\n", Slot.ARGUMENTS, "</tool_call>"),
        between=("\n",),
        begin="<tool_call>",
        end="</tool_call>",
        arguments=ArgumentMarks(key_begin="<arg_key>", key_end="</arg_key>\n<arg_value>", value_end="</arg_value>\n"),
    ),
    ends_reasoning=True,
)
"""The name after `<tool_call>`, then `<arg_key>` and `<arg_value>`: GLM 4.5 to 4.7."""

LING3 = attrs.evolve(
    GLM4, name="ling3", template_words=(*GLM4.template_words, "<|role_end|>"), dropped=("<|role_end|>",)
)
"""As `glm4`: Ling 3."""

MINIMAX_M2 = DescribedDialect(
    name="minimax_m2",
    template_words=("<minimax:tool_call>", "<invoke name="),
    reasoning=THINK,
    calls=_invoked("minimax:tool_call"),
)
DEEPSEEK_V3_2 = DescribedDialect(
    name="deepseek_v3_2",
    template_words=(f"{_DSML}", "function_calls"),
    reasoning=THINK,
    calls=_invoked("function_calls", _DSML, typed=True),
    ends_reasoning=True,
    habits=(f'<{_DSML}invoke name="',),
)
DEEPSEEK_V4 = DescribedDialect(
    name="deepseek_v4",
    template_words=(f"{_DSML}", "tool_calls"),
    reasoning=THINK,
    calls=_invoked("tool_calls", _DSML, typed=True),
    ends_reasoning=True,
    habits=(f'<{_DSML}invoke name="',),
)
MINIMAX_M3 = DescribedDialect(
    name="minimax_m3",
    template_words=(_M3, "<mm:think>"),
    reasoning=Tags("<mm:think>", "</mm:think>"),
    calls=CallForm(
        before=(f"{_M3}<tool_call>\n",),
        call=(f'{_M3}<invoke name="', Slot.NAME, '">', Slot.ARGUMENTS, f"{_M3}</invoke>\n"),
        after=(f"{_M3}</tool_call>",),
        begin=f"{_M3}<tool_call>",
        end=f"{_M3}</tool_call>",
        arguments=ArgumentMarks(key_begin=f"{_M3}<", key_end=">", value_end=f"{_M3}</{{key}}>"),
    ),
)
"""A tag with the name of each argument, each after a mark of its own."""

KIMI_K3 = DescribedDialect(
    name="kimi_k3",
    template_words=("<|open|>", "<|close|>", "<|sep|>"),
    reasoning=Tags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    content=Tags("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
    calls=CallForm(
        before=("<|open|>tools<|sep|>",),
        call=(
            *('<|open|>call tool="', Slot.NAME, '" index="', Slot.NUMBER, '"<|sep|>'),
            *(Slot.ARGUMENTS, "<|close|>call<|sep|>"),
        ),
        after=("<|close|>tools<|sep|>",),
        begin="<|open|>tools<|sep|>",
        end="<|close|>tools<|sep|>",
        arguments=ArgumentMarks(
            key_begin='<|open|>argument key="',
            key_end='" type="string"<|sep|>',
            json_key_end='" type="{type}"<|sep|>',
            value_end="<|close|>argument<|sep|>",
        ),
    ),
    ends_reasoning=True,
    dropped=("<|close|>message<|sep|>",),
)
"""Tags of three tokens, and a type for each argument: Kimi K3."""

MINICPM5 = DescribedDialect(
    name="minicpm5",
    template_words=('<function name="', '<param name="', THINK.end),
    reasoning=THINK,
    calls=CallForm(
        call=('<function name="', Slot.NAME, '">', Slot.ARGUMENTS, "</function>"),
        between=("\n",),
        begin='<function name="',
        end="</function>",
        arguments=ArgumentMarks(
            key_begin='<param name="', key_end='">', value_end="</param>", text_begin="<![CDATA[", text_end="]]>"
        ),
    ),
    habits=('<functionname="',),
)
"""XML, in which a text can be a section of character data: MiniCPM 5."""

LFM2 = DescribedDialect(
    name="lfm2",
    template_words=("<|tool_call_start|>",),
    tokens=("<|tool_call_start|>", "<|tool_call_end|>"),
    reasoning=THINK,
    calls=CallForm(
        before=("<|tool_call_start|>[",),
        call=(Slot.NAME, "(", Slot.ARGUMENTS, ")"),
        between=(", ",),
        after=("]<|tool_call_end|>",),
        begin="<|tool_call_start|>",
        end="<|tool_call_end|>",
        arguments=ArgumentMarks(notation=Notation.PYTHON, key_end="=", between=", "),
    ),
)
"""A list of calls as Python between two marks."""

GEMMA4 = DescribedDialect(
    name="gemma4",
    template_words=("<|tool_call>", "<tool_call|>"),
    reasoning=Tags("<|channel>thought\n", "<channel|>"),
    short_begin="<|channel>",
    calls=CallForm(
        call=("<|tool_call>call:", Slot.NAME, "{", Slot.ARGUMENTS, "}<tool_call|>"),
        begin="<|tool_call>",
        end="<tool_call|>",
        arguments=ArgumentMarks(
            notation=Notation.BRACES, key_end=":", between=",", text_begin='<|"|>', text_end='<|"|>'
        ),
    ),
    dropped=("<|channel>thought\n", "<channel|>"),
)
"""`call:name{key:value}`, with marks of its own around texts: Gemma 4."""
