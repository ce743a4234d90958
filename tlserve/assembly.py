"""Settings become the objects of a server: the models, their engines and backends, what is served, and the handlers.

Owns who is handed to whom. Refuses to run anything: `tlserve.app` starts and ends what is made here.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import attrs

from tlserve import __version__
from tlserve.access.addresses import AddressLimits
from tlserve.access.cors import Cors
from tlserve.access.door import Door
from tlserve.access.keys import KeyRing, global_key, join_keys, parse_keys
from tlserve.capacity import plan_kv_blocks
from tlserve.chat.dialects.registry import dialect_for
from tlserve.chat.templates import DEFAULT_TEMPLATE, Template
from tlserve.config.machine import available_memory_bytes
from tlserve.config.model_id import served_model_id
from tlserve.config.paths import find_model
from tlserve.config.settings import AccessSettings, EngineSettings, SamplingSettings, Settings, TelemetrySettings
from tlserve.config.toml_file import read_toml
from tlserve.endpoints.api import ROUTES
from tlserve.endpoints.context import ApiContext, new_request_id
from tlserve.endpoints.served import Catalogue, Served
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.errors import ModelMissing, SettingsError
from tlserve.generation import BackendInfo, SamplingParams
from tlserve.http.exchange import Handler
from tlserve.http.messages import Headers
from tlserve.http.tls import Certificate
from tlserve.kernels.choose import KernelChoice
from tlserve.lifecycle.health import make_health_handler
from tlserve.lifecycle.reload import Reloading
from tlserve.model.load import LoadedModel, builtin_model_path, load_model
from tlserve.openai.documents import REASONING_NAMES
from tlserve.telemetry.metrics import metrics_text
from tlserve.telemetry.request_counts import RequestCounts
from tlserve.telemetry.request_histograms import RequestHistograms
from tlserve.telemetry.request_log import RequestRecord, log_request
from tlserve.telemetry.tracing import Tracer
from tlserve.text.tokenizer import build_tokenizer
from tlserve.worker.local_backend import BackendLimits, LocalBackend

log = logging.getLogger("tlserve")


@attrs.frozen(kw_only=True, eq=False)
class AssembledModel:
    """One model's objects: its engine has a thread of its own, its backend a queue of its own."""

    settings: EngineSettings
    loaded: LoadedModel
    served: Served
    backend: LocalBackend
    engine: Engine


@attrs.frozen(kw_only=True, eq=False)
class Assembled:
    """A server's objects, made and not yet running; the first of `models` is that of [engine]."""

    settings: Settings
    models: tuple[AssembledModel, ...]
    requests: RequestCounts
    histograms: RequestHistograms
    api: ApiContext

    @property
    def backend(self) -> LocalBackend:
        """Return the backend of the first model."""
        return self.models[0].backend

    @property
    def engine(self) -> Engine:
        """Return the engine of the first model."""
        return self.models[0].engine

    def not_ready_reason(self) -> str:
        """Return why one of the models cannot answer now, or ""."""
        reasons = (model.backend.info().not_ready_reason for model in self.models)
        return next(filter(None, reasons), "")


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


def load_all(settings: Settings, given: LoadedModel | None = None) -> tuple[LoadedModel, ...]:
    """Load every model of the settings, one after the other; `given` stands for the first."""
    first, *others = settings.served
    return (given or load(first), *map(load, others))


def read_keys(settings: AccessSettings) -> KeyRing | None:
    """Return the API keys, None where none are asked for; raises `SettingsError`."""
    if not (settings.keys_file or settings.api_key):
        return None
    try:
        in_file = parse_keys(read_toml(Path(settings.keys_file).expanduser())) if settings.keys_file else ()
    except SettingsError as error:
        raise SettingsError(tuple(f"access.keys_file: {line}" for line in error.refusals)) from None
    return join_keys(in_file, global_key(settings.api_key) if settings.api_key else None)


def make_door(settings: AccessSettings) -> Door:
    """Return the door of the settings, with its keys; raises `SettingsError`."""
    ring = read_keys(settings)
    if ring is None and settings.metrics_need_key:
        raise SettingsError(("access.metrics_need_key is true, and there are no keys: give access.keys_file or a key",))
    return Door(ring, public=settings.public_routes, addresses=AddressLimits(settings.address_requests_per_minute))


def reloadings(settings: Settings, door: Door, certificate: Certificate | None) -> list[Reloading]:
    """Return what is made anew when its files change: the keys and the certificate."""
    access = settings.access

    def reload_keys() -> None:
        ring = read_keys(access)
        assert ring is not None
        door.replace_keys(ring)

    keys = Reloading(what="access.keys_file", paths=(access.keys_file,), reload=reload_keys)
    tls = () if certificate is None else (_tls_reloading(certificate),)
    return [*((keys,) if access.keys_file else ()), *tls]


def _tls_reloading(certificate: Certificate) -> Reloading:
    return Reloading(what="tls.certificate", paths=certificate.paths, reload=certificate.reload)


def make_tracer(settings: TelemetrySettings) -> Tracer | None:
    """Return what traces requests, None if nobody asks; raises `SettingsError` without the package for it."""
    if not settings.traces_endpoint:
        return None
    try:
        from tlserve.telemetry.otel import OtelTracer, otlp_processor

        return OtelTracer(otlp_processor(settings.traces_endpoint), __version__)
    except ImportError as error:
        reason = (
            f"telemetry.traces_endpoint needs a package that is not here ({error.name}): pip install 'tlserve[otel]'"
        )
        raise SettingsError((reason,)) from error


