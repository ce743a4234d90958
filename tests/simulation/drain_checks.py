"""What must hold of the end of every simulated server: nothing is admitted, all is answered in time, the exit code is right."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.clients import Played
from tests.simulation.world import Run, requests_of
from tlserve.errors import DrainCut
from tlserve.lifecycle.drain import CUT_GRACE_S

MOMENT_S = 0.1

CANCEL_S = 1.0
"""How long the head of a fleet waits for a node to end a session."""


def drain_problems(run: Run) -> Iterator[str]:
    """Yield a sentence for each thing that does not hold."""
    if run.stopped_at is None:
        return
    yield from _admits_nothing(run, run.stopped_at)
    yield from _ends_in_time(run, run.stopped_at)
    yield from _answers_all(run)
    yield from _closes_idle_connections(run, run.stopped_at)
    yield from _exits(run, run.stopped_at)


def _admits_nothing(run: Run, stopped_at: float) -> Iterator[str]:
    for backend in run.backends if not run.plan.nodes else ():  # a fleet may move its sessions during a drain
        late = [name for name, at in backend.admitted_at.items() if at > stopped_at]
        if late:
            yield f"admitted after the stop: {late}"


def _ends_in_time(run: Run, stopped_at: float) -> Iterator[str]:
    until = stopped_at + run.plan.http.drain_timeout_ms / 1000
    until = min([until, *run.stops[1:]]) + _grace_s(run)
    if run.ended_at > until + MOMENT_S:
        yield f"the drain took {run.ended_at - stopped_at:.2f} s, and may take {until - stopped_at:.2f}"


def _grace_s(run: Run) -> float:
    """Return how long after the cut the end may come: long only for clients, and for nodes with faults, that do not answer."""
    slow = any(played.client.manner in ("slow_reader", "bytes") for played in run.played)
    lost = run.plan.nodes and run.plan.faults
    return CUT_GRACE_S if slow or lost or run.failed else (CANCEL_S if run.plan.nodes else 0.0)


def _answers_all(run: Run) -> Iterator[str]:
    """A request that has reached an engine is answered: if it is cut, with an error."""
    known = {request.request_id for request in requests_of(run)}
    for played in run.played:
        for reply in played.replies:
            if reply.ask.id in known and not reply.whole and not _may_be_gone(played):
                yield f"{reply.ask.id}: an engine had it, and it ended without an answer or an error"


def _may_be_gone(played: Played) -> bool:
    return played.left or played.client.manner == "slow_reader"


def _closes_idle_connections(run: Run, stopped_at: float) -> Iterator[str]:
    for played in run.played:
        if played.waited_from is None or played.closed_at is None:
            continue
        if played.closed_at > max(stopped_at, played.waited_from) + MOMENT_S:
            asks = ", ".join(reply.ask.id for reply in played.replies)
            yield f"the idle connection of {asks} stayed open for {played.closed_at - stopped_at:.2f} s of the drain"


def _exits(run: Run, stopped_at: float) -> Iterator[str]:
    if run.exit_code not in (0, 3):
        yield f"the exit code is {run.exit_code}"
    if run.failed:
        return
    deadline = stopped_at + run.plan.http.drain_timeout_ms / 1000
    if run.exit_code == 3 and len(run.stops) < 2 and run.ended_at < deadline:
        yield f"the server cut something {deadline - run.ended_at:.2f} s before its deadline"
    if run.exit_code == 0 and any(_was_cut(played) for played in run.played):
        yield "the server cut a request, and its exit code is 0"


def _was_cut(played: Played) -> bool:
    return any(DrainCut().message.encode() in reply.body for reply in played.replies)
