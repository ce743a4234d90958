"""The catalogue of metrics for programs, `specs/metrics.yaml`, made from `tlserve/telemetry/catalogue.py`."""

from __future__ import annotations

import json

from tlserve.telemetry.catalogue import METRICS, Metric


def catalogue_yaml() -> str:
    """Return the table as YAML, with strings as JSON strings, which are valid YAML."""
    return "metrics:\n" + "".join(_entry(metric) for metric in METRICS)


def _entry(metric: Metric) -> str:
    fields = {"type": metric.kind, "unit": metric.unit, "labels": list(metric.labels), "help": metric.help}
    buckets = {"buckets": list(metric.buckets)} if metric.buckets else {}
    lines = [f"  {metric.name}:", *(f"    {name}: {json.dumps(value)}" for name, value in (fields | buckets).items())]
    return "\n".join(lines) + "\n"
