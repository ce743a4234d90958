"""Common faults of metrics in production, over a real server: broken lines, unbounded series, requests that are not counted.

The model answers like the built-in one, and is broken after "z".
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs
import numpy as np
import pytest

from tests.kit.http.gated_server import parse_metrics
from tests.kit.http.http_calls import call, chat, get, post
from tests.kit.model.tiny_models import load_succ
from tlserve.kernels.interface import KvStore, Model, ModelSpec, StepBatch, StepOutput
from tlserve.programs.in_thread import ThreadedServer
from tlserve.telemetry.catalogue import METRICS
from tlserve.testing import serve_in_thread

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
METRICS_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "read-metrics.md"
ODD = ['a"b', "a\\b", "a\nb", "a{b}=c", "ä€😀", "\x00", "tl_engine:x"]


@attrs.frozen
class BrokenAtZ:
    """The wrapped model, whose output is not a number where "z" is the last token."""

    model: Model

    @property
    def spec(self) -> ModelSpec:
        return self.model.spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        return self.model.new_kv_store(blocks, block_size)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        output = self.model.forward(batch, kv)
        broken = (batch.tokens[batch.logit_rows] == ord("z"))[:, None]
        return attrs.evolve(output, logits=np.where(broken, np.float32(np.nan), output.logits))


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    loaded = load_succ()
    broken = attrs.evolve(loaded, model=BrokenAtZ(loaded.model))
    with serve_in_thread("succ", settings={"telemetry.vllm_aliases": True}, loaded=broken) as running:
        yield running


def scrape(server: ThreadedServer) -> Mapping[str, float]:
    return parse_metrics(get(server.health_address, "/metrics").body.decode())


def grown(before: Mapping[str, float], after: Mapping[str, float], prefix: str) -> dict[str, float]:
    """Return the series that begin with `prefix` and grew, with their growth."""
    return {
        name: value - before.get(name, 0)
        for name, value in after.items()
        if name.startswith(prefix) and value != before.get(name, 0)
    }


def fell(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return the values that must not fall but did: counters, and the counts of histograms."""
    lasting = ("_total{", "_bucket{", "_sum{", "_count{")
    return [name for name in before if any(part in name for part in lasting) and after[name] < before[name]]


@pytest.mark.spec("TEL-13")
def test_every_kind_of_end_is_counted_once_and_no_counter_falls(server: ThreadedServer) -> None:
    before = scrape(server)
    statuses = [
        post(server.address, CHAT, chat("a", max_tokens=3)).status,
        post(server.address, CHAT, chat("a", max_tokens=9, stop="d", stream=True)).status,
        post(server.address, CHAT, chat("z", max_tokens=3)).status,
        post(server.address, CHAT, chat("a", temperature=9)).status,
        post(server.address, CHAT, chat("a", model="none")).status,
        post(server.address, EMBEDDINGS, {"model": "succ", "input": "ab"}).status,
        call(server.address, "DELETE", CHAT).status,
    ]
    after = scrape(server)
    assert statuses == [200, 200, 500, 400, 404, 200, 405]
    assert fell(before, after) == []
    ends = grown(before, after, "tl_http_requests_total{")
    assert sum(ends.values()) == len(statuses)
    assert {name: count for name, count in ends.items() if "finish=''" not in name} == {
        f"tl_http_requests_total{{finish='{finish}',method='POST',route='{CHAT}',status='200'}}": 1
        for finish in ("length", "stop")
    }
    assert sorted(name.rpartition("status=")[2] for name in ends if "finish=''" in name) == [
        *("'200'}", "'400'}", "'404'}", "'405'}", "'500'}")
    ]


@pytest.mark.spec("TEL-20")
def test_a_stop_string_is_a_success_under_the_name_of_vllm(server: ThreadedServer) -> None:
    before = scrape(server)
    assert post(server.address, CHAT, chat("a", max_tokens=9, stop="d")).status == 200
    assert post(server.address, CHAT, chat("a", max_tokens=2)).status == 200
    ends = grown(before, scrape(server), "vllm:request_success_total")
    assert ends == {
        "vllm:request_success_total{finished_reason='stop',model_name='succ'}": 1,
        "vllm:request_success_total{finished_reason='length',model_name='succ'}": 1,
    }


