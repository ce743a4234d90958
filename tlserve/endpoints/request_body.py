"""A request's body -> the parsed request and the model that it names: the first step of every route with a body.

Owns the order: headers are checked before the body is read, a large body is parsed off the event loop, and then the model is
looked up. Does not know what the routes do with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import attrs

from tlserve.api.chat_request import BodyRules
from tlserve.api.options import GenerationOptions
from tlserve.chat.served_model import Served, check_generates
from tlserve.endpoints.answers.deadline import Deadline, plan_deadline
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.request_headers import STRICT, GenerationHeaders, read_generation_headers, read_switch


class Parsed(Protocol):
    """The members of every parsed body: the model, and the names of unknown fields."""

    @property
    def model(self) -> str:
        """Return the model as the request names it."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return the names of the fields that no table has."""


class ParsedGeneration(Parsed, Protocol):
    """The members of every parsed body that asks for tokens."""

    @property
    def options(self) -> GenerationOptions:
        """Return the options that chat and completions share."""


Body = TypeVar("Body", bound=Parsed)
GenerationBody = TypeVar("GenerationBody", bound=ParsedGeneration)
OtherBody = TypeVar("OtherBody", bound=ParsedGeneration)


@attrs.frozen
class Incoming(Generic[Body]):
    """A request that was read; its work grows with `size_bytes`, the size of its body.

    `named` is the model's name in the request, or its id if the request has none.
    """

    request: Body
    served: Served
    named: str
    size_bytes: int


async def read_incoming(
    api: ApiContext, exchange: ApiExchange, parse: Callable[[bytes, BodyRules], Body]
) -> Incoming[Body]:
    """Read and parse the body, and pick its model; note both in the exchange. Raises ClientError and ModelNotFound."""
    rules = BodyRules(api.settings.max_json_depth, read_switch(exchange.request.headers, STRICT))
    body = await exchange.request.body.read()
    request = await api.offload.run(len(body), lambda: parse(body, rules), exchange.tenant)
    exchange.ignored = request.ignored
    served = api.catalogue.pick(request.model)
    exchange.figures.model = served.model_id
    return Incoming(request, served, request.model or served.model_id, len(body))


@attrs.frozen(kw_only=True)
class IncomingGeneration(Generic[GenerationBody]):
    """A request for tokens that was read, its headers, and its deadline; `named` is as in `Incoming`."""

    request: GenerationBody
    served: Served
    named: str
    size_bytes: int
    headers: GenerationHeaders
    deadline: Deadline

    def with_request(self, request: OtherBody, more_bytes: int = 0) -> IncomingGeneration[OtherBody]:
        """Return the same with another form of the request, whose work grows with `more_bytes` too."""
        return IncomingGeneration(
            request=request,
            served=self.served,
            named=self.named,
            size_bytes=self.size_bytes + more_bytes,
            headers=self.headers,
            deadline=self.deadline,
        )


async def read_generation(
    api: ApiContext, exchange: ApiExchange, parse: Callable[[bytes, BodyRules], GenerationBody]
) -> IncomingGeneration[GenerationBody]:
    """Check the headers, read the body, and pick a model that generates; raises Refusal as well as `read_incoming`'s errors."""
    headers = read_generation_headers(exchange.request.headers, exchange.entry)
    incoming = await read_incoming(api, exchange, parse)
    check_generates(incoming.served)
    headers.check(incoming.request.options.stream)
    deadline = plan_deadline(
        exchange.started_s, headers.deadline_s, incoming.request.options.timeout_s, api.settings.answer_timeout_ms
    )
    return IncomingGeneration(
        request=incoming.request,
        served=incoming.served,
        named=incoming.named,
        size_bytes=incoming.size_bytes,
        headers=headers,
        deadline=deadline,
    )
