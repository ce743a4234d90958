"""A server as the head of a fleet: the same API, with tokens that nodes make.

Owns what the table [fleet] means for a head: how it finds its nodes, its limits, and what it reports of them. Runs only the
backend that it makes; `tlserve.programs.server` runs the server.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import attrs
import trio

from tlserve.config.environment import process_environ
from tlserve.config.model_id import served_model_id
from tlserve.config.settings import FleetSettings, Settings
from tlserve.errors import SettingsError
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.head.member import Member
from tlserve.fleet.head.overview import FleetModel
from tlserve.fleet.http.dns_directory import DnsDirectory
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.http.node_processes import NodeProcesses
from tlserve.fleet.http.static_directory import StaticDirectory
from tlserve.fleet.link import NodeChange, NodeDirectory
from tlserve.model.load import ModelFront, load_front
from tlserve.programs.hosted_model import HostedModel, MakeModels, find_model_path, make_served, wait_forever
from tlserve.text.tokenizer import Tokenizer, build_tokenizer


@attrs.frozen(kw_only=True)
class OwnNodes:
    """Nodes that the head starts on this machine: how many, the command, and the key that their routes require."""

    count: int
    command: Sequence[str]
    key: str


@attrs.frozen(kw_only=True)
class JoinedNodes:
    """The nodes of a head while it runs; the head waits at the start until `expected` of them answer.

    `wait_unfit` returns, with the reason, when no node can ever join again.
    """

    directory: NodeDirectory
    expected: int = 0
    wait_unfit: Callable[[], Awaitable[str]] = wait_forever


Join = Callable[[], AbstractAsyncContextManager[JoinedNodes]]


def load_head(settings: Settings, own: OwnNodes | None = None) -> MakeModels:
    """Read the tokenizer and template of the model of [engine]; its nodes are those that [fleet] names, or `own` ones.

    Raises `SettingsError` for a head that names no nodes, or several kinds of them.
    """
    join = _choose_join(settings, own)
    if settings.engine.load != "always":
        raise SettingsError((f"engine.load = {settings.engine.load!r}: a head loads no model; leave it out",))
    path = find_model_path(settings.engine.model_dir)
    front = load_front(path, context_tokens=settings.engine.context_tokens)
    return partial(_make, settings, front, join)


def _make(settings: Settings, front: ModelFront, join: Join) -> tuple[HostedModel]:
    tokenizer = build_tokenizer(front.metadata)
    backend = HeadBackend(join, _model(settings, front, tokenizer), _limits(settings.fleet))
    served = attrs.evolve(make_served(settings.engine, front, backend, tokenizer), backend_kind="fleet")
    return (
        HostedModel(
            served=served,
            backend=backend,
            description=f"{front.description}, by a fleet",
            lines=(f"  nodes      {_nodes_line(settings.fleet, backend)}",),
            facts={"fleet": True},
            about=lambda: {"fleet": _describe_members(backend, served.model_id)},
            fleet=backend.figures,
            wait_unfit=backend.wait_unfit,
        ),
    )


def _model(settings: Settings, front: ModelFront, tokenizer: Tokenizer) -> FleetModel:
    return FleetModel(
        model_id=served_model_id(settings.engine.model_dir, settings.engine.model_id),
        max_context=settings.fleet.max_context or front.context_tokens,
        vocabulary_size=tokenizer.vocabulary_size,
        embedding_size=0,
    )


def _limits(fleet: FleetSettings) -> FleetLimits:
    return FleetLimits(admission=fleet.admission, wall_s=fleet.wall_limit_ms / 1000, moves=fleet.moves)


def _describe_members(backend: FleetBackend, model_id: str) -> list[dict[str, object]]:
    members = sorted(backend.members, key=lambda member: member.node)
    return [describe_member(member, model_id) for member in members]


def describe_member(member: Member, model_id: str) -> dict[str, object]:
    """Return what /healthz reports of a node: `state` is "ready", or the reason why it is not."""
    info = member.info
    statistics = member.statistics
    known = {} if info is None else {"model": info.backend.model_id, "numerics": info.numerics, "version": info.version}
    return {
        "node": member.node,
        "state": member.why_not(model_id) or "ready",
        **known,
        "context_tokens": None if info is None else info.backend.context_tokens,
        "running": statistics.active_sequences,
        "waiting": statistics.queue_depth,
        "slots": None if info is None else info.slots,
    }


# --- where the nodes are


def _choose_join(settings: Settings, own: OwnNodes | None) -> Join:
    fleet = settings.fleet
    ways: list[tuple[object, Join]] = [
        (fleet.nodes, partial(_join_urls, fleet)),
        (fleet.nodes_dns, partial(_join_dns, fleet)),
        (fleet.ray_address, partial(_join_ray, fleet)),
    ]
    chosen = [join for asked, join in ways if asked]
    if own is not None:
        chosen.append(partial(_join_own, own))
    if len(chosen) == 1 and not settings.models:
        return chosen[0]
    raise SettingsError((*(() if len(chosen) == 1 else (_which_nodes(len(chosen)),)), *_several_models(settings)))


def _which_nodes(count: int) -> str:
    how = "give one of fleet.nodes, fleet.nodes_dns and fleet.ray_address, or --nodes to start some on this machine"
    return f"{'a head needs nodes' if not count else 'a head has nodes of one kind'}: {how}"


def _several_models(settings: Settings) -> tuple[str, ...]:
    return ("a head serves one model, that of [engine]; remove the [[models]] tables",) if settings.models else ()


@asynccontextmanager
async def _join_urls(fleet: FleetSettings) -> AsyncIterator[JoinedNodes]:
    tls = _tls(fleet)
    directory = StaticDirectory(fleet.nodes, lambda url: HttpLink(url, key=fleet.internal_key, tls=tls))
    try:
        yield JoinedNodes(directory=directory)
    finally:
        await directory.aclose()


@asynccontextmanager
async def _join_dns(fleet: FleetSettings) -> AsyncIterator[JoinedNodes]:
    tls = _tls(fleet)
    directory = DnsDirectory(
        fleet.nodes_dns, lambda url, host: HttpLink(url, key=fleet.internal_key, tls=tls, server_name=host)
    )
    try:
        yield JoinedNodes(directory=directory)
    finally:
        await directory.aclose()


def _tls(fleet: FleetSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=fleet.nodes_ca or None)
    except OSError as error:
        raise SettingsError((f"fleet.nodes_ca cannot be read: {error}",)) from error


@asynccontextmanager
async def _join_own(own: OwnNodes) -> AsyncIterator[JoinedNodes]:
    environment = {**process_environ(), "TL_FLEET__INTERNAL_KEY": own.key}
    nodes = NodeProcesses(own.count, own.command, environment, lambda url: HttpLink(url, key=own.key))
    async with trio.open_nursery() as nursery:
        await nursery.start(nodes.run)
        yield JoinedNodes(directory=nodes, expected=own.count)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _join_ray(fleet: FleetSettings) -> AsyncIterator[JoinedNodes]:
    from tlserve.fleet.ray.cluster import join_cluster  # a head over HTTP loads nothing of the Ray link
    from tlserve.programs.ray.program import ray_settings

    async with join_cluster(ray_settings(fleet), fleet.ray_address) as cluster:

        async def wait_lost() -> str:
            return (await cluster.wait_lost()).message

        yield JoinedNodes(directory=cluster.directory(), wait_unfit=wait_lost)


def _nodes_line(fleet: FleetSettings, backend: HeadBackend) -> str:
    where = ", ".join(
        (*fleet.nodes, *fleet.nodes_dns, *((f"Ray at {fleet.ray_address}",) if fleet.ray_address else ()))
    )
    return where or ", ".join(member.node for member in backend.members) or "started here, with this process"


# --- the backend


class _LateDirectory:
    """A directory that exists from the beginning, and has its nodes once they have been joined."""

    def __init__(self) -> None:
        self._is_open = trio.Event()
        self._directory: NodeDirectory | None = None

    def open(self, directory: NodeDirectory) -> None:
        self._directory = directory
        self._is_open.set()

    async def changes(self) -> AsyncIterator[NodeChange]:
        await self._is_open.wait()
        assert self._directory is not None
        async for change in self._directory.changes():
            yield change


class HeadBackend(FleetBackend):
    """A `FleetBackend` that joins its nodes when it starts to run, and leaves them at its end."""

    def __init__(self, join: Join, model: FleetModel, limits: FleetLimits) -> None:
        self._join = join
        self._late = _LateDirectory()
        self._joined: JoinedNodes | None = None
        self._has_joined = trio.Event()
        super().__init__(self._late, model, limits)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop` or cancellation; started once the expected nodes answer."""
        async with self._join() as joined:
            self._late.open(joined.directory)
            self._joined = joined
            self._has_joined.set()
            async with trio.open_nursery() as nursery:
                await nursery.start(super().run)
                await self.wait_ready(joined.expected)
                task_status.started()

    async def wait_unfit(self) -> str:
        """Return, with the reason, when the head can never take a new request again."""
        await self._has_joined.wait()
        assert self._joined is not None
        return await self._joined.wait_unfit()
