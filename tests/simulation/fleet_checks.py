"""What must hold of every simulated fleet: a request outlives its node, no node computes it in vain, and nothing stays on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.simulation.plan import Fault
from tests.simulation.world import Run

GENTLE = {("poll", "doubled"), ("poll", "lost_reply"), ("poll", "lost_request"), ("cancel", "lost_request")}
"""Faults of a link that take no session off its node, if they come one at a time."""

LOST = (b"the node that took this request", b"nodes failed during this answer", b"no other node could continue")
"""What a client is told if its node is lost and no other one continues."""


HUNG = b"was not complete within"
"""What a client is told after the longest time of an answer, which is ten minutes: nothing takes so long here."""


def fleet_problems(run: Run) -> Iterator[str]:
    """Yield a sentence for each thing that does not hold."""
    if run.plan.nodes:
        yield from _outlives_its_node(run)
        yield from _draining_nodes_take_nothing(run)
        yield from _is_placed_once(run)
        yield from _stays_where_it_is(run)


def _outlives_its_node(run: Run) -> Iterator[str]:
    """A request comes to its end if one node had no fault at all, and in time whatever happens."""
    replies = [reply for played in run.played for reply in played.replies]
    yield from (f"{reply.ask.id}: it hung: {reply.body[-300:]!r}" for reply in replies if HUNG in reply.body)
    if len({name for name, _ in run.harmed}) == run.plan.nodes:
        return
    for reply in replies:
        if any(words in reply.body for words in LOST):
            yield f"{reply.ask.id}: it ended with its node, and one node has no fault: {reply.body[-300:]!r}"


def _draining_nodes_take_nothing(run: Run) -> Iterator[str]:
    for number, backend in enumerate(run.backends):
        since = backend.drained_at
        late = [name for name, at in backend.admitted_at.items() if since is not None and at > since]
        if late:
            yield f"backend {number} took {late} after its node began to drain"


def _is_placed_once(run: Run) -> Iterator[str]:
    """A node that lives on admits each placement once, however often the message comes."""
    for node in run.nodes:
        if node.lives > 1:
            continue
        asked = Counter(
            (request.request_id, request.choice)
            for _, request in {(key, request) for key, request, _ in node.link.placed}
        )
        for name, count in Counter(node.backend.admissions).items():
            if count > asked[name]:
                yield f"{node.name}: {name} was admitted {count} times and placed {asked[name]} times"


def _stays_where_it_is(run: Run) -> Iterator[str]:
    if run.figures is not None and _is_gentle(run) and (run.figures.moves_total or run.figures.losses_total):
        yield f"nothing was lost for good, and there were {run.figures.moves_total} moves, {run.figures.losses_total} losses"


def _is_gentle(run: Run) -> bool:
    lost = Counter(name for name, fault in run.harmed if fault.link[1].startswith("lost"))
    return all(map(_is_repaired, run.plan.faults)) and max(lost.values(), default=0) < 2


def _is_repaired(fault: Fault) -> bool:
    if fault.kind == "link":
        return fault.link in GENTLE and (fault.times == 1 or fault.link[1] == "doubled")
    return fault.kind == "other_head"
