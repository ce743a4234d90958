"""One exchange of the API, a request and its answer: the headers of the answer, its errors, and its log record.

Owns the headers that every answer has, the answer to an error, and the one log record per request. Does not know bodies and
models. A request whose client disconnects before the end of its answer is logged with status 499.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Mapping

import attrs
import trio

from tlserve.access.addresses import tenant_of
from tlserve.access.door import Entry
from tlserve.api.errors import ErrorAnswer, describe_error, describe_http_fault
from tlserve.api.fields import ignored_header
from tlserve.endpoints.families import OPENAI, Family
from tlserve.endpoints.open_requests import RequestWork
from tlserve.errors import TlserveError, single_cause
from tlserve.http.messages import HttpFault, Request, Response
from tlserve.http.responder import Responder
from tlserve.telemetry.request_log import RequestFigures, RequestRecord
from tlserve.telemetry.tracing import TRACEPARENT, RequestSpan

logger = logging.getLogger("tlserve.endpoints")

CLIENT_GONE = 499
JSON = ("Content-Type", "application/json")


@attrs.define(eq=False)
class ApiExchange:
    """A request, its responder, and the figures known so far; `params` are the values of the names in its path."""

    request: Request
    responder: Responder
    id: str
    started_s: float
    params: Mapping[str, str] = attrs.field(factory=dict)
    status: int = CLIENT_GONE
    ignored: tuple[str, ...] = ()
    extra_headers: list[tuple[str, str]] = attrs.field(factory=list)
    family: Family = OPENAI
    figures: RequestFigures = attrs.field(factory=RequestFigures)
    entry: Entry = attrs.field(factory=Entry)
    span: RequestSpan | None = None
    work: RequestWork = attrs.field(
        default=attrs.Factory(lambda self: RequestWork(lambda: self.responder.started), takes_self=True)
    )
    _clock: trio.abc.Clock = attrs.field(factory=trio.lowlevel.current_clock)

    @property
    def tenant(self) -> str:
        """Return whose request it is: the name of its API key, or the address of a client without one."""
        return tenant_of(self.entry.key_name, self.request.peer)

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of every answer to this request."""
        limits = self.entry.headers(trio.current_time())
        ignored = (("X-TL-Ignored", ignored_header(self.ignored)),) if self.ignored else ()
        trace = ((TRACEPARENT, self.span.traceparent),) if self.span else ()
        return (*self.family.id_headers(self.id), *trace, *ignored, *limits, *self.extra_headers)

    def reserve_tokens(self, count: int) -> None:
        """Count tokens against the key's limit before they are used; raises the errors of `Entry.reserve`."""
        self.entry.reserve(count, trio.current_time())

    def hold_bytes(self, count: int) -> None:
        """Count `count` more bytes of memory until the request ends, fewer if negative; raises `HttpFault` 413 or 503."""
        if count:
            self.request.body.hold(count)

    def leave(self) -> None:
        """Give back the permit, and count the tokens that were used instead of those that were reserved."""
        self.entry.leave(self.figures.used_tokens, trio.current_time())

    async def send(self, body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = (JSON,)) -> None:
        """Send a whole answer, unless the request was cancelled; raises CancelledById then."""
        self.work.complete()
        self.status = status
        await self.responder.send(Response(status, body, (*headers, *self.headers())))

    async def send_error(self, error: Exception) -> None:
        """Send the error document of `error`."""
        answer = describe_fault(error)
        self.note_error(answer)
        await self.send(self.family.error_document(answer, self.id), answer.status, error_headers(answer, error))

    def note_error(self, answer: ErrorAnswer) -> None:
        """Note for the log which kind of error the client got."""
        self.figures.error, self.figures.param = answer.kind, answer.param

    def elapsed_ms(self) -> float:
        """Return the time since the request's head arrived. A worker thread may call it."""
        return (self._clock.current_time() - self.started_s) * 1000

    def record(self) -> RequestRecord:
        """Return the log record."""
        return self.figures.record(
            request_id=self.id,
            method=self.request.method,
            path=self.request.path,
            status=self.status if self.responder.finished else CLIENT_GONE,
            total_ms=self.elapsed_ms(),
        )


Endpoint = Callable[[ApiExchange], Awaitable[None]]


def describe_fault(error: Exception) -> ErrorAnswer:
    """Return the answer to any error, also to a fault of HTTP."""
    cause = single_cause(error)
    if isinstance(cause, HttpFault):
        usual = describe_http_fault(cause.status, cause.message)
        return attrs.evolve(usual, param=cause.param, code=cause.code or usual.code)
    return describe_error(cause)


def error_headers(answer: ErrorAnswer, error: Exception) -> tuple[tuple[str, str], ...]:
    """Return the headers of an error: its type, when to try again, and the fault's own headers."""
    cause = single_cause(error)
    own = cause.headers if isinstance(cause, HttpFault) else ()
    retry = answer.retry_after_s
    given = {name.lower() for name, _ in own}
    again = () if retry is None or "retry-after" in given else (("Retry-After", str(max(1, math.ceil(retry)))),)
    return (JSON, *again, *own)


async def run_endpoint(exchange: ApiExchange, endpoint: Endpoint, log: Callable[[RequestRecord], None]) -> None:
    """Run `endpoint`; answer its error if nothing was sent yet; log the request, however it ended."""
    try:
        await endpoint(exchange)
    except trio.BrokenResourceError:  # the client has disconnected
        raise
    except Exception as error:
        log_unforeseen(error, exchange)
        if exchange.responder.started:
            raise
        await exchange.send_error(error)
    finally:
        record = exchange.record()
        log(record)
        if exchange.span is not None:
            exchange.span.end(record)


def log_unforeseen(error: Exception, exchange: ApiExchange) -> None:
    """Log an error that is not a `TlserveError`, with its traceback: it is a defect of this program."""
    if not isinstance(single_cause(error), TlserveError):
        logger.error("request %s failed", exchange.id, exc_info=error)