def assemble(
    settings: Settings, loaded: Sequence[LoadedModel], door: Door | None = None, tracer: Tracer | None = None
) -> Assembled:
    """Make all objects around the loaded models. Call on the event loop, which the backends' mailboxes belong to."""
    memory_bytes = available_memory_bytes() // len(settings.served)
    models = tuple(
        _assemble_model(own, model, memory_bytes) for own, model in zip(settings.served, loaded, strict=True)
    )
    requests, histograms = RequestCounts(path for _, path in ROUTES), RequestHistograms()
    api = ApiContext(
        catalogue=Catalogue(model.served for model in models),
        door=door or make_door(settings.access),
        cors=Cors(settings.cors.allow_origins),
        settings=settings.http,
        log=partial(_count_and_log, requests, histograms),
        tracer=tracer,
    )
    return Assembled(
        settings=settings,
        models=models,
        requests=requests,
        histograms=histograms,
        api=api,
    )


def _assemble_model(settings: EngineSettings, loaded: LoadedModel, memory_bytes: int) -> AssembledModel:
    """Make one model's objects; its keys and values get a share of `memory_bytes`, unless the settings say how much."""
    engine = Engine(loaded.model, _engine_config(settings, loaded, memory_bytes))
    backend = LocalBackend(engine, _info(settings, loaded, engine), _limits(settings, loaded))
    served = _served(settings, loaded, backend)
    return AssembledModel(settings=settings, loaded=loaded, served=served, backend=backend, engine=engine)


def health_handler(
    current: Callable[[], Assembled | None], not_ready_reason: Callable[[], str], metrics_door: Door | None = None
) -> Handler:
    """Return the handler of the health port; `current` is None until the model is loaded.

    /metrics wants a key of `metrics_door`, if there is one.
    """

    def guard_metrics(headers: Headers) -> None:
        if metrics_door is not None:
            metrics_door.authenticate(headers, time.time())

    def about() -> dict[str, object]:
        assembled = current()
        models = () if assembled is None else assembled.models
        return {"kernels": {model.served.model_id: model.backend.info().kernels for model in models}} if models else {}

    def metrics() -> str:
        assembled = current()
        return metrics_text({}, version=__version__) if assembled is None else _metrics(assembled)

    return make_health_handler(
        not_ready_reason=not_ready_reason,
        metrics=metrics,
        new_id=new_request_id,
        about=about,
        guard_metrics=guard_metrics,
    )


def _count_and_log(requests: RequestCounts, histograms: RequestHistograms, record: RequestRecord) -> None:
    requests.count(record.method, record.path, record.status, record.finish or "")
    histograms.observe(record)
    log_request(record)


def _metrics(assembled: Assembled) -> str:
    return metrics_text(
        {model.served.model_id: model.backend.statistics() for model in assembled.models},
        requests=assembled.requests,
        histograms=assembled.histograms,
        version=__version__,
        kernels=",".join(dict.fromkeys(model.backend.info().kernels for model in assembled.models)),
        vllm_aliases=assembled.settings.telemetry.vllm_aliases,
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


def _limits(settings: EngineSettings, loaded: LoadedModel) -> BackendLimits:
    return BackendLimits(
        admission=settings.max_num_seqs + settings.queue_capacity,
        # in an encoder there are no chats that embeddings could stand in front of
        embeddings=settings.max_num_seqs if loaded.model.spec.bidirectional else max(1, settings.max_num_seqs // 2),
        queue_deadline_s=settings.queue_deadline_ms / 1000,
        heartbeat_stale_s=settings.heartbeat_stale_ms / 1000,
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
        admission_limit=settings.max_num_seqs + settings.queue_capacity,
    )


def _fingerprint(numerics: str) -> str:
    """Return the hash of all that may change an answer: this version's code and the model's numerics."""
    return "fp_" + hashlib.blake2b(f"{__version__}/{numerics}".encode(), digest_size=8).hexdigest()


def _served(settings: EngineSettings, loaded: LoadedModel, backend: LocalBackend) -> Served:
    tokenizer = build_tokenizer(loaded.metadata)
    template = Template.parse(DEFAULT_TEMPLATE if loaded.chat_template is None else loaded.chat_template)
    return Served(
        model_id=backend.info().model_id,
        aliases=settings.model_aliases,
        created=int(time.time()),
        backend=backend,
        tokenizer=tokenizer,
        eos_ids=loaded.eos_ids,
        template=template,
        dialect=dialect_for(template.source, tokenizer.special_tokens, settings.dialect),
        reasoning_names=(*REASONING_NAMES, *(("reasoning",) if settings.reasoning_alias else ())),
        generates=loaded.generates,
        min_dimensions=settings.embedding_min_dimensions or None,
        default_sampling=default_sampling(settings.sampling, loaded.default_sampling),
    )


def default_sampling(operator: SamplingSettings, makers: SamplingParams) -> SamplingParams:
    """Return what a request's sampling is laid over: the makers' advice, and over it what the operator sets."""
    given = {name: value for name, value in attrs.asdict(operator).items() if value is not None}
    return attrs.evolve(makers, **given)
