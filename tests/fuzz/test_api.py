"""A small fixed share of the search by the OpenAPI document, chains included; more: `python -m tests.fuzz api --count 10000`.

`tests/conformance/test_openapi.py` sends more requests to each route in every run.
"""

import pytest
import requests

from tests.fuzz.api import Live, ask_chains
from tlserve.testing import serve_in_thread


@pytest.mark.slow
@pytest.mark.spec("API-46")
def test_requests_that_follow_earlier_answers_get_documented_answers() -> None:
    with serve_in_thread("succ", settings={"engine.context_tokens": 64}) as server, requests.Session() as session:
        live = Live(f"http://{server.address}", session)
        ask_chains(live, 5, seed=1)
        assert live.faults == []
        assert live.requests >= 5
        assert session.get(f"{live.base_url}/v1/models").status_code == 200
