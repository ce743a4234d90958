"""A model as a server offers it, and the catalogue in which a request's `model` is looked up.

Owns the two types. Does not know how a model is loaded and run: `tlserve.programs` puts the parts together.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tlserve.chat.dialect import Dialect
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.errors import ModelNotFound, Refusal
from tlserve.generation import Backend, SamplingParams
from tlserve.text.tokenizer import Tokenizer

REASONING_NAMES = ("reasoning_content",)
"""The field of an answer in which reasoning is sent, unless a setting adds names."""


def _default_template() -> Template:
    return Template.parse(DEFAULT_TEMPLATE)


@attrs.frozen(kw_only=True)
class Served:
    """One served model: `created` in seconds since 1970; `default_sampling` is what a request's own is laid over.

    `eos_ids` end an answer unless the request ignores them; `dialect` says what the text of an answer means, and its reasoning
    goes out under `reasoning_names`. An encoder makes vectors only: `generates` is false. `min_dimensions`: how short its
    vectors may be cut, if it was trained for that. `backend_kind` says what makes its tokens.
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
    default_sampling: SamplingParams = attrs.field(factory=SamplingParams)
    generates: bool = True
    embeds: bool = True
    min_dimensions: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return every id that a request may name."""
        return (self.model_id, *self.aliases)


def check_generates(served: Served) -> None:
    """Refuse a model that only makes vectors, by its name."""
    if not served.generates:
        raise Refusal(
            f"the model {served.model_id!r} makes embeddings and no text; send it to /v1/embeddings, or name another",
            param="model",
        )


def check_embeds(served: Served) -> None:
    """Refuse a model that makes no vectors, by its name."""
    if not served.embeds:
        raise Refusal(f"the model {served.model_id!r} makes no embeddings; name another", param="model")


class Catalogue:
    """The served models by every name they have."""

    def __init__(self, models: Iterable[Served]) -> None:
        self.models = tuple(models)
        self._by_name = {name: served for served in self.models for name in served.names}

    def pick(self, name: str) -> Served:
        """Return the model called `name`; raises ModelNotFound that says what is served."""
        served = self._by_name.get(name)
        if served is None:
            known = ", ".join(self._by_name)
            raise ModelNotFound(f"the model {name[:100]!r} is not served here; send one of: {known}")
        return served