@pytest.mark.spec("TEL-20")
def test_the_query_for_failures_finds_an_answer_that_fails_after_its_head(server: ThreadedServer) -> None:
    (row,) = [line for line in METRICS_PAGE.read_text().splitlines() if line.startswith("| How many requests fail?")]
    selectors = re.findall(r"tl_http_requests_total\{([^}]*)\}", row)
    before = scrape(server)
    assert post(server.address, CHAT, chat("w", max_tokens=9, stream=True)).status == 200
    assert post(server.address, CHAT, chat("z", max_tokens=9)).status == 500
    assert post(server.address, CHAT, chat("a", max_tokens=3)).status == 200
    ends = grown(before, scrape(server), "tl_http_requests_total{")
    found = {name: count for name, count in ends.items() if any(selects(selector, name) for selector in selectors)}
    assert sum(found.values()) == 2


def selects(selector: str, series: str) -> bool:
    """Return whether `series` matches all of `selector`, such as `status=~"5.."`."""
    labels = dict(re.findall(r"(\w+)='([^']*)'", series))
    conditions = re.findall(r'(\w+)=(~?)"([^"]*)"', selector)
    return all(
        bool(re.fullmatch(value, labels[name])) if pattern else labels[name] == value
        for name, pattern, value in conditions
    )


def test_the_histograms_count_the_answers_and_the_buckets_add_up(server: ThreadedServer) -> None:
    before = scrape(server)
    post(server.address, CHAT, chat("a", max_tokens=3))
    post(server.address, CHAT, chat("z", max_tokens=3))
    after = scrape(server)
    counts = grown(before, after, "tl_request_")
    assert counts["tl_request_output_tokens_count{}"] == counts["tl_request_duration_seconds_count{}"] == 1
    assert counts["tl_request_output_tokens_sum{}"] == 3
    assert counts["tl_request_queue_time_seconds_count{}"] == 2
    steps = grown(before, after, "tl_engine_step")
    assert steps["tl_engine_step_rows_count{}"] == steps["tl_engine_step_duration_seconds_count{}"]
    assert steps["tl_engine_step_rows_count{}"] == steps["tl_engine_steps_total{}"]
    for metric in METRICS:
        if metric.kind == "histogram":
            buckets = [
                after[f"{metric.name}_bucket{{le='{bound}'}}"] for bound in (*map(float, metric.buckets), "+Inf")
            ]
            assert buckets == sorted(buckets)
            assert buckets[-1] == after[f"{metric.name}_count{{}}"]


def test_our_own_names_have_no_colons_and_the_aliases_have_the_same_values(server: ThreadedServer) -> None:
    post(server.address, CHAT, chat("a", max_tokens=3))
    found = scrape(server)
    assert {name.partition(":")[0] for name in found if ":" in name.partition("{")[0]} == {"vllm"}
    label = "{model_name='succ'}"
    assert found[f"vllm:generation_tokens_total{label}"] == found["tl_engine_generated_tokens_total{}"]
    assert found[f"vllm:request_generation_tokens_sum{label}"] == found["tl_request_output_tokens_sum{}"]


@pytest.mark.slow
@pytest.mark.spec("TEL-13")
def test_a_thousand_names_of_models_and_odd_texts_create_no_series(server: ThreadedServer) -> None:
    def ask(model: str) -> int:
        return post(server.address, CHAT, chat("a", max_tokens=1, model=model)).status

    assert {ask("unknown"), ask("succ")} == {404, 200}
    one = scrape(server)
    assert {ask(f"model-{index}") for index in range(1000)} == {404}
    assert {ask(name) for name in ODD} == {404}
    many = scrape(server)
    assert many.keys() == one.keys()
    assert fell(one, many) == []
