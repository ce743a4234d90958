"""The text of /metrics: read back by the Prometheus parser, with a number of series that no client can change."""

import re
import tracemalloc
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from docs.make.metrics_yaml import catalogue_yaml
from tlserve.generation import Distribution, EngineStatistics
from tlserve.telemetry.catalogue import METRICS, STEP_DURATION, STEP_ROWS, Metric
from tlserve.telemetry.fleet_figures import FleetFigures
from tlserve.telemetry.histogram import Histogram
from tlserve.telemetry.metrics import metrics_text
from tlserve.telemetry.request_counts import RequestCounts
from tlserve.telemetry.request_histograms import RequestHistograms
from tlserve.telemetry.request_log import RequestRecord
from tlserve.telemetry.vllm_aliases import ALIASES

ROUTES = ("/v1/chat/completions", "/v1/models", "/v1/models/{id}", "/v1/files/{path+}")


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def distribution(metric: Metric, *counts: int, total: float) -> Distribution:
    """The first buckets of `metric` with `counts`."""
    return Distribution(metric.buckets, (*counts, *[0] * (len(metric.buckets) + 1 - len(counts))), total)


def filled() -> EngineStatistics:
    """Statistics in which every number has a different value."""
    numbers = [field for field in attrs.fields(EngineStatistics) if str(field.type) in ("int", "float")]
    return EngineStatistics(
        **{field.name: index + 1 for index, field in enumerate(numbers)},
        step_durations_s=distribution(STEP_DURATION, 101, 102, 103, total=104.5),
        step_rows=distribution(STEP_ROWS, 201, 202, 203, total=204.5),
    )


@pytest.mark.spec("TEL-2")
def test_every_row_of_the_catalogue_has_help_and_type_once_before_any_request() -> None:
    text = metrics_text({})
    for metric in METRICS:
        assert text.count(f"# HELP {metric.name} {metric.help}\n") == 1
        assert text.count(f"# TYPE {metric.name} {metric.kind}\n") == 1
    assert text.count("# TYPE") == len(METRICS)


@pytest.mark.spec("TEL-1")
def test_the_seven_engine_metrics_carry_the_snapshots_numbers() -> None:
    now = filled()
    found = samples(metrics_text({"succ": now}))
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
    values = set(samples(metrics_text({"succ": filled()})).values())
    numbers = {float(value) for value in attrs.astuple(filled(), recurse=False) if isinstance(value, int | float)}
    assert numbers | {101, 101 + 102, 101 + 102 + 103, 104.5, 201, 201 + 202, 201 + 202 + 203, 204.5} <= values


@pytest.mark.spec("HEAD-25")
def test_every_figure_of_a_fleet_is_exposed() -> None:
    figures = FleetFigures(nodes_ready=31, nodes_draining=32, nodes_away=33, losses_total=34, moves_total=35)
    found = samples(metrics_text({}, fleet=figures))
    assert set(attrs.astuple(figures)) <= set(found.values())
    assert found["tl_fleet_nodes", (("state", "draining"),)] == 32
    assert samples(metrics_text({}))["tl_fleet_moves_total", ()] == 0


@pytest.mark.spec("TEL-5")
def test_the_finishes_of_answers_add_up_to_the_requests() -> None:
    counts = RequestCounts(ROUTES)
    for finish in ("stop", "length", "error", "", "stop"):
        counts.count("POST", "/v1/chat/completions", 200, finish)
    counts.count("POST", "/v1/chat/completions", 499)
    found = samples(metrics_text({}, requests=counts))
    finishes = [(dict(labels)["finish"], value) for (name, labels), value in found.items() if "http_requests" in name]
    assert sorted(finishes) == [("", 1), ("", 1), ("error", 1), ("length", 1), ("stop", 2)]


@pytest.mark.spec("TEL-5")
def test_the_ends_of_sequences_add_up_to_the_sequences() -> None:
    now = EngineStatistics(
        finished_stop_total=1, finished_length_total=2, finished_aborted_total=4, finished_failed_total=8
    )
    found = samples(metrics_text({"succ": now}))
    assert sum(value for (name, _), value in found.items() if name == "tl_engine_finished_total") == 15


