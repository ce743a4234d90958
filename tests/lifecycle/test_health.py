"""The health port over the real server in memory."""

import json

import pytest

from tests.kit.http.memory_http import memory_server
from tlserve.generation import EngineStatistics
from tlserve.http.exchange import Handler
from tlserve.lifecycle.drain import Drain
from tlserve.lifecycle.health import make_health_handler
from tlserve.telemetry.metrics import metrics_text


def handler_of(reasons: list[str]) -> Handler:
    """Return a handler whose server is not ready for `reasons[0]`."""
    return make_health_handler(
        not_ready_reason=lambda: reasons[0],
        metrics=lambda: metrics_text({"succ": EngineStatistics(kv_used=7)}),
        new_id=lambda: "fresh",
        about=lambda: {"kernels": "reference"},
    )


@pytest.mark.spec("LIFE-7")
async def test_readyz_follows_the_reason_and_healthz_does_not() -> None:
    reasons = [""]
    async with memory_server(handler_of(reasons)) as server:
        ready = await server.request("GET", "/readyz")
        assert (ready.status, json.loads(ready.body)) == (200, {"status": "ready"})
        reasons[0] = "draining"
        drained = await server.request("GET", "/readyz")
        assert (drained.status, json.loads(drained.body)) == (503, {"status": "not ready", "reason": "draining"})
        alive = await server.request("GET", "/healthz")
        assert (alive.status, json.loads(alive.body)) == (200, {"status": "ok", "kernels": "reference"})


async def test_metrics_are_the_prometheus_text() -> None:
    async with memory_server(handler_of([""])) as server:
        answer = await server.request("GET", "/metrics")
    assert answer.status == 200
    assert answer.headers.get("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    assert b'tl_engine_kv_blocks{state="used"} 7.0\n' in answer.body


async def test_no_answer_can_be_cached() -> None:
    async with memory_server(handler_of([""])) as server:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await server.request("GET", path)).headers.get("cache-control") == "no-store"


@pytest.mark.spec("LIFE-8")
async def test_every_answer_echoes_the_request_id_or_has_a_fresh_one() -> None:
    async with memory_server(handler_of(["loading"])) as server:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await server.request("GET", path)).headers.get("x-request-id") == "fresh"
            echoed = await server.request("GET", path, [("X-Request-Id", "trace-7")])
            assert echoed.headers.get("x-request-id") == "trace-7"


@pytest.mark.spec("LIFE-8")
@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/readyz", 405), ("GET", "/v1/models", 404)])
async def test_the_health_port_serves_nothing_else(method: str, path: str, status: int) -> None:
    async with memory_server(handler_of([""])) as server:
        assert (await server.request(method, path)).status == status


async def test_a_head_probe_gets_the_status_alone() -> None:
    async with memory_server(handler_of(["loading"])) as server:
        answer = await server.request("HEAD", "/readyz")
    assert (answer.status, answer.body) == (503, b"")


@pytest.mark.spec("LIFE-7")
async def test_a_drain_makes_readyz_fail_at_once() -> None:
    drain = Drain(30)
    handler = make_health_handler(
        not_ready_reason=lambda: "" if drain.phase.value == "serving" else drain.phase.value,
        metrics=lambda: "",
        new_id=lambda: "fresh",
    )
    async with memory_server(handler) as server:
        assert (await server.request("GET", "/readyz")).status == 200
        drain.stop()
        assert (await server.request("GET", "/readyz")).status == 503
        assert (await server.request("GET", "/healthz")).status == 200
