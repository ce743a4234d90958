"""The catalogue of metrics as a page for people: `python -m docs.make.metrics_page`.

Owns the words around the table. `docs/reference/metrics.md` is its output, and a test keeps it current.
"""

from __future__ import annotations

from tlserve.telemetry.catalogue import METRICS
from tlserve.telemetry.vllm_aliases import ALIASES

_HEAD = """\
# Metrics

`GET /metrics` on the health port gives the Prometheus text format. This page is made from `tlserve/telemetry/catalogue.py` by
`python -m docs.make.metrics_page`.

No label takes a value that a client chose: a route, a method or a model that is not known here is counted as `other`, or not
by its name. Where one process serves several models, the `tl_engine_*` and `tl_request_*` series have the label `model` as well.

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

With `vllm_aliases = true` in `[telemetry]`, dashboards made for vLLM find the numbers that mean the same here, with the label
`model_name`. `vllm:inter_token_latency_seconds` is not among them: it has a value for each token, and here there is one for each
answer.

| name | type | from |
|---|---|---|
"""


def catalogue_markdown() -> str:
    """Return the page."""
    rows = [_row(f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.unit, m.help) for m in METRICS]
    buckets = [_row(f"`{m.name}`", ", ".join(map(str, m.buckets))) for m in METRICS if m.buckets]
    aliases = [_row(f"`{alias.name}`", alias.kind, alias.source) for alias in ALIASES]
    return _HEAD + "".join(rows) + _BUCKETS + "".join(buckets) + _ALIASES + "".join(aliases)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    print(catalogue_markdown(), end="")
