"""The models of a server: those that are always in memory, and those that are loaded on first use and leave again.

Owns which settings make which kind, the memory that all of them share, and the check that a model that is loaded again is the one
that was found at the start. One engine is made by `tlserve.programs.local_models`.

Of a model that can leave, the tokenizer, the template and the dialect stay: requests are refused, counted and encoded with them,
whether it is loaded or not.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import partial

import attrs

from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.served_model import AlwaysLoaded
from tlserve.config.machine import available_memory_bytes
from tlserve.config.model_id import served_model_id
from tlserve.config.settings import EngineSettings, Settings
from tlserve.engine.engine import Engine
from tlserve.errors import ModelRefused, SettingsError
from tlserve.generation import BackendInfo
from tlserve.model.load import LoadedModel, ModelFront, files_bytes, load_front
from tlserve.programs.hosted_model import HostedModel, MakeModels, find_model_path, make_served
from tlserve.programs.local_models import (
    load,
    make_backend,
    make_compiler,
    make_engine,
    memory_of,
    start_facts,
    start_lines,
)
from tlserve.programs.residency.loading import LoadedWeights, Plan
from tlserve.programs.residency.memory import ModelMemory
from tlserve.programs.residency.record import MIB
from tlserve.programs.residency.resident import ResidentModel
from tlserve.text.tokenizer import Tokenizer, build_tokenizer

_PIECE = 2048
ALWAYS, FIRST_USE = "always", "first_use"


def load_models(settings: Settings, given: LoadedModel | None = None) -> MakeModels:
    """Load the models that are in memory from the start, one after the other; of the others read all but their weights.

    `given` replaces the first. Slow. What is returned raises `SettingsError` for models that do not fit their memory.
    """
    budget_bytes = settings.loading.memory_bytes or available_memory_bytes() * 9 // 10
    first, *others = settings.served
    fronts = (given or _read(first), *map(_read, others))
    return partial(make_models, settings, fronts, budget_bytes)


def _read(settings: EngineSettings) -> ModelFront:
    if settings.load != FIRST_USE:
        return load(settings)
    return load_front(find_model_path(settings.model_dir), context_tokens=settings.context_tokens)


@attrs.frozen(eq=False)
class _Read:
    """What was read of one model: its front, and the model itself with its engine unless it is loaded on first use."""

    settings: EngineSettings
    front: ModelFront
    loaded: LoadedModel | None = None
    engine: Engine | None = None
    needed_bytes: int = 0

    @property
    def name(self) -> str:
        return served_model_id(self.settings.model_dir, self.settings.model_id)


def make_models(settings: Settings, fronts: Sequence[ModelFront], budget_bytes: int) -> tuple[HostedModel, ...]:
    """Make an engine and a backend for each. Call on the event loop, which the backends' mailboxes belong to."""
    is_shared = settings.loading.memory_bytes > 0 or any(own.load != ALWAYS for own in settings.served)
    share_bytes = (budget_bytes if is_shared else available_memory_bytes()) // len(settings.served)
    found = [_with_engine(own, front, share_bytes) for own, front in zip(settings.served, fronts, strict=True)]
    if is_shared:
        _check_budget(found, budget_bytes)
    memory = ModelMemory(budget_bytes, sum(one.needed_bytes for one in found if one.settings.load == ALWAYS))
    wait_s = settings.loading.wait_ms / 1000
    return tuple(
        _always_loaded(one) if one.settings.load == ALWAYS else _leaving(one, share_bytes, memory, wait_s)
        for one in found
    )


def _with_engine(settings: EngineSettings, front: ModelFront, share_bytes: int) -> _Read:
    if settings.load == FIRST_USE or not isinstance(front, LoadedModel):
        return _Read(settings, front, needed_bytes=files_bytes(find_model_path(settings.model_dir)))
    engine = make_engine(settings, front, share_bytes)
    return _Read(settings, front, front, engine, memory_of(front, engine))


def _check_budget(found: Sequence[_Read], budget_bytes: int) -> None:
    """Refuse models that do not fit: those of the start together, and each other one beside those that never leave."""
    at_start = [one for one in found if one.loaded is not None]
    refusals = []
    if (needed_bytes := sum(one.needed_bytes for one in at_start)) > budget_bytes:
        names = ", ".join(f"{one.name} {one.needed_bytes // MIB} MiB" for one in at_start)
        refusals.append(
            f"loading.memory_bytes: the models that are loaded at the start need {needed_bytes} bytes ({names}), and the limit "
            f'is {budget_bytes}; raise it, set kv_memory_bytes, or load some of them with load = "first_use"'
        )
    left_bytes = budget_bytes - sum(one.needed_bytes for one in at_start if one.settings.load == ALWAYS)
    refusals += [
        f"loading.memory_bytes: the weights of {one.name} take {one.needed_bytes} bytes, and {max(0, left_bytes)} are left "
        "beside the models that never leave; raise it, or leave the model out"
        for one in found
        if one.loaded is None and one.needed_bytes > left_bytes
    ]
    if refusals:
        raise SettingsError(tuple(refusals))


