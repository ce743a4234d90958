"""`qwen3`: first reasoning between `<think>` and `</think>`, then content, and calls in the form of `hermes`.

Source: Qwen3's chat template.
"""

from __future__ import annotations

from tlserve.chat.dialect import Dialect
from tlserve.chat.dialects.hermes import BEGIN, HERMES_CALLS, hermes_regions
from tlserve.chat.dialects.markup_dialect import MarkupDialect
from tlserve.chat.output.markup_reader import THINK

QWEN3: Dialect = MarkupDialect(
    name="qwen3",
    template_words=(THINK.end, BEGIN),
    reasoning=THINK,
    calls=HERMES_CALLS,
    regions=hermes_regions,
)
