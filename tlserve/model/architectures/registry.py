"""The table of all architectures, and where to find one by its name in a file."""

from __future__ import annotations

from tlserve.model.architectures.forms import Architecture, GgufForm, HfForm
from tlserve.model.architectures.gemma4 import GEMMAS_4
from tlserve.model.architectures.gemmas import GEMMAS
from tlserve.model.architectures.layer_normed import LAYER_NORMED
from tlserve.model.architectures.llamas import LLAMAS
from tlserve.model.architectures.mixtures import MIXTURES
from tlserve.model.architectures.multipliers import MULTIPLIERS
from tlserve.model.architectures.reordered import REORDERED

ARCHITECTURES: tuple[Architecture, ...] = (
    *LLAMAS,
    *MULTIPLIERS,
    *GEMMAS,
    *GEMMAS_4,
    *REORDERED,
    *LAYER_NORMED,
    *MIXTURES,
)

HF: dict[str, tuple[Architecture, HfForm]] = {a.hf.model_type: (a, a.hf) for a in ARCHITECTURES if a.hf}
"""By `model_type` of config.json."""

GGUF: dict[str, tuple[Architecture, GgufForm]] = {a.gguf.name: (a, a.gguf) for a in ARCHITECTURES if a.gguf}
"""By `general.architecture` of GGUF."""
