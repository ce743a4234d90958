"""What must hold after every simulated run, whatever its plan: nothing is lost, nothing is left, nothing is wrong.

Each check yields a sentence for each thing that does not hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.kit.engine.engine_runs import PLAIN, alone
from tests.kit.engine.hash_model import HashModel
from tests.simulation.clients import Played, Reply
from tests.simulation.drain_checks import drain_problems
from tests.simulation.fleet_checks import fleet_problems
from tests.simulation.loop_backend import VOCABULARY
from tests.simulation.plan import KEYS
from tests.simulation.world import Run, requests_of
from tlserve.generation import Finish, GenerationRequest

REFUSALS = {400, 401, 403, 404, 408, 413, 429, 431, 500, 503, 504}
"""Statuses with which a request may end without an answer; 500 only where an engine failed."""


def problems(run: Run) -> list[str]:
    """Return all that does not hold, in plain sentences; empty for a good run."""
    if run.hung:
        return ["the run did not end"]
    checks = (_rules, _ends, _texts, _tenants, _nothing_left, _records, drain_problems, fleet_problems)
    return [problem for check in checks for problem in check(run)]


def _rules(run: Run) -> Iterator[str]:
    """What broke a rule of an engine ended that engine, which the server takes for an accident."""
    yield from (f"an engine broke its rules: {broken}" for backend in run.backends for broken in backend.broken)


# --- every request ends once, with its reason


def _ends(run: Run) -> Iterator[str]:
    for played in run.played:
        if played.left:
            continue
        for reply in played.replies:
            if not reply.whole and not _may_lack_an_answer(run, played):
                yield f"{reply.ask.id}: no answer came ({played.client.manner}, status {reply.status})"
            elif reply.whole and reply.status != 200 and reply.status not in REFUSALS:
                yield f"{reply.ask.id}: status {reply.status}"
            elif reply.whole and reply.status == 500 and not _an_engine_failed(run):
                yield f"{reply.ask.id}: 500, and no engine failed: {reply.body[:200]!r}"
            elif reply.whole and reply.status == 200:
                yield from _is_complete(run, reply)


def _may_lack_an_answer(run: Run, played: Played) -> bool:
    """A server that stops may close a connection; a client that does not read is cut; one that pauses too long gets 408.

    `drain_problems` says of which requests a server that stops owes an answer.
    """
    return run.interrupted or run.failed or played.client.manner in ("slow_reader", "bytes") or played.broken


def _an_engine_failed(run: Run) -> bool:
    return run.failed or any(fault.kind == "fail" for fault in run.plan.faults)


def _is_complete(run: Run, reply: Reply) -> Iterator[str]:
    if not reply.ask.body["stream"]:
        return
    events = sse_events(reply.body)
    if not events or events[-1] != "[DONE]":
        yield f"{reply.ask.id}: the stream did not end with [DONE]"
    errors = [event for event in events[:-1] if "error" in json.loads(event)]
    if errors and json.loads(errors[0])["error"]["code"] == "internal_error" and not _an_engine_failed(run):
        yield f"{reply.ask.id}: an internal error, and no engine failed: {errors[0]}"
    if errors and not run.interrupted and not run.failed and not run.plan.faults and not _waited(reply, errors[0]):
        yield f"{reply.ask.id}: an error event without a fault: {errors[0]}"


def _waited(reply: Reply, error: str) -> bool:
    """Say whether one of several choices was still in the queue at its deadline, after another had begun the stream."""
    return reply.ask.body.get("n", 1) > 1 and json.loads(error)["error"]["code"] == "no_capacity"


# --- each text is the model's own


def _texts(run: Run) -> Iterator[str]:
    truths = Truths(run)
    for played in run.played:
        for reply in played.replies:
            if reply.status == 200:
                yield from _compare(reply, truths)


class Truths:
    """The model's own answers, each computed alone on a fresh engine with the plainest settings."""

    def __init__(self, run: Run) -> None:
        self._requests = {(request.request_id, request.choice): request for request in requests_of(run)}
        self._stops = {
            reply.ask.id: reply.ask.body.get("stop", []) for played in run.played for reply in played.replies
        }

    def text(self, request_id: str, choice: int) -> tuple[str, str]:
        """Return the whole text of an answer, and its finish reason."""
        request = self._requests[request_id, choice]
        text, finish = own_answer(request)
        places = [(text.find(stop), stop) for stop in self._stops[request_id] if stop in text]
        return (text[: min(places)[0]], "stop") if places else (text, finish)


