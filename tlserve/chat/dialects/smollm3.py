"""`smollm3`: reasoning in the form of `qwen3`, then content, and calls in the form of `hermes`.

Its template contains `/no_think`, and may take the tools under the name `xml_tools` (see `tlserve.chat.prompt`).
Source: SmolLM3's chat template and model card.
"""

from __future__ import annotations

from tlserve.chat.dialect import Dialect
from tlserve.chat.dialects.hermes import HERMES_CALLS, hermes_regions
from tlserve.chat.dialects.markup_dialect import MarkupDialect
from tlserve.chat.output.markup_reader import THINK

SMOLLM3: Dialect = MarkupDialect(
    name="smollm3",
    template_words=(THINK.end, "/no_think"),
    reasoning=THINK,
    calls=HERMES_CALLS,
    regions=hermes_regions,
)
