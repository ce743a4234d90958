"""A model as a server hosts it: the backend that makes its tokens, and how text becomes its requests and answers.

Owns the type, the protocols, and what the model's own files say: template, dialect, sampling. The tokens come from an engine in
this process (`tlserve.programs.local_models`) or from the nodes of a fleet (`tlserve.programs.fleet_head`). Knows no engine.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Protocol

import attrs
import trio

from tlserve.chat.dialects.registry import FoundDialect, find_dialect
from tlserve.chat.served_model import REASONING_NAMES, Served
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.config.paths import find_model
from tlserve.config.settings import EngineSettings, SamplingSettings
from tlserve.errors import ModelMissing, ModelRefused, SettingsError
from tlserve.generation import Backend
from tlserve.model.load import ModelFront, builtin_model_path
from tlserve.model.sidecar_files import MAX_TEMPLATE_BYTES, read_text
from tlserve.sampling_params import SamplingParams
from tlserve.telemetry.fleet_figures import FleetFigures
from tlserve.text.tokenizer import Tokenizer, build_tokenizer

log = logging.getLogger("tlserve")


class HostedBackend(Backend, Protocol):
    """A backend that runs next to a server; the server tells it when to admit nothing more, and when to end."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; started once it takes requests. Raises `EngineFailed`, after every open request got it."""

    def close(self) -> None:
        """Admit nothing more: new requests raise `Draining`; open requests continue."""

    def cut(self) -> None:
        """End every open request with `DrainCut`."""


async def wait_forever() -> str:
    """Wait forever, for an event that does not happen."""
    await trio.sleep_forever()
    raise AssertionError


@attrs.frozen(kw_only=True, eq=False)
class HostedModel:
    """One model of a server. `lines` describe it to a person at the start, `facts` to a program.

    `about` is what /healthz adds for this model; `fleet` is what /metrics reports of its nodes, if it has any. `wait_unfit`
    returns, with the reason, when the model can never take a new request again: then the server drains.
    """

    served: Served
    backend: HostedBackend
    description: str
    lines: tuple[str, ...] = ()
    facts: Mapping[str, object] = attrs.field(factory=dict)
    about: Callable[[], Mapping[str, object]] = dict
    fleet: Callable[[], FleetFigures] = FleetFigures
    wait_unfit: Callable[[], Awaitable[str]] = wait_forever


MakeModels = Callable[[], tuple[HostedModel, ...]]
"""What loading returns: a function to call on the event loop, which the backends belong to."""


# --- what the model's files say


def find_model_path(model_dir: str) -> Path:
    """Return the files that `model_dir` names: a path, a pulled model, or a built-in one; raises ModelMissing."""
    path = Path(model_dir).expanduser()
    found = path if path.exists() else find_model(model_dir) or builtin_model_path(model_dir)
    if found is None:
        raise ModelMissing(
            f"there is no model {model_dir!r}: not a path, not pulled and not built in; "
            "give a GGUF file, or run `tlserve pull smol-135m`, or use the built-in `succ`"
        )
    return found


def make_served(
    settings: EngineSettings, front: ModelFront, backend: Backend, tokenizer: Tokenizer | None = None
) -> Served:
    """Return the model as endpoints serve it over `backend`; `tokenizer` if it has been built already."""
    tokenizer = tokenizer or build_tokenizer(front.metadata)
    template, whose = _template(settings, front)
    found = find_dialect(template.for_tools, tokenizer.special_tokens, settings.dialect)
    if front.generates:
        _log_front(backend.info().model_id, found, whose)
    return Served(
        model_id=backend.info().model_id,
        aliases=settings.model_aliases,
        created=int(time.time()),
        backend=backend,
        tokenizer=tokenizer,
        eos_ids=front.eos_ids,
        template=template,
        dialect=found.dialect,
        reasoning_names=(*REASONING_NAMES, *(("reasoning",) if settings.reasoning_alias else ())),
        generates=front.generates,
        embeds=front.scores is None,
        scores=front.scores,
        prompts=front.prompts,
        min_dimensions=settings.embedding_min_dimensions or front.min_dimensions,
        default_sampling=default_sampling(settings.sampling, front.default_sampling),
    )


def _template(settings: EngineSettings, front: ModelFront) -> tuple[Template, str]:
    """Return the template, with the one for requests with tools if the model has two, and a sentence if it is not the model's.

    Raises SettingsError if the file that the settings name is not a template.
    """
    if settings.chat_template:
        try:
            template = Template.parse(read_text(Path(settings.chat_template).expanduser(), MAX_TEMPLATE_BYTES))
        except ModelRefused as error:
            raise SettingsError((f"chat_template = {settings.chat_template!r}: {error}; name a Jinja file",)) from error
        return template, f"the chat template is that of {settings.chat_template}"
    if front.chat_template is None:
        return Template.parse(DEFAULT_TEMPLATE), ""
    template = Template.parse(front.chat_template)
    if front.tool_template:
        template = attrs.evolve(template, tool_use=Template.parse(front.tool_template))
    return template, "the chat template is the model's own"


def _log_front(model_id: str, found: FoundDialect, whose: str) -> None:
    """Log the template and the dialect, as warnings where the model's files do not say them."""
    level = logging.INFO if found.is_known else logging.WARNING
    log.log(level, "%s: dialect %s: %s", model_id, found.dialect.name, found.how)
    if whose:
        log.info("%s: %s", model_id, whose)
    else:
        log.warning(
            "%s: the model's files have no chat template, so in chats each turn is written as a line <|role|> and its text, "
            "which the model was probably not trained for; name a template by engine.chat_template, or send the whole text to "
            "/v1/completions",
            model_id,
        )


def default_sampling(operator: SamplingSettings, makers: SamplingParams) -> SamplingParams:
    """Return the defaults of a request's sampling: what the operator sets, and the model makers' advice for the rest."""
    given = {name: value for name, value in attrs.asdict(operator).items() if value is not None}
    return attrs.evolve(makers, **given)
