"""One request and its answer: run the handler, watch for the client to disconnect, and answer if the handler did not.

Owns the cancel scope of a request, and the task that watches its client. Does not know the requests before and after it on the
connection: `run` returns how the connection continues.

    nursery of the exchange
      |- the handler, inside `scope`            cancelled when the client has disconnected
      |- the watcher                            from the end of the request's body to the end of the response
      |- tasks of the responder (pings)         end with the exchange
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable

import attrs
import h11
import trio

from tlserve.config.tables.network import HttpSettings
from tlserve.http import disconnect
from tlserve.http.body import RequestBody
from tlserve.http.messages import Headers, HttpFault, Request, RequestTarget, Response, render_plain_fault
from tlserve.http.responder import Responder, Surroundings
from tlserve.http.server_state import ServerState
from tlserve.http.wire import Wire

logger = logging.getLogger("tlserve.http")

Handler = Callable[[Request, Responder], Awaitable[None]]
RenderFault = Callable[[HttpFault, Request | None], Response]


class AfterAnswer(enum.Enum):
    """How a connection continues after an answer: with the next request, or to its end in one of three ways."""

    KEEP = "keep"
    LINGER = "linger"
    CLOSE = "close"
    CUT = "cut"


@attrs.frozen(kw_only=True)
class Service:
    """What the connections of one server share: limits, the handler, and the form of a fault.

    `render_refusal` is for connections that are refused before they have sent a request.
    """

    settings: HttpSettings
    handler: Handler
    render_fault: RenderFault
    render_refusal: RenderFault = render_plain_fault


class Exchange:
    """The request that `machine` has parsed as `head`, and its answer."""

    def __init__(
        self,
        machine: h11.Connection,
        wire: Wire,
        head: h11.Request,
        target: RequestTarget,
        service: Service,
        peer: str,
        state: ServerState,
    ) -> None:
        self._machine = machine
        self._wire = wire
        self._service = service
        self._state = state
        self._scope = trio.CancelScope()
        self._watching = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        headers = Headers((name.decode("ascii"), value.decode("latin-1")) for name, value in head.headers.raw_items())
        self._body = RequestBody(machine, wire, headers, service.settings, state, self._start_watching)
        self._request = _request_of(head, target, headers, self._body, peer)
        surroundings = Surroundings(
            closes=self._closes,
            on_departed=self._scope.cancel,
            on_finished=self._watching.cancel,
            start_soon=self._start_soon,
        )
        self._responder = Responder(machine, wire, self._request.method, surroundings)

    async def run(self) -> AfterAnswer:
        """Answer the request and return how the connection continues."""
        try:
            return await self._run()
        finally:
            self._body.forget()

    async def _run(self) -> AfterAnswer:
        async with trio.open_nursery() as self._nursery:
            self._body.begin()
            with self._scope:
                await self._answer()
            self._nursery.cancel_scope.cancel()
        if not self._responder.finished:
            return AfterAnswer.CUT
        if self._machine.our_state is h11.DONE:
            await self._body.discard()
        done = self._machine.our_state is h11.DONE and self._machine.their_state is h11.DONE
        return AfterAnswer.KEEP if done and not self._wire.ended else AfterAnswer.LINGER

    def _closes(self) -> bool:
        return self._state.is_ending or not self._body.will_end()

    def _start_soon(self, run: Callable[..., Awaitable[None]], *args: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(run, *args)

    def _start_watching(self) -> None:
        if self._nursery is not None and not self._responder.finished:
            self._nursery.start_soon(self._watch)

    async def _watch(self) -> None:
        with self._watching:
            await disconnect.wait_departed(self._wire, disconnect.pipelined_bytes_limit(self._service.settings))
            self._wire.broken = True
            self._scope.cancel()

    async def _answer(self) -> None:
        fault = await self._handle()
        if self._responder.started:
            if fault is not None and not self._responder.finished:
                logger.warning("an answer to %s was cut: %s", self._request.peer, fault.message)
            return
        fault = fault or HttpFault(500, "the server did not answer this request")
        await self._responder.send(self._rendered(fault))

    async def _handle(self) -> HttpFault | None:
        """Run the handler; return its fault, if it ended with one."""
        try:
            await self._service.handler(self._request, self._responder)
        except HttpFault as fault:
            return fault
        except Exception as error:
            if not (self._wire.broken and isinstance(error, trio.BrokenResourceError)):
                logger.exception("the handler of %s %r failed", self._request.method, self._request.path)
            return HttpFault(500, "the server failed while it answered this request")
        return None

    def _rendered(self, fault: HttpFault) -> Response:
        return self._service.render_fault(fault, self._request)


def _request_of(head: h11.Request, target: RequestTarget, headers: Headers, body: RequestBody, peer: str) -> Request:
    return Request(
        method=head.method.decode("ascii"),
        target=head.target.decode("ascii"),
        segments=target.segments,
        query=target.query,
        headers=headers,
        http_version=head.http_version.decode("ascii"),
        peer=peer,
        body=body,
    )
