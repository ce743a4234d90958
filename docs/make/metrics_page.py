"""The catalogue of metrics for people, `docs/reference/metrics.md`.

Owns the text around the tables.
"""

from __future__ import annotations

from tlserve.telemetry.catalogue import METRICS
from tlserve.telemetry.vllm_aliases import ALIASES

_HEAD = """\
# Metrics

`GET /metrics` on the health port returns the Prometheus text format. `python -m docs.make` makes this page from
`tlserve/telemetry/catalogue.py`.

No client can choose the value of a label: an unknown route or method is counted as `other`, and an unknown model does not appear
by its name. Where one process serves several models, the `tl_engine_*` and `tl_request_*` series also have the label `model`.

| name | type | labels | unit | meaning |
|---|---|---|---|---|
"""
_BUCKETS = """
## Buckets

A histogram `NAME` is exposed as `NAME_bucket{le="..."}`, `NAME_sum` and `NAME_count`. A bucket counts the values up to its bound;
`+Inf` counts all.

| name | bounds |
|---|---|
"""
_ALIASES = """
## Names of vLLM

With `vllm_aliases = true` in `[telemetry]`, the numbers with the same meaning are also exposed under vLLM's names, with the label
`model_name`, for dashboards made for vLLM. `vllm:inter_token_latency_seconds` is not among them: it has a value for each token,
and tlserve has one for each answer.

| name | type | from |
|---|---|---|
"""


def metrics_page() -> str:
    """Return the page."""
    rows = [_row(f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.unit, m.help) for m in METRICS]
    buckets = [_row(f"`{m.name}`", ", ".join(map(str, m.buckets))) for m in METRICS if m.buckets]
    aliases = [_row(f"`{alias.name}`", alias.kind, alias.source) for alias in ALIASES]
    return _HEAD + "".join(rows) + _BUCKETS + "".join(buckets) + _ALIASES + "".join(aliases)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"
