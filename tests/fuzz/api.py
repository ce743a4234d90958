"""Send requests made from the OpenAPI document to a live server, those that fit it and others, and check the answers.

    python -m tests.fuzz api --count 10000 --seed 7

Schemathesis makes the requests for each route: valid ones, wrong ones, streams, and chains in which a request uses what an
earlier answer said. No answer is a fault of the server or undocumented, each fits its schema, and the server serves to the end.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import hypothesis
import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from tests.conformance.test_openapi import (
    ALWAYS,
    NOT_FITTING,
    OPERATION_KEYS,
    SCHEMA,
    STREAMS,
    WITH_BODIES,
    document_of_succ,
)
from tlserve.testing import serve_in_thread

Case = schemathesis.Case[Any]
STREAMED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
STEPS = 6
"""Requests of a chain."""


def chosen(names: Sequence[str]) -> Any:
    """Return the checks of schemathesis by their names."""
    return CHECKS.get_by_names(list(names))


@attrs.define
class Live:
    """A server, the requests that it got, and what was wrong."""

    base_url: str
    session: requests.Session
    requests: int = 0
    faults: list[str] = attrs.field(factory=list)

    def ask(self, case: Case, checks: Sequence[str]) -> None:
        self.requests += 1
        response = case.call(base_url=self.base_url, session=self.session)
        case.validate_response(response, checks=chosen(checks))


def settings(examples: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )


def ask_route(
    live: Live, operation: Any, mode: GenerationMode, checks: Sequence[str], examples: int, seed: int
) -> None:
    """Send `examples` requests to a route; a fault is kept with the command that repeats it, in the words of schemathesis."""

    @hypothesis.seed(seed)
    @settings(examples)
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        live.ask(case, checks)

    _kept(live, ask)


def linked_document() -> dict[str, Any]:
    """Return the document with links from answers to the requests that can use them."""
    document = document_of_succ()
    answers = document["paths"]
    answers["/v1/models"]["get"]["responses"]["200"]["links"] = {
        "model": {"operationRef": "#/paths/~1v1~1models~1{id}/get", "parameters": {"id": "$response.body#/data/0/id"}}
    }
    answers["/v1/tokenize"]["post"]["responses"]["200"]["links"] = {
        "text": {
            "operationRef": "#/paths/~1v1~1detokenize/post",
            "requestBody": {"model": "succ", "tokens": "$response.body#/tokens"},
        }
    }
    return document


def ask_chains(live: Live, examples: int, seed: int) -> None:
    """Send chains of requests that follow the links."""
    machine = schemathesis.openapi.from_dict(linked_document()).as_state_machine()

    class Chain(machine):  # type: ignore[misc, valid-type]
        def get_call_kwargs(self, case: Case) -> dict[str, Any]:
            live.requests += 1
            return {"base_url": live.base_url, "session": live.session}

        def validate_response(self, response: Any, case: Case, **more: Any) -> None:
            case.validate_response(response, checks=chosen(ALWAYS))

    def run() -> None:
        hypothesis.stateful.run_state_machine_as_test(hypothesis.seed(seed)(Chain), settings=settings(examples))

    _kept(live, run)


def _kept(live: Live, run: Callable[[], None]) -> None:
    try:
        run()
    except BaseExceptionGroup as group:
        live.faults.extend(str(error) for error in group.exceptions)
    except Exception as error:
        live.faults.append(f"{type(error).__name__}: {error}")


def search(count: int, seed: int) -> Live:
    """Send about `count` requests, the same number of each kind to each route."""
    each = max(1, count // (len(OPERATION_KEYS) + len(WITH_BODIES) + len(STREAMED) + 1))
    with serve_in_thread("succ", settings={"engine.context_tokens": 64}) as server, requests.Session() as session:
        live = Live(f"http://{server.address}", session)
        for path, method in OPERATION_KEYS:
            ask_route(live, SCHEMA[path][method], GenerationMode.POSITIVE, ALWAYS, each, seed)
        for path, method in WITH_BODIES:
            ask_route(live, SCHEMA[path][method], GenerationMode.NEGATIVE, NOT_FITTING, each, seed)
        for path in STREAMED:
            ask_route(live, STREAMS[path]["POST"], GenerationMode.POSITIVE, ALWAYS, each, seed)
        ask_chains(live, max(1, each // STEPS), seed)
        assert session.get(f"{live.base_url}/v1/models").status_code == 200, "the server no longer serves"
    return live


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz api", description="Search the routes by the OpenAPI document."
    )
    parser.add_argument("--count", type=int, default=2000, help="requests (default 2000)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(words)
    began = time.monotonic()
    live = search(arguments.count, arguments.seed)
    took_s = time.monotonic() - began
    for fault in live.faults:
        print(fault)
    print(
        f"{live.requests} requests in {took_s:.0f} s, {live.requests / took_s:.0f} a second: {len(live.faults)} faults"
    )
    return 1 if live.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
