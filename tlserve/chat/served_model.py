"""A model as a server offers it, and the catalogue in which a request's `model` is looked up.

Owns both types. Does not know how a model is loaded and run: `tlserve.programs` puts the parts together.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext

import attrs

from tlserve.chat.dialect import Dialect
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.errors import ClientError, ModelNotFound, Refusal
from tlserve.generation import Backend, ModelStatus, Residency
from tlserve.model.loaded_model import Prompts, Scores
from tlserve.sampling_params import SamplingParams
from tlserve.text.tokenizer import Tokenizer

REASONING_NAMES = ("reasoning_content",)
"""The fields of an answer in which reasoning is sent; a setting can add names."""


def _default_template() -> Template:
    return Template.parse(DEFAULT_TEMPLATE)


@attrs.frozen
class AlwaysLoaded:
    """The `Residency` of a model that is loaded at the start and never leaves."""

    memory_bytes: int = 0

    @property
    def can_leave(self) -> bool:
        """It cannot."""
        return False

    def status(self) -> ModelStatus:
        """Return that it is loaded."""
        return ModelStatus(memory_bytes=self.memory_bytes, loads_total=1)

    def held(self) -> AbstractAsyncContextManager[float]:
        """Wait for nothing."""
        return nullcontext(0.0)

    def keep_for(self, idle_s: float) -> None:
        """Change nothing: it stays."""


@attrs.frozen(kw_only=True)
class Served:
    """One served model.

    `created` is in seconds since 1970. A request's own sampling parameters replace those of `default_sampling`. `eos_ids` end an
    answer unless the request ignores them. `dialect` reads the text of an answer; its reasoning is sent under `reasoning_names`.
    An encoder makes only vectors: its `generates` is false. `min_dimensions` is the shortest length to which its vectors can be
    cut, if it was trained for that.
    `scores`: what it makes if that is neither text nor a vector. `backend_kind` names the backend that makes its tokens. What
    `backend` says and does needs a model that its `residency` holds in memory.
    """

    model_id: str
    backend: Backend
    tokenizer: Tokenizer
    created: int = 0
    aliases: tuple[str, ...] = ()
    eos_ids: frozenset[int] = frozenset()
    template: Template = attrs.field(factory=_default_template)
    dialect: Dialect = PLAIN
    reasoning_names: tuple[str, ...] = REASONING_NAMES
    backend_kind: str = "local"
    residency: Residency = AlwaysLoaded()
    default_sampling: SamplingParams = attrs.field(factory=SamplingParams)
    generates: bool = True
    embeds: bool = True
    scores: Scores | None = None
    prompts: Prompts = attrs.field(factory=Prompts)
    min_dimensions: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return every name that a request can use for the model."""
        return (self.model_id, *self.aliases)


def check_generates(served: Served) -> None:
    """Refuse a model that makes only vectors; the message has its name."""
    if not served.generates:
        makes, path = (
            ("embeddings", "/v1/embeddings") if served.scores is None else ("scores", "/v1/score or /v1/classify")
        )
        raise Refusal(
            f"the model {served.model_id!r} makes {makes} and no text; send it to {path}, or name another model",
            param="model",
        )


def check_embeds(served: Served) -> None:
    """Refuse a model that does not make vectors; the message has its name."""
    if not served.embeds:
        raise Refusal(f"the model {served.model_id!r} does not make embeddings; name another model", param="model")


class Catalogue:
    """The served models, by each of their names."""

    def __init__(self, models: Iterable[Served]) -> None:
        self.models = tuple(models)
        self._by_name = {name: served for served in self.models for name in served.names}

    def pick(self, name: str) -> Served:
        """Return the model called `name`, or for "" the only one; raises ModelNotFound, which lists the served models.

        Raises ClientError for "" if there are several.
        """
        if not name and len(self.models) == 1:
            return self.models[0]
        served = self._by_name.get(name)
        if served is None:
            known = ", ".join(self._by_name)
            if not name:
                raise ClientError(
                    f"model is missing, and several models are served; send one of: {known}", param="model"
                )
            raise ModelNotFound(f"the model {name[:100]!r} is not served here; send one of: {known}")
        return served
