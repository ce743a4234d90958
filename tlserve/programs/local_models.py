"""Models with engines in this process: their settings become engines, backends, and what is served.

Owns the loading of a server's models and who is handed to whom inside each of them. Refuses to know the server around them.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import attrs

from tlserve import __version__
from tlserve.chat.dialects.registry import dialect_for
from tlserve.chat.grammars.compiler import LlguidanceCompiler
from tlserve.chat.served_model import REASONING_NAMES, Served
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.config.machine import available_memory_bytes
from tlserve.config.model_id import served_model_id
from tlserve.config.paths import find_model
from tlserve.config.settings import EngineSettings, SamplingSettings, Settings
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.errors import ModelMissing
from tlserve.generation import Backend, BackendInfo, SamplingParams
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load import LoadedModel, ModelFront, builtin_model_path, load_model
from tlserve.programs.capacity import plan_kv_blocks
from tlserve.programs.hosted_model import HostedModel, MakeModels
from tlserve.text.tokenizer import Tokenizer, build_tokenizer
from tlserve.worker.grammars import GrammarLimits
from tlserve.worker.local_backend import BackendLimits, LocalBackend

log = logging.getLogger("tlserve")

MIB = 1 << 20


def find_model_path(model_dir: str) -> Path:
    """Return the files that `model_dir` names: a path, a pulled model, or one built in; raises ModelMissing."""
    path = Path(model_dir).expanduser()
    found = path if path.exists() else find_model(model_dir) or builtin_model_path(model_dir)
    if found is None:
        raise ModelMissing(
            f"there is no model {model_dir!r}: not a path, not pulled and not built in; "
            "give a GGUF file, or run `tlserve pull smol-135m`, or take the built-in `succ`"
        )
    return found


def load(settings: EngineSettings) -> LoadedModel:
    """Load the model that the settings name; slow. What its files ask for and is not served goes to the log."""
    loaded = load_model(
        find_model_path(settings.model_dir),
        context_tokens=settings.context_tokens,
        threads=settings.threads,
        kernels=KernelChoice(
            kernels=settings.kernels,
            activations=settings.activations,
            kv_precision=settings.kv_precision,
            weights=settings.weights,
        ),
    )
    for note in loaded.notes:
        log.warning("%s: %s", loaded.name, note)
    return loaded


def load_models(settings: Settings, given: LoadedModel | None = None) -> MakeModels:
    """Load every model of the settings, one after the other; `given` stands for the first. Slow."""
    first, *others = settings.served
    return partial(make_models, settings, (given or load(first), *map(load, others)))


def make_models(settings: Settings, loaded: Sequence[LoadedModel]) -> tuple[HostedModel, ...]:
    """Make an engine and a backend for each. Call on the event loop, which the backends' mailboxes belong to."""
    memory_bytes = available_memory_bytes() // len(settings.served)
    return tuple(_make_model(own, model, memory_bytes) for own, model in zip(settings.served, loaded, strict=True))


def make_engine(settings: EngineSettings, loaded: LoadedModel, memory_bytes: int) -> Engine:
    """Make the engine of a model; its keys and values get a share of `memory_bytes`, unless the settings say how much."""
    return Engine(loaded.model, _engine_config(settings, loaded, memory_bytes))


def _make_model(settings: EngineSettings, loaded: LoadedModel, memory_bytes: int) -> HostedModel:
    engine = make_engine(settings, loaded, memory_bytes)
    tokenizer = build_tokenizer(loaded.metadata)
    compiler = LlguidanceCompiler(tokenizer, loaded.model.spec.vocabulary_size, source_bytes=settings.grammar_bytes)
    backend = LocalBackend(engine, _info(settings, loaded, engine), _limits(settings, loaded), compiler)
    return HostedModel(
        served=serve_front(settings, loaded, backend, tokenizer),
        backend=backend,
        description=loaded.description,
        lines=_lines(settings, loaded, engine, backend.info()),
        facts=_facts(settings, engine, backend.info()),
    )


def _engine_config(settings: EngineSettings, loaded: LoadedModel, memory_bytes: int) -> EngineConfig:
    return EngineConfig(
        max_num_seqs=settings.max_num_seqs,
        # admission is counted by the backend, where it can be answered at once; the engine never refuses before it
        max_waiting=max(settings.queue_capacity, 1 << 20),
        prefill_chunk=settings.prefill_chunk,
        block_size=settings.block_size,
        kv_blocks=plan_kv_blocks(settings, loaded.model.spec, memory_bytes),
        prefix_cache=settings.prefix_cache,
        speculative=settings.speculative,
        speculative_tokens=settings.speculative_tokens,
        context_tokens=settings.context_tokens,
        sampler="numpy" if settings.kernels == "reference" else "auto",
        sampler_threads=settings.threads,
    )