# --- a model that never leaves


def _always_loaded(found: _Read) -> HostedModel:
    own, loaded, engine = found.settings, found.loaded, found.engine
    assert loaded is not None
    assert engine is not None
    tokenizer = build_tokenizer(loaded.metadata)
    backend = make_backend(own, loaded, engine, make_compiler(own, loaded, tokenizer))
    served = attrs.evolve(
        make_served(own, loaded, backend, tokenizer), residency=AlwaysLoaded(memory_bytes=found.needed_bytes)
    )
    return HostedModel(
        served=served,
        backend=backend,
        description=loaded.description,
        lines=start_lines(own, loaded, engine, backend.info()),
        facts=start_facts(own, engine, backend.info()),
    )


# --- a model that can leave


def _leaving(found: _Read, share_bytes: int, memory: ModelMemory, wait_s: float) -> HostedModel:
    own, front = found.settings, found.front
    tokenizer = build_tokenizer(front.metadata)
    source = _Source(own, tokenizer, _mark(front), share_bytes)
    first = None if found.loaded is None or found.engine is None else source.weights(found.loaded, found.engine)
    plan = Plan(
        info=_info_before(own, front, tokenizer),
        load=source.load,
        expected_bytes=found.needed_bytes,
        idle_s=own.idle_unload_ms / 1000 or math.inf,
        most_waiting=own.max_num_seqs + own.queue_capacity,
        wait_s=wait_s,
    )
    resident = ResidentModel(plan, memory, first)
    when = "on first use" if first is None else "at the start"
    return HostedModel(
        served=attrs.evolve(make_served(own, front, resident, tokenizer), residency=resident),
        backend=resident,
        description=front.description,
        lines=(f"  loaded     {when}, and can leave; {found.needed_bytes // MIB} of {memory.budget_bytes // MIB} MiB",),
        facts={"load": own.load, "memory_bytes": found.needed_bytes, "budget_bytes": memory.budget_bytes},
    )


def _info_before(settings: EngineSettings, front: ModelFront, tokenizer: Tokenizer) -> BackendInfo:
    """Describe a model before its first load; what depends on its kernels is not known yet."""
    return BackendInfo(
        model_id=served_model_id(settings.model_dir, settings.model_id),
        context_tokens=front.context_tokens,
        vocabulary_size=tokenizer.vocabulary_size,
        embedding_size=0,
        system_fingerprint="",
        kernels="",
        admission_limit=settings.max_num_seqs + settings.queue_capacity,
    )


class _Source:
    """Loads one model, again and again; runs in a thread. The compiler of its grammars is made once."""

    def __init__(self, settings: EngineSettings, tokenizer: Tokenizer, mark: bytes, share_bytes: int) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._mark = mark
        self._share_bytes = share_bytes
        self._compiler: LlguidanceCompiler | None = None

    def load(self) -> LoadedWeights:
        """Load the model from its files; raises ModelRefused if they are those of another model."""
        loaded = load(self._settings)
        if _mark(loaded) != self._mark:
            raise ModelRefused(
                f"{self._settings.model_dir}: the tokenizer or the template is not that of the start; restart to serve it"
            )
        return self.weights(loaded, make_engine(self._settings, loaded, self._share_bytes))

    def weights(self, loaded: LoadedModel, engine: Engine) -> LoadedWeights:
        """Return a loaded model with its engine as the weights of its backend."""
        compiler = self._compiler = self._compiler or make_compiler(self._settings, loaded, self._tokenizer)
        return LoadedWeights(
            memory_bytes=memory_of(loaded, engine),
            holder=engine,
            make=partial(make_backend, self._settings, loaded, engine, compiler),
        )


def _mark(front: ModelFront) -> bytes:
    """Return a hash of what stays while the model is not loaded; in pieces, because other threads wait during each."""
    mark = hashlib.blake2b(repr((front.chat_template, sorted(front.eos_ids), front.generates)).encode(), digest_size=16)
    for name, value in front.metadata.items():
        listed = value if isinstance(value, list | tuple) else [value]
        mark.update(repr((name, len(listed))).encode())
        for start in range(0, len(listed), _PIECE):
            mark.update(repr(listed[start : start + _PIECE]).encode())
    return mark.digest()
