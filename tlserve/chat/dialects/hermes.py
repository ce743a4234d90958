"""`hermes`: calls as JSON between `<tool_call>` and `</tool_call>`, in ChatML or any other chat format.

Qwen 2.5 and many finetunes also use this form. Between the tags is one object with a name and arguments, or a list of such
objects. Source: the "Hermes Function Calling" documents of Nous Research; Qwen2.5's chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tlserve.chat.dialect import CallForm, Dialect, Slot, ToolUse
from tlserve.chat.dialects.markup_dialect import MarkupDialect
from tlserve.chat.output.json_regions import JsonRegion
from tlserve.chat.output.markup_reader import OpenRegion

BEGIN, END = "<tool_call>", "</tool_call>"

HERMES_CALLS = CallForm(
    call=(BEGIN, '\n{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, "}\n", END),
    between=("\n",),
)


def hermes_regions(tools: ToolUse) -> Mapping[str, OpenRegion]:
    """Return the marker of calls."""
    return {BEGIN: partial(JsonRegion, BEGIN, END, tools.schemas)}


HERMES: Dialect = MarkupDialect(name="hermes", template_words=(BEGIN,), calls=HERMES_CALLS, regions=hermes_regions)
