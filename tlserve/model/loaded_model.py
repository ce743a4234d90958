"""What loading a model gives: the forward pass, and what the rooms above need to speak with it."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tlserve.generation import SamplingParams
from tlserve.kernels.interface import Model


@attrs.frozen(kw_only=True, eq=False)
class LoadedModel:
    """A model that is ready to run. `metadata` holds the `tokenizer.*` keys, by GGUF's names.

    `name` is what the files call it, `description` one line for a person; `weights_bytes` is the memory the weights take.
    `default_sampling`: how its makers would have tokens drawn; `notes`: a sentence for each thing that its files ask for and
    that is not served. An encoder makes vectors only: `generates` is false.
    """

    model: Model
    metadata: Mapping[str, object]
    chat_template: str | None
    eos_ids: frozenset[int]
    bos_id: int | None
    name: str
    description: str
    weights_bytes: int
    default_sampling: SamplingParams = attrs.field(factory=SamplingParams)
    notes: tuple[str, ...] = ()
    generates: bool = True