@pytest.mark.spec("TEL-4")
def test_a_counters_name_ends_in_total_and_a_gauges_does_not() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"tl_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_the_names_are_unique() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.spec("TEL-3")
def test_a_thousand_names_of_clients_create_no_series() -> None:
    counts = RequestCounts(ROUTES)
    counts.count("GET", "/v1/models/a", 404)
    counts.count("GET", "/a", 404)
    counts.count("BREW", "/a", 405)
    before = samples(metrics_text({}, requests=counts))
    for index in range(1000):
        counts.count("GET", f'/v1/models/odd"{index}\n\\', 404)
        counts.count("GET", f"/nowhere/{index}?key={index}", 404)
        counts.count(f"BREW{index}", f"/{index}", 405)
    after = samples(metrics_text({}, requests=counts))
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
    found = samples(metrics_text({}, version=version, kernels=kernels))
    assert found["tl_build_info", (("kernels", kernels), ("version", version))] == 1


def test_the_yaml_has_an_entry_for_each_metric() -> None:
    assert re.findall(r"^  (\w+):$", catalogue_yaml(), re.MULTILINE) == [metric.name for metric in METRICS]


# --- histograms ------------------------------------------------------------------------------------------------------


def record(**fields: Any) -> RequestRecord:
    """A complete answer of three tokens: prepared after 1 ms, started after 3, first token after 10, ended after 30."""
    whole = RequestRecord(
        request_id="r",
        method="POST",
        path="/v1/chat/completions",
        status=200,
        model="succ",
        prompt_tokens=5,
        completion_tokens=3,
        finish="length",
        prepared_ms=1.0,
        queue_ms=3.0,
        first_token_ms=10.0,
        total_ms=30.0,
    )
    return attrs.evolve(whole, **fields)


def observed(*records: RequestRecord) -> dict[str, tuple[float, float]]:
    """Return (count, sum) of each request histogram after `records`."""
    histograms = RequestHistograms()
    for item in records:
        histograms.observe(item)
    found = samples(metrics_text({"succ": EngineStatistics()}, histograms=histograms))
    names = [metric.name for metric in METRICS if metric.name.startswith("tl_request_")]
    return {name: (found[f"{name}_count", ()], found[f"{name}_sum", ()]) for name in names}


@pytest.mark.spec("TEL-10")
def test_a_complete_answer_is_in_every_request_histogram() -> None:
    assert observed(record()) == {
        "tl_request_queue_time_seconds": (1, 0.002),
        "tl_request_time_to_first_token_seconds": (1, 0.01),
        "tl_request_time_per_output_token_seconds": (1, 0.01),
        "tl_request_duration_seconds": (1, 0.03),
        "tl_request_prompt_tokens": (1, 5),
        "tl_request_output_tokens": (1, 3),
    }


@pytest.mark.spec("TEL-10")
@pytest.mark.parametrize("cut", [{"status": 499, "finish": None}, {"status": 200, "finish": "error"}])
def test_a_cut_answer_counts_in_the_waits_but_in_no_end_and_no_length(cut: dict[str, object]) -> None:
    found = observed(record(**cut))
    assert {name for name, (count, _) in found.items() if count} == {
        "tl_request_queue_time_seconds",
        "tl_request_time_to_first_token_seconds",
    }


def test_vectors_have_a_duration_and_a_prompt_but_no_answer() -> None:
    embedded = record(completion_tokens=None, finish=None, prepared_ms=None, queue_ms=None, first_token_ms=None)
    found = {name: value for name, value in observed(embedded).items() if value[0]}
    assert found == {"tl_request_duration_seconds": (1, 0.03), "tl_request_prompt_tokens": (1, 5)}


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    assert observed(record(completion_tokens=1))["tl_request_time_per_output_token_seconds"] == (0, 0)


def test_a_request_without_a_model_is_in_no_histogram() -> None:
    assert {count for count, _ in observed(record(model=None)).values()} == {0}


@pytest.mark.spec("TEL-10")
@given(values=st.lists(st.floats(0, 400, allow_nan=False), max_size=50))
def test_a_histograms_buckets_count_what_a_slow_count_counts(values: list[float]) -> None:
    bounds = (0.5, 1.0, 2.5, 300.0)
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    now = EngineStatistics(step_durations_s=histogram.snapshot())
    found = samples(metrics_text({"succ": now}))
    name = "tl_engine_step_duration_seconds"
    for bound in bounds:
        assert found[f"{name}_bucket", (("le", str(bound)),)] == sum(value <= bound for value in values)
    assert found[f"{name}_bucket", (("le", "+Inf"),)] == found[f"{name}_count", ()] == len(values)
    assert found[f"{name}_sum", ()] == pytest.approx(sum(values))


