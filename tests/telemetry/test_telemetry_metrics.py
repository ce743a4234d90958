"""The text of /metrics: read back by the Prometheus parser, with a number of series that no client can change."""

import re

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tlserve.generation import EngineStatistics
from tlserve.telemetry.catalogue import METRICS, catalogue_yaml
from tlserve.telemetry.metrics import metrics_text
from tlserve.telemetry.request_counts import RequestCounts

ROUTES = ("/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/v1/files/{path+}")


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def filled() -> EngineStatistics:
    """Statistics in which every field has a value of its own."""
    return EngineStatistics(**{field.name: index + 1 for index, field in enumerate(attrs.fields(EngineStatistics))})


def test_every_row_of_the_catalogue_has_help_and_type_once_before_any_request() -> None:
    text = metrics_text(EngineStatistics())
    for metric in METRICS:
        assert text.count(f"# HELP {metric.name} {metric.help}\n") == 1
        assert text.count(f"# TYPE {metric.name} {metric.kind}\n") == 1
    assert text.count("# TYPE") == len(METRICS)


def test_the_seven_engine_metrics_carry_the_snapshots_numbers() -> None:
    now = filled()
    found = samples(metrics_text(now))
    assert found["tl_engine_kv_blocks", (("state", "used"),)] == now.kv_used
    assert found["tl_engine_kv_blocks", (("state", "cached"),)] == now.kv_cached
    assert found["tl_engine_kv_blocks", (("state", "free"),)] == now.kv_free
    assert found["tl_engine_queue_depth", ()] == now.queue_depth
    assert found["tl_engine_active_sequences", ()] == now.active_sequences
    assert found["tl_engine_batch_tokens", ()] == now.batch_tokens
    assert found["tl_engine_prefix_cache_hit_ratio", ()] == now.prefix_cache_hit_ratio
    assert found["tl_engine_preemptions_total", ()] == now.preemptions_total
    assert found["tl_engine_kv_evictions_total", ()] == now.kv_evictions_total


def test_every_field_of_the_statistics_is_exposed() -> None:
    values = set(samples(metrics_text(filled())).values())
    assert {float(value) for value in attrs.astuple(filled())} <= values


def test_the_finishes_of_answers_add_up_to_the_requests() -> None:
    counts = RequestCounts(ROUTES)
    for finish in ("stop", "length", "error", "", "stop"):
        counts.count("POST", "/v1/chat/completions", 200, finish)
    counts.count("POST", "/v1/chat/completions", 499)
    found = samples(metrics_text(EngineStatistics(), requests=counts))
    finishes = [(dict(labels)["finish"], value) for (name, labels), value in found.items() if "http_requests" in name]
    assert sorted(finishes) == [("", 1), ("", 1), ("error", 1), ("length", 1), ("stop", 2)]


def test_the_ends_of_sequences_add_up_to_the_sequences() -> None:
    now = EngineStatistics(
        finished_stop_total=1, finished_length_total=2, finished_aborted_total=4, finished_failed_total=8
    )
    found = samples(metrics_text(now))
    assert sum(value for (name, _), value in found.items() if name == "tl_engine_finished_total") == 15


def test_a_counters_name_ends_in_total_and_a_gauges_does_not() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"tl_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")


def test_the_names_are_unique() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_a_thousand_names_of_clients_make_no_series() -> None:
    counts = RequestCounts(ROUTES)
    counts.count("GET", "/v1/models/a", 404)
    counts.count("GET", "/a", 404)
    counts.count("BREW", "/a", 405)
    before = samples(metrics_text(EngineStatistics(), requests=counts))
    for index in range(1000):
        counts.count("GET", f'/v1/models/odd"{index}\n\\', 404)
        counts.count("GET", f"/nowhere/{index}?key={index}", 404)
        counts.count(f"BREW{index}", f"/{index}", 405)
    after = samples(metrics_text(EngineStatistics(), requests=counts))
    assert before.keys() == after.keys()
    labels = (("finish", ""), ("method", "GET"), ("route", "/v1/models/{id}"), ("status", "404"))
    key = ("tl_http_requests_total", labels)
    assert after[key] == 1001


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/models", "/v1/models"),
        ("/v1/models?x=1", "/v1/models"),
        ("/v1/models/succ", "/v1/models/{id}"),
        ("/v1/models/", "other"),
        ("/v1/models/a/b", "other"),
        ("/V1/models", "other"),
        ("/v1/files/a", "/v1/files/{path+}"),
        ("/v1/files/a/b\nc", "/v1/files/{path+}"),
        ("/v1/files/", "other"),
        ("*", "other"),
        ("", "other"),
    ],
)
def test_a_path_belongs_to_one_route_or_to_other(path: str, route: str) -> None:
    assert RequestCounts(ROUTES).route_of(path) == route


@settings(deadline=None)
@given(version=st.text(), kernels=st.text())
def test_any_label_text_survives_the_parser(version: str, kernels: str) -> None:
    found = samples(metrics_text(EngineStatistics(), version=version, kernels=kernels))
    assert found["tl_build_info", (("kernels", kernels), ("version", version))] == 1


def test_the_yaml_has_an_entry_for_each_metric() -> None:
    assert re.findall(r"^  (\w+):$", catalogue_yaml(), re.MULTILINE) == [metric.name for metric in METRICS]
