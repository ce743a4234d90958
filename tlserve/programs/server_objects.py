"""The objects of a server, made from settings and hosted models: the keys, the API, the handlers.

Owns which object gets which other. Runs nothing: `tlserve.programs.server` starts and ends what is made here. Does not know
what makes a model's tokens.
"""

from __future__ import annotations

import logging
import stat
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import attrs

from tlserve import __version__
from tlserve.access.addresses import AddressLimits
from tlserve.access.cors import Cors
from tlserve.access.door import Door
from tlserve.access.keys import ApiKey, KeyRing, global_key, join_keys, parse_keys
from tlserve.access.pages import PageGuard
from tlserve.chat.served_model import Catalogue
from tlserve.config.settings import Settings, TelemetrySettings
from tlserve.config.tables.network import AccessSettings
from tlserve.config.tables.responses import ResponseSettings
from tlserve.config.toml_file import read_toml
from tlserve.endpoints.api import ROUTES
from tlserve.endpoints.context import ApiContext, new_request_id
from tlserve.endpoints.responses.kept import KeptResponses
from tlserve.errors import SettingsError
from tlserve.http.exchange import Handler
from tlserve.http.messages import Headers
from tlserve.http.sockets.tls import Certificate
from tlserve.lifecycle.health import make_health_handler
from tlserve.lifecycle.reload import Reloading
from tlserve.programs.hosted_model import HostedBackend, HostedModel
from tlserve.responses.store import ResponseStore
from tlserve.telemetry.request_counts import RequestCounts
from tlserve.telemetry.request_histograms import RequestHistograms
from tlserve.telemetry.request_log import RequestRecord, log_request
from tlserve.telemetry.tracing import Tracer

log = logging.getLogger("tlserve")


@attrs.frozen(kw_only=True, eq=False)
class Assembled:
    """A server's objects, which do not run yet; the first of `models` is that of [engine]."""

    settings: Settings
    models: tuple[HostedModel, ...]
    requests: RequestCounts
    histograms: RequestHistograms
    api: ApiContext

    @property
    def backend(self) -> HostedBackend:
        """Return the backend of the first model."""
        return self.models[0].backend

    def not_ready_reason(self) -> str:
        """Return the reason why one of the models cannot answer now, or ""."""
        reasons = (model.backend.info().not_ready_reason for model in self.models)
        return next(filter(None, reasons), "")


def read_keys(settings: AccessSettings) -> KeyRing | None:
    """Return the API keys, or None if the settings require none; raises `SettingsError`."""
    if not (settings.keys_file or settings.api_key):
        return None
    try:
        in_file = _keys_in(Path(settings.keys_file).expanduser()) if settings.keys_file else ()
    except SettingsError as error:
        raise SettingsError(tuple(f"access.keys_file: {line}" for line in error.refusals)) from None
    return join_keys(in_file, global_key(settings.api_key) if settings.api_key else None)


def _keys_in(path: Path) -> Sequence[ApiKey]:
    """Return the keys of a file; raises `SettingsError`, also for a file that every user of this machine can write."""
    keys = parse_keys(read_toml(path))
    if path.stat().st_mode & stat.S_IWOTH:
        raise SettingsError((f"{path}: every user of this machine can write to it; take that away with chmod o-w",))
    return keys


def make_door(settings: AccessSettings) -> Door:
    """Return the door of the settings, with its keys; raises `SettingsError`."""
    ring = read_keys(settings)
    if ring is None and settings.metrics_need_key:
        raise SettingsError(
            ("access.metrics_need_key is true, but there are no keys: set access.keys_file or access.api_key",)
        )
    return Door(
        ring,
        public=settings.public_routes,
        addresses=AddressLimits(settings.address_requests_per_minute),
        share_cache=settings.share_cache,
    )


def reloadings(settings: Settings, door: Door, certificate: Certificate | None) -> list[Reloading]:
    """Return what is reloaded when its files change: the keys and the certificate."""
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
    """Return the tracer of requests, or None without an endpoint; raises `SettingsError` if its package is missing."""
    if not settings.traces_endpoint:
        return None
    try:
        from tlserve.telemetry.otel import OtelTracer, otlp_processor

        return OtelTracer(otlp_processor(settings.traces_endpoint), __version__)
    except ImportError as error:
        reason = f"telemetry.traces_endpoint needs a package that is not installed ({error.name}): pip install 'tlserve[otel]'"
        raise SettingsError((reason,)) from error


def make_kept(settings: ResponseSettings) -> KeptResponses | None:
    """Return where responses are kept, or None if the settings keep none."""
    if not settings.store:
        return None
    path = str(Path(settings.database).expanduser()) if settings.database else ""
    store = ResponseStore(path, max_bytes=settings.max_bytes, max_age_s=settings.max_age_s)
    return KeptResponses(store, time.time)


def assemble(
    settings: Settings,
    models: tuple[HostedModel, ...],
    door: Door | None = None,
    tracer: Tracer | None = None,
    pages: PageGuard | None = None,
) -> Assembled:
    """Make all objects of a server that serves `models`."""
    requests, histograms = RequestCounts(path for _, path in ROUTES), RequestHistograms()
    api = ApiContext(
        catalogue=Catalogue(model.served for model in models),
        door=door or make_door(settings.access),
        cors=Cors(settings.cors.allow_origins),
        pages=pages or PageGuard(),
        settings=settings.http,
        log=partial(_count_and_log, requests, histograms),
        tracer=tracer,
        kept=make_kept(settings.responses),
    )
    return Assembled(
        settings=settings,
        models=models,
        requests=requests,
        histograms=histograms,
        api=api,
    )


def health_handler(
    current: Callable[[], Assembled | None],
    not_ready_reason: Callable[[], str],
    connections: Callable[[], int] = int,
    metrics_door: Door | None = None,
) -> Handler:
    """Return the handler of the health port; `current` is None until the model is loaded.

    `connections` returns the number of open connections of the API. With a `metrics_door`, /metrics requires one of its keys.
    """

    def guard_metrics(headers: Headers) -> None:
        if metrics_door is not None:
            metrics_door.authenticate(headers, time.time())

    def about() -> dict[str, object]:
        assembled = current()
        models = () if assembled is None else assembled.models
        kernels = {model.served.model_id: model.backend.info().kernels for model in models}
        more = {name: value for model in models for name, value in model.about().items()}
        return {"kernels": kernels, **more} if models else {}

    def metrics() -> str:
        return _metrics(current(), connections())

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


def _metrics(assembled: Assembled | None, connections: int) -> str:
    from tlserve.telemetry.metrics import metrics_text  # with prometheus-client, which a start does not need

    if assembled is None:
        return metrics_text({}, version=__version__)
    return metrics_text(
        {model.served.model_id: model.backend.statistics() for model in assembled.models},
        models={model.served.model_id: model.served.residency.status() for model in assembled.models},
        requests=assembled.requests,
        connections=connections,
        histograms=assembled.histograms,
        fleet=assembled.models[0].fleet(),
        version=__version__,
        kernels=",".join(dict.fromkeys(filter(None, (model.backend.info().kernels for model in assembled.models)))),
        vllm_aliases=assembled.settings.telemetry.vllm_aliases,
    )