def test_observing_allocates_no_memory() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(0.5)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10_000):
        histogram.observe(1.5)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 2000


# --- several models, and the names of vLLM ----------------------------------------------------------------------------


@pytest.mark.spec("TEL-11")
def test_with_several_models_each_series_of_an_engine_names_its_model() -> None:
    histograms = RequestHistograms()
    histograms.observe(record(model="b"))
    engines = {"a": EngineStatistics(queue_depth=1), "b": EngineStatistics(queue_depth=2)}
    found = samples(metrics_text(engines, histograms=histograms))
    assert found["tl_engine_queue_depth", (("model", "a"),)] == 1
    assert found["tl_engine_queue_depth", (("model", "b"),)] == 2
    assert found["tl_engine_kv_blocks", (("model", "a"), ("state", "free"))] == 0
    assert found["tl_request_output_tokens_count", (("model", "a"),)] == 0
    assert found["tl_request_output_tokens_count", (("model", "b"),)] == 1


@pytest.mark.spec("TEL-12")
def test_the_names_of_vllm_exist_only_with_the_setting() -> None:
    assert "vllm" not in metrics_text({"succ": EngineStatistics()})


@pytest.mark.spec("TEL-20")
@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"finish": "stop"}, "stop"),
        ({"finish": "tool_calls"}, "stop"),
        ({"finish": "length"}, "length"),
        ({"finish": "error"}, "failed"),
        ({"finish": None, "status": 500}, "failed"),
        ({"finish": None, "status": 499}, "aborted"),
        ({"finish": "error", "error": "cancelled"}, "aborted"),
        ({"finish": None, "status": 499, "queue_ms": None}, "aborted"),
        ({"finish": None, "status": 429, "queue_ms": None}, None),
        ({"finish": None, "status": 503, "queue_ms": None}, None),
        ({"finish": None, "completion_tokens": None}, None),
        ({"finish": None, "status": 400, "prompt_tokens": None, "queue_ms": None}, None),
    ],
)
def test_each_request_for_a_text_ends_in_one_way(fields: dict[str, Any], end: str | None) -> None:
    histograms = RequestHistograms()
    histograms.observe(record(**fields))
    assert {name: count for name, count in histograms.ends("succ").items() if count} == ({end: 1} if end else {})


@pytest.mark.spec("TEL-12")
def test_the_aliases_carry_the_same_numbers_with_the_model() -> None:
    now = attrs.evolve(filled(), kv_used=1, kv_cached=1, kv_free=2)
    histograms = RequestHistograms()
    histograms.observe(record())
    text = metrics_text({"succ": now}, histograms=histograms, vllm_aliases=True)
    found = samples(text)
    labels = (("model_name", "succ"),)
    assert found["vllm:num_requests_running", labels] == now.active_sequences
    assert found["vllm:num_requests_waiting", labels] == now.queue_depth
    assert found["vllm:kv_cache_usage_perc", labels] == 0.25
    assert found["vllm:generation_tokens_total", labels] == now.generated_tokens_total
    assert found["vllm:iteration_tokens_total_count", labels] == 201 + 202 + 203
    assert found["vllm:e2e_request_latency_seconds_sum", labels] == 0.03
    reasons = {
        dict(key)["finished_reason"]: value
        for (name, key), value in found.items()
        if name == "vllm:request_success_total"
    }
    assert reasons == {"stop": 0, "length": 1, "abort": 0, "error": 0}
    for alias in ALIASES:
        assert text.count(f"# TYPE {alias.name} {alias.kind}\n") == 1


@pytest.mark.spec("TEL-11")
def test_all_series_exist_from_the_start() -> None:
    before = samples(metrics_text({"succ": EngineStatistics()}, vllm_aliases=True))
    histograms = RequestHistograms()
    for index in range(100):
        histograms.observe(record(completion_tokens=index))
    after = samples(metrics_text({"succ": filled()}, histograms=histograms, vllm_aliases=True))
    assert before.keys() == after.keys()
