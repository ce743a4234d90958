"""What a server has before its model is loaded: listening sockets, keys, the certificate.

Owns where the sockets come from (the process that serves until now, a supervisor, or the addresses of the settings, in this
order), and the refusals of addresses that are exposed. Does not serve anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

import attrs
import trio

from tlserve.access.door import Door
from tlserve.access.exposure import check_exposure, is_local
from tlserve.access.pages import PageGuard, plan_page_guard
from tlserve.config.addresses import UNIX
from tlserve.config.settings import Settings
from tlserve.config.tables.network import TlsSettings
from tlserve.errors import AddressInUse, SettingsError
from tlserve.http.server import Listener
from tlserve.http.sockets.handover import Offered, Predecessor, find_predecessor, offer
from tlserve.http.sockets.inherited import inherited_sockets
from tlserve.http.sockets.listener import adopt, bound_addresses, open_listeners
from tlserve.http.sockets.stream_listener import StreamListener
from tlserve.http.sockets.tls import Certificate, TlsListener
from tlserve.http.sockets.unix_socket import UnixListener
from tlserve.programs.http_node import check_node
from tlserve.programs.server_objects import make_door, make_tracer, read_keys
from tlserve.telemetry.tracing import Tracer

TRACES_GRACE_S = 5.0
"""How long the last spans can still reach their collector, in seconds."""


HANDOVER = "handover"
HEALTH = "health"
"""The name (`FileDescriptorName=`) of the health port among the sockets of a supervisor; all others are the API's."""


@attrs.frozen(kw_only=True)
class Entrance:
    """Listening sockets, and who may use them.

    `predecessor` serves on the same sockets until this server is ready. At `handover` the next process asks for them.
    """

    api: Sequence[StreamListener]
    health: Sequence[StreamListener]
    handover: StreamListener | None
    predecessor: Predecessor | None
    door: Door
    certificate: Certificate | None
    tracer: Tracer | None
    pages: PageGuard

    def api_listeners(self) -> list[Listener]:
        """Return the listeners of the API, with TLS if there is a certificate."""
        if self.certificate is None:
            return list(self.api)
        return [TlsListener(listener, self.certificate) for listener in self.api]

    @property
    def lives_on(self) -> bool:
        """Say whether a supervisor keeps the sockets of the API when this process ends."""
        return any(listener.lives_on for listener in self.api)

    async def hand_over(self, settings: Settings) -> None:
        """Wait until another process serves on the sockets; the files of Unix sockets then belong to it."""
        assert self.handover is not None
        named = [
            *((_api_name(settings), listener) for listener in self.api),
            *((_health_name(settings), listener) for listener in self.health),
            (HANDOVER, self.handover),
        ]
        await offer(self.handover, [Offered(name, listener.opened, listener.lives_on) for name, listener in named])
        for _, listener in named:
            if isinstance(listener, UnixListener):
                listener.keep_file()


def _api_name(settings: Settings) -> str:
    return f"api {settings.engine.http_listen}"


def _health_name(settings: Settings) -> str:
    return f"health {settings.engine.health_listen}"


async def open_entrance(settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack) -> Entrance:
    """Read the keys and the certificate, open every socket, and refuse an exposed address; `stack` closes the sockets.

    `environ` names the sockets of a supervisor.
    """
    door, certificate = make_door(settings.access), _certificate(settings.tls)
    tracer = make_tracer(settings.telemetry)
    if tracer is not None:
        stack.push_async_callback(_close_tracer, tracer)
    opening = await _start_opening(settings, environ, stack)
    api = await opening.api()
    check_exposure(bound_addresses(api), has_keys=door.wants_keys, allow_public=settings.access.allow_public)
    check_node(settings, bound_addresses(api), read_keys(settings.access))
    return Entrance(
        api=api,
        health=await opening.health(),
        handover=await opening.handover(),
        predecessor=opening.predecessor,
        door=door,
        certificate=certificate,
        tracer=tracer,
        pages=_page_guard(settings, api, door),
    )


def _page_guard(settings: Settings, api: Sequence[StreamListener], door: Door) -> PageGuard:
    addresses = [address for address in bound_addresses(api) if not address.startswith(UNIX)]
    return plan_page_guard(
        has_keys=door.wants_keys,
        is_local=bool(addresses) and all(map(is_local, addresses)),  # no browser reaches a Unix socket
        hosts=settings.access.allow_hosts,
        origins=settings.cors.allow_origins,
    )


async def _start_opening(settings: Settings, environ: Mapping[str, str], stack: AsyncExitStack) -> _Opening:
    predecessor = None
    if settings.http.handover_socket:
        predecessor = await find_predecessor(settings.http.handover_socket)
        if predecessor is not None:
            stack.push_async_callback(predecessor.aclose)
    inherited = [Offered(name, opened, lives_on=True) for name, opened in inherited_sockets(environ)]
    for one in inherited:
        stack.callback(one.opened.close)
    return _Opening(settings, stack, predecessor, inherited)


@attrs.frozen
class _Opening:
    """The opening of the sockets of one server, each from the first source that has it."""

    settings: Settings
    stack: AsyncExitStack
    predecessor: Predecessor | None
    inherited: Sequence[Offered]

    async def api(self) -> Sequence[StreamListener]:
        passed = [one for one in self.inherited if one.name != HEALTH]
        return await self._open(_api_name(self.settings), passed, self.settings.engine.http_listen)

    async def health(self) -> Sequence[StreamListener]:
        address = self.settings.engine.health_listen
        passed = [one for one in self.inherited if one.name == HEALTH]
        try:
            return await self._open(_health_name(self.settings), passed, address) if address or passed else []
        except AddressInUse as fault:  # a second server meets this error for a port that its user never named
            raise AddressInUse(f"{fault.message}; this is the health port: --health-port") from None

    async def handover(self) -> StreamListener | None:
        path = self.settings.http.handover_socket
        return (await self._open(HANDOVER, (), f"{UNIX}{path}"))[0] if path else None

    async def _open(self, name: str, passed: Sequence[Offered], address: str) -> Sequence[StreamListener]:
        """Adopt the sockets of the predecessor, or those `passed` by the supervisor, or else listen on `address`."""
        found = (self.predecessor.take(name) if self.predecessor else []) or passed
        mode = 0o600 if name == HANDOVER else int(self.settings.http.unix_socket_mode, 8)
        listeners = [adopt(one.opened, lives_on=one.lives_on) for one in found] or await open_listeners(
            address, unix_mode=mode
        )
        for listener in listeners:
            self.stack.push_async_callback(listener.aclose)
        return listeners


def _certificate(settings: TlsSettings) -> Certificate | None:
    if settings.key and not settings.certificate:
        raise SettingsError(("tls.key is given without tls.certificate: give both, or neither",))
    return Certificate(settings.certificate, settings.key) if settings.certificate else None


async def _close_tracer(tracer: Tracer) -> None:
    """Hand over the last spans; wait no longer than the grace for a collector that does not answer."""
    with trio.move_on_after(TRACES_GRACE_S, shield=True):
        await trio.to_thread.run_sync(tracer.close, abandon_on_cancel=True)