def own_answer(request: GenerationRequest) -> tuple[str, str]:
    """Return what the model says to `request` alone: the text without the stop token, and the finish reason."""
    plain = GenerationRequest(
        prompt=request.prompt,
        max_tokens=request.max_tokens,
        seed=request.seed,
        choice=request.choice,
        sampling=request.sampling,
        stop_ids=request.stop_ids,
        min_tokens=request.min_tokens,
    )
    events = alone(plain, HashModel(vocabulary_size=VOCABULARY, context_tokens=512), PLAIN)
    stopped = events[-1].finish is Finish.STOP
    tokens = [event.token for event in events[: len(events) - stopped]]
    return bytes(tokens).decode("utf-8", "replace"), "stop" if stopped else "length"


def _compare(reply: Reply, truths: Truths) -> Iterator[str]:
    for choice, (text, finish) in answers_of(reply).items():
        if not text and finish is None:  # a choice that had not begun when the stream ended
            continue
        truth, true_finish = truths.text(reply.ask.id, choice)
        if finish is None and not truth.startswith(text.rstrip("\N{REPLACEMENT CHARACTER}")):
            yield f"{reply.ask.id}/{choice}: a part of the answer that the model does not give: {text!r} of {truth!r}"
        if finish is not None and (text, finish) != (truth, true_finish):
            yield f"{reply.ask.id}/{choice}: {finish} {text!r}, and alone it is {true_finish} {truth!r}"


def answers_of(reply: Reply) -> dict[int, tuple[str, str | None]]:
    """Return (text, finish reason or None) by choice, of a whole answer or of as much of a stream as came."""
    if not reply.ask.body["stream"]:
        if not reply.whole:
            return {}
        return {
            choice["index"]: (_text_of(choice, "message"), choice["finish_reason"]) for choice in _choices(reply.body)
        }
    found: dict[int, tuple[str, str | None]] = {}
    for event in sse_events(reply.body):
        for choice in [] if event == "[DONE]" else json.loads(event).get("choices", []):
            text, finish = found.get(choice["index"], ("", None))
            found[choice["index"]] = (text + _text_of(choice, "delta"), finish or choice["finish_reason"])
    return found


def _choices(body: bytes) -> list[dict[str, Any]]:
    return list(json.loads(body)["choices"])


def _text_of(choice: dict[str, Any], name: str) -> str:
    return str(choice["text"] if "text" in choice else choice[name].get("content") or "")


def sse_events(body: bytes) -> list[str]:
    """Return the data of every complete event."""
    blocks = body.decode("utf-8", "replace").split("\n\n")[:-1]
    return [block.removeprefix("data: ") for block in blocks if block.startswith("data: ")]


# --- an engine knows whose request it has


def _tenants(run: Run) -> Iterator[str]:
    keys = {ask.id: ask.key for client in run.plan.clients for ask in client.asks}
    for request in requests_of(run):
        tenant = f"key k{KEYS.index(keys[request.request_id]) - 1}" if run.plan.has_keys else "address "
        if request.tenant != tenant:
            yield f"{request.request_id}: the engine has it as one of {request.tenant!r}, and it is one of {tenant!r}"


# --- nothing is left


def _nothing_left(run: Run) -> Iterator[str]:
    assert run.server is not None
    if run.server.open_connections or run.server.open_requests:
        yield f"{run.server.open_connections} connections and {run.server.open_requests} requests are open at the end"
    yield from run.left
    assert run.door is not None
    held = {name: usage.streams for name, usage in run.door._usage.items() if usage.streams}
    if held:
        yield f"keys hold streams at the end: {held}"


# --- the log and the metrics say what the clients saw


def _records(run: Run) -> Iterator[str]:
    by_id = Counter(record.request_id for record in run.records)
    yield from (f"{request_id}: logged {count} times" for request_id, count in by_id.items() if count > 1)
    records = {record.request_id: record for record in run.records}
    for played in run.played:
        for reply in played.replies:
            record = records.get(reply.ask.id)
            if reply.whole and record is None:
                yield f"{reply.ask.id}: answered and not logged"
            elif reply.whole and record is not None and record.status not in (reply.status, _cut_reader(played)):
                yield f"{reply.ask.id}: the client saw {reply.status}, the log says {record.status}"
    for request in requests_of(run):
        if request.request_id not in records:
            yield f"{request.request_id}: reached an engine and was not logged"


def _cut_reader(played: Played) -> int | None:
    """Return the status in the log of a client that was cut because it read too slowly: it can still find all in its buffer."""
    return 499 if played.client.manner == "slow_reader" else None
