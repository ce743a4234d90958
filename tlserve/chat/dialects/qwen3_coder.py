"""`qwen3_coder`: calls as tags: `<tool_call>`, `<function=name>`, and `<parameter=key>` around each argument.

Reasoning is read where the model or the prompt begins it. Source: Qwen3-Coder's chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tlserve.chat.dialect import CallForm, Dialect, Slot, ToolUse
from tlserve.chat.dialects.hermes import BEGIN, END
from tlserve.chat.dialects.markup_dialect import MarkupDialect
from tlserve.chat.output.markup_reader import THINK, OpenRegion
from tlserve.chat.output.xml_region import XmlRegion

_CALLS = CallForm(
    call=(BEGIN, "\n<function=", Slot.NAME, ">\n", Slot.ARGUMENTS, "</function>\n", END), between=("\n",), as_tags=True
)


def _regions(tools: ToolUse) -> Mapping[str, OpenRegion]:
    return {BEGIN: partial(XmlRegion, BEGIN, END, tools.schemas)}


QWEN3_CODER: Dialect = MarkupDialect(
    name="qwen3_coder",
    template_words=("<function=", BEGIN),
    reasoning=THINK,
    calls=_CALLS,
    regions=_regions,
)
