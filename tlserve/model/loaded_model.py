"""How to load a model, and the result: the forward pass, and what the packages above need besides.

The front is a type of its own: the head of a fleet, which has no engine, reads only that, and no weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import Model
from tlserve.sampling_params import SamplingParams


@attrs.frozen(kw_only=True)
class LoadOptions:
    """How to load a model. `context_tokens` 0: what it was trained for; `threads` 0: one per core."""

    context_tokens: int = 0
    threads: int = 0
    kernels: KernelChoice = attrs.field(factory=KernelChoice)


@attrs.frozen(kw_only=True)
class Scores:
    """What a model that scores texts makes: a number for each of `labels`, which `activation` makes scores of.

    `activation`: "sigmoid", "softmax" or "identity". `pair`: the ids before, between and after two texts that are scored
    together. `around`: for a decoder, control tokens before them, text before the first and between the two, and control tokens
    at the end; it replaces `pair`.
    """

    labels: tuple[str, ...]
    activation: str
    pair: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = ((), (), ())
    around: tuple[str, str, str, str] | None = None


@attrs.frozen(kw_only=True)
class Prompts:
    """What comes before a text that is embedded, by name; `default`: the name of the one that a request gets without asking."""

    texts: Mapping[str, str] = {}
    default: str | None = None


@attrs.frozen(kw_only=True, eq=False)
class ModelFront:
    """What a model is without its weights. `metadata` holds the `tokenizer.*` keys, by GGUF's names.

    `name` is what the files call it, `description` one line for a person. `tool_template`: the chat template for requests with
    tools, if it is another one. `default_sampling`: the sampling that its makers recommend; `notes`: a sentence for each request
    of its files that is not served. An encoder makes vectors only: `generates` is false, and `scores` is what it makes where that
    is not a vector. `prompts`: of a sentence encoder. `min_dimensions`: the shortest vectors that the model was trained for.
    """

    metadata: Mapping[str, object]
    chat_template: str | None
    tool_template: str | None = None
    eos_ids: frozenset[int]
    bos_id: int | None
    context_tokens: int
    name: str
    description: str
    default_sampling: SamplingParams = attrs.field(factory=SamplingParams)
    notes: tuple[str, ...] = ()
    generates: bool = True
    scores: Scores | None = None
    prompts: Prompts = attrs.field(factory=Prompts)
    min_dimensions: int | None = None


@attrs.frozen(kw_only=True, eq=False)
class LoadedModel(ModelFront):
    """A model that is ready to run; `weights_bytes` is the memory that its weights take."""

    model: Model
    weights_bytes: int

    @classmethod
    def of(cls, front: ModelFront, model: Model, weights_bytes: int) -> LoadedModel:
        """Return `front` with its forward pass."""
        return cls(model=model, weights_bytes=weights_bytes, **attrs.asdict(front, recurse=False))
