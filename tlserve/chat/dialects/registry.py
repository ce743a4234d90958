"""Which dialect a model speaks: by its template and special tokens, or by its name in the settings.

Owns the list and its order. Does not know how a dialect reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from tlserve.chat.dialect import Dialect
from tlserve.chat.dialects.deepseek_r1 import DEEPSEEK_R1
from tlserve.chat.dialects.hermes import HERMES
from tlserve.chat.dialects.llama3 import LLAMA3
from tlserve.chat.dialects.mistral import MISTRAL
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.dialects.qwen3 import QWEN3
from tlserve.chat.dialects.qwen3_coder import QWEN3_CODER
from tlserve.chat.dialects.smollm3 import SMOLLM3

AUTO = "auto"

DIALECTS: tuple[Dialect, ...] = (SMOLLM3, QWEN3_CODER, QWEN3, DEEPSEEK_R1, HERMES, MISTRAL, LLAMA3, PLAIN)
"""All dialects, the most specific first; the last one matches every model."""

BY_NAME: Mapping[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS}


def dialect_for(template_source: str, special_tokens: Mapping[str, int], name: str = AUTO) -> Dialect:
    """Return the dialect called `name`, or the first dialect that matches the model."""
    if name != AUTO:
        return BY_NAME[name]
    return next(dialect for dialect in DIALECTS if dialect.matches(template_source, special_tokens))
