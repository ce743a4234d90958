"""A step that takes too long: the server reports that it is not ready, keeps running, and recovers."""

import json

import pytest

from tests.kit.http.gated_server import gated_server, until
from tests.kit.http.http_calls import chat, content_of


@pytest.mark.spec("FAULT-8", "CASE-46")
async def test_readyz_fails_during_a_stuck_step_and_passes_after_it():
    async with gated_server(heartbeat_stale_ms=100) as host:
        assert (await host.health("/readyz")).status == 200
        talk = await host.send(chat("a", max_tokens=3, stream=True))
        await host.wait_step()
        await until(lambda: not host.backend.info().ready)
        stuck = await host.health("/readyz")
        assert stuck.status == 503
        assert "the engine's current step has taken" in json.loads(stuck.body)["reason"]
        assert (await host.health("/healthz")).status == 200
        assert (await host.get("/healthz")).status == 200
        assert json.loads((await host.get("/v1/models/succ")).body)["loaded"] is False
        host.gate.open_all()
        assert content_of(await talk.events()) == "bcd"
        await until(lambda: host.backend.info().ready)
        assert (await host.health("/readyz")).status == 200


@pytest.mark.spec("FAULT-16")
async def test_an_idle_engine_never_becomes_stale():
    async with gated_server(heartbeat_stale_ms=100) as host:
        host.gate.open_all()
        await (await host.send(chat("a", max_tokens=3))).answer()
        await until(lambda: host.backend.info().ready)
        assert not host.backend.info().not_ready_reason
