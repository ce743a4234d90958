"""The recorded prompts of `/infill` and the vocabularies that they are for: a byte-level one with a family's control tokens."""

import json
from pathlib import Path
from typing import Any

from tlserve.text.tokenizer import Tokenizer, build_tokenizer

_FOLDER = Path(__file__).parents[2] / "golden/vocabularies"
BASE: dict[str, Any] = json.loads((_FOLDER / "pre.json").read_text())["vocabulary"]
RECORDED: dict[str, Any] = json.loads((_FOLDER / "infill.json").read_text())


def tokenizer_of(family: str) -> Tokenizer:
    """Return the tokenizer of one of the recorded families."""
    controls, flags = RECORDED["families"][family]["controls"], RECORDED["families"][family]["flags"]
    tokens, types = BASE["tokens"] + controls, BASE["token_type"] + [3] * len(controls)
    values = {**BASE, "tokens": tokens, "token_type": types, **flags}
    return build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in values.items()})