def _admission_limit(settings: EngineSettings) -> int:
    return settings.max_num_seqs + settings.queue_capacity


def _limits(settings: EngineSettings, loaded: LoadedModel) -> BackendLimits:
    return BackendLimits(
        admission=_admission_limit(settings),
        # in an encoder there are no chats that embeddings could stand in front of
        embeddings=settings.max_num_seqs if loaded.model.spec.bidirectional else max(1, settings.max_num_seqs // 2),
        queue_deadline_s=settings.queue_deadline_ms / 1000,
        heartbeat_stale_s=settings.heartbeat_stale_ms / 1000,
        grammars=GrammarLimits(time_s=settings.grammar_timeout_ms / 1000, kept=settings.grammar_cache),
    )


def _info(settings: EngineSettings, loaded: LoadedModel, engine: Engine) -> BackendInfo:
    spec = loaded.model.spec
    return BackendInfo(
        model_id=served_model_id(settings.model_dir, settings.model_id),
        context_tokens=engine.context_tokens,
        vocabulary_size=spec.vocabulary_size,
        embedding_size=spec.hidden_size,
        system_fingerprint=_fingerprint(spec.numerics),
        kernels=spec.kernels,
        admission_limit=_admission_limit(settings),
    )


def _fingerprint(numerics: str) -> str:
    """Return the hash of all that may change an answer: this version's code, the model's numerics, and what makes masks."""
    everything = f"{__version__}/{numerics}/llguidance {version('llguidance')}"
    return "fp_" + hashlib.blake2b(everything.encode(), digest_size=8).hexdigest()


def serve_front(
    settings: EngineSettings, front: ModelFront, backend: Backend, tokenizer: Tokenizer | None = None
) -> Served:
    """Return how a model is spoken with over `backend`, as its files and the settings say; `tokenizer` if it is made already."""
    tokenizer = tokenizer or build_tokenizer(front.metadata)
    template = Template.parse(DEFAULT_TEMPLATE if front.chat_template is None else front.chat_template)
    return Served(
        model_id=backend.info().model_id,
        aliases=settings.model_aliases,
        created=int(time.time()),
        backend=backend,
        tokenizer=tokenizer,
        eos_ids=front.eos_ids,
        template=template,
        dialect=dialect_for(template.source, tokenizer.special_tokens, settings.dialect),
        reasoning_names=(*REASONING_NAMES, *(("reasoning",) if settings.reasoning_alias else ())),
        generates=front.generates,
        min_dimensions=settings.embedding_min_dimensions or None,
        default_sampling=default_sampling(settings.sampling, front.default_sampling),
    )


def default_sampling(operator: SamplingSettings, makers: SamplingParams) -> SamplingParams:
    """Return what a request's sampling is laid over: the makers' advice, and over it what the operator sets."""
    given = {name: value for name, value in attrs.asdict(operator).items() if value is not None}
    return attrs.evolve(makers, **given)


def _lines(settings: EngineSettings, loaded: LoadedModel, engine: Engine, info: BackendInfo) -> tuple[str, ...]:
    return (
        f"  context    {info.context_tokens} tokens; {_kept(settings, loaded, engine)}",
        f"  arithmetic {info.kernels}; answers repeat under {info.system_fingerprint}",
        f"  requests   {settings.max_num_seqs} run at once, {settings.queue_capacity} more may wait",
    )


def _kept(settings: EngineSettings, loaded: LoadedModel, engine: Engine) -> str:
    """Say what is kept between steps; of an encoder, which keeps nothing, what it makes."""
    if not loaded.generates:
        return f"makes vectors of {loaded.model.spec.hidden_size} numbers"
    tokens = engine.config.kv_tokens
    size_mib = tokens * loaded.model.spec.kv_bytes_per_token // MIB
    return f"keys and values of {tokens} tokens ({size_mib} MiB when full); prefix cache {settings.prefix_cache}"


def _facts(settings: EngineSettings, engine: Engine, info: BackendInfo) -> dict[str, object]:
    return {
        "context_tokens": info.context_tokens,
        "kv_tokens": engine.config.kv_tokens,
        "prefix_cache": settings.prefix_cache,
        "kernels": info.kernels,
        "system_fingerprint": info.system_fingerprint,
        "max_num_seqs": settings.max_num_seqs,
        "queue_capacity": settings.queue_capacity,
    }
