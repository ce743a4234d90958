"""Which dialect a model speaks: read from its template, or by its name in the settings.

Owns the list and its order, and the check of a choice: a dialect must read the calls that the template itself writes. Does not
know how a dialect reads.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tlserve.chat.dialect import Dialect
from tlserve.chat.dialects import json_calls, marked_calls, named_calls
from tlserve.chat.dialects.harmony import HARMONY
from tlserve.chat.dialects.llama3 import LLAMA3
from tlserve.chat.dialects.mistral import MAGISTRAL, MISTRAL
from tlserve.chat.dialects.plain import PLAIN, PlainDialect
from tlserve.chat.dialects.probe import Probe, reads_back, thinking_tags
from tlserve.chat.dialects.recipients import FUNCTIONARY_V3_2, MUSE_GLIMMER
from tlserve.chat.templates.template import Template

AUTO = "auto"

DIALECTS: tuple[Dialect, ...] = (
    HARMONY,
    MUSE_GLIMMER,
    FUNCTIONARY_V3_2,
    json_calls.SMOLLM3,
    marked_calls.QWEN3_CODER,
    marked_calls.LING3,
    marked_calls.GLM4,
    json_calls.GRANITE4,
    json_calls.QWEN3,
    named_calls.DEEPSEEK_V3_1,
    named_calls.DEEPSEEK_R1,
    json_calls.HERMES,
    marked_calls.SEED_OSS,
    marked_calls.MINIMAX_M2,
    marked_calls.MINIMAX_M3,
    marked_calls.DEEPSEEK_V4,
    marked_calls.DEEPSEEK_V3_2,
    marked_calls.GEMMA4,
    marked_calls.KIMI_K3,
    marked_calls.MINICPM5,
    marked_calls.LFM2,
    named_calls.KIMI_K2,
    named_calls.SOLAR,
    named_calls.FUNCTIONARY_V3_1,
    json_calls.GRANITE3,
    json_calls.APRIEL,
    json_calls.NEMOTRON,
    json_calls.APERTUS,
    json_calls.COHERE2_MOE,
    json_calls.COMMAND_R7B,
    json_calls.GIGACHAT3,
    json_calls.COMMAND_R,
    MAGISTRAL,
    MISTRAL,
    LLAMA3,
    PLAIN,
)
"""All dialects, the more specific of two before the other; the last one matches every model."""

BY_NAME: Mapping[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS}


@attrs.frozen
class FoundDialect:
    """The dialect of a model, and how it was found, in words. `is_known` is false if its calls have a form of their own."""

    dialect: Dialect
    how: str
    is_known: bool = True


def find_dialect(template: Template, special_tokens: Mapping[str, int], name: str = AUTO) -> FoundDialect:
    """Return the dialect called `name`, or the one that reads what the template writes, or `plain` if there is none."""
    if name != AUTO:
        return FoundDialect(BY_NAME[name], "named in the settings")
    probe = Probe.of(template)
    matching = [own for own in DIALECTS[:-1] if own.matches(template.source, special_tokens)]
    if probe.written is None:
        if matching:
            return FoundDialect(matching[0], "recognised by the words of the chat template, which writes no calls")
        return FoundDialect(PLAIN, "the chat template has no form for calls; tools are described in words")
    for dialect in matching:
        if reads_back(dialect, probe):
            return FoundDialect(dialect, "recognised by the words of the chat template, whose calls it reads")
    derived = probe.dialect(thinking_tags(template.source))
    if derived is not None:
        return FoundDialect(derived, "read from the calls that the chat template writes")
    words = "the form of calls in the chat template is not known; tools are described in words, and calls can be forced"
    return FoundDialect(PlainDialect(form=probe.form), words, is_known=False)


def dialect_for(template_source: str, special_tokens: Mapping[str, int], name: str = AUTO) -> Dialect:
    """Return the dialect of a model with this template."""
    return find_dialect(Template.parse(template_source), special_tokens, name).dialect
