"""A fleet as a whole: the numerics it answers with, what it serves, and the sums of its nodes' figures.

Owns the choice among groups of nodes, and the message for a fleet without nodes. Places nothing. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from tlserve.fleet.head.member import Member
from tlserve.generation import BackendInfo, Distribution, EngineStatistics

GAUGES = ("kv_used", "kv_cached", "kv_free", "queue_depth", "active_sequences", "batch_tokens")
"""Figures of the current moment: those of a node that cannot be reached do not count."""


@attrs.frozen(kw_only=True)
class FleetModel:
    """The model that a head serves. The sizes and `max_context` apply while no node is ready.

    `numerics`: the fingerprint of the nodes that may answer; "": that of most ready nodes.
    """

    model_id: str
    max_context: int
    vocabulary_size: int
    embedding_size: int
    numerics: str = ""


def chosen_numerics(model: FleetModel, members: Iterable[Member]) -> str:
    """Return the numerics for new requests; every head that sees the same nodes chooses the same."""
    if model.numerics:
        return model.numerics
    ready = Counter(member.info.numerics for member in members if member.info and not member.why_not(model.model_id))
    return min(ready, key=lambda numerics: (-ready[numerics], numerics), default="")


def group_of(model: FleetModel, members: Iterable[Member], numerics: str) -> list[Member]:
    """Return the nodes with `numerics` that can get a new session."""
    return [
        member
        for member in members
        if not member.why_not(model.model_id) and member.info is not None and member.info.numerics == numerics
    ]


def describe(model: FleetModel, members: Sequence[Member], admission: int) -> BackendInfo:
    """Return what the fleet serves: the context is the smallest among its nodes, so that an answer can move to any of them."""
    numerics = chosen_numerics(model, members)
    nodes = [member.info.backend for member in group_of(model, members, numerics) if member.info]
    if not nodes:
        return BackendInfo(
            model_id=model.model_id,
            context_tokens=model.max_context,
            vocabulary_size=model.vocabulary_size,
            embedding_size=model.embedding_size,
            system_fingerprint=numerics,
            kernels="",
            admission_limit=admission,
            ready=False,
            not_ready_reason=why_none(model, members),
        )
    return attrs.evolve(
        nodes[0],
        context_tokens=min(node.context_tokens for node in nodes),
        kernels=nodes[0].kernels if len({node.kernels for node in nodes}) == 1 else "mixed",
        admission_limit=min(admission, sum(node.admission_limit or admission for node in nodes)),
    )


def why_none(model: FleetModel, members: Iterable[Member]) -> str:
    """Return why no node can get a request now, node by node."""
    known = "; ".join(
        f"{member.node} {member.why_not(model.model_id) or 'has other numerics'}"
        for member in members
        if not member.is_gone
    )
    return f"no node serves {model.model_id!r} now ({known or 'no node is known'})"


# --- figures


def add(one: EngineStatistics, other: EngineStatistics) -> EngineStatistics:
    """Return the sums."""
    return EngineStatistics(
        **{
            field.name: _add(getattr(one, field.name), getattr(other, field.name))
            for field in attrs.fields(EngineStatistics)
        }
    )


def without_gauges(statistics: EngineStatistics) -> EngineStatistics:
    """Return the counters alone."""
    nothing: dict[str, Any] = dict.fromkeys(GAUGES, 0)
    return attrs.evolve(statistics, **nothing)


def total(retired: EngineStatistics, members: Iterable[Member]) -> EngineStatistics:
    """Return the sums over the nodes and `retired`, the counters of nodes that have left: counters never fall."""
    for member in members:
        retired = add(retired, without_gauges(member.statistics) if member.absence else member.statistics)
    return retired


def _add(one: Any, other: Any) -> Any:
    if isinstance(one, Distribution) and isinstance(other, Distribution):
        return _add_distributions(one, other)
    return one + other


def _add_distributions(one: Distribution, other: Distribution) -> Distribution:
    """Return the sum; a distribution without bounds is empty, and nodes of one version have the same."""
    if not one.bounds or not other.bounds:
        return one if one.bounds else other
    if one.bounds != other.bounds:
        return one
    counts = tuple(a + b for a, b in zip(one.counts, other.counts, strict=True))
    return Distribution(one.bounds, counts, one.total + other.total)
