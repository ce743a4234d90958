"""A server that ends completes the responses in the background, and a file keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.http.gated_server import gated_server
from tlserve.responses.store import ResponseStore

BODY = {"model": "succ", "input": "a", "max_output_tokens": 3, "temperature": 0, "background": True}


@pytest.mark.slow
@pytest.mark.spec("RSP-31")
async def test_a_drain_completes_the_responses_in_the_background(tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    async with gated_server(responses__database=path) as own:
        talk = await own.send(BODY, "/v1/responses")
        begun = await talk.document()
        kept = own.server.running.assembled.api.kept
        assert kept is not None
        assert kept.running == 1
        own.server.drain()
        own.gate.open_all()
        assert await own.server.join() == 0
    store = ResponseStore(path, max_bytes=1 << 20, max_age_s=1e9)
    store.open()
    found = store.get(begun["id"], "", begun["created_at"])
    store.close()
    assert found is not None
    assert (found.document["status"], found.document["output"][0]["content"][0]["text"]) == ("incomplete", "bcd")
