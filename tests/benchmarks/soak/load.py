"""A mixed load with faults: clients that behave, and clients that leave, write garbage, read slowly, or send hostile schemas.

Owns the kinds of clients, drawn from a seed, and what counts as a fault of the server. Does not know how long it runs.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs
import trio

from tests.kit.chat.hostile_schemas import KINDS
from tlserve.bench.target import TargetServer
from tlserve.http.client.connection import HttpClient, HttpResponse, ResponseBroken

CHAT, TOKENIZE, EMBEDDINGS = "/chat/completions", "/tokenize", "/embeddings"
VISIT_LIMIT_S = 60.0
_SLOW_READS, _SLOW_READ_S = 20, 0.1
_WORDS = ("alpha", "beta", "gamma", "delta", "omega")


@attrs.define(eq=False)
class SoakTally:
    """Visits by kind and outcome, and what the server did wrong."""

    outcomes: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    wrong: Counter[str] = attrs.field(factory=Counter)


@attrs.frozen
class Visitors:
    """Visitors of `target`, each of a kind drawn from a seed."""

    target: TargetServer
    tally: SoakTally

    async def visit(self, chance: random.Random) -> None:
        """Make one visit, and count how it ended."""
        name = chance.choice(sorted(_VISITS))
        outcome = "no answer in time"
        with trio.move_on_after(VISIT_LIMIT_S):
            try:
                outcome = await _VISITS[name](self, chance)
            except OSError as error:
                outcome = f"not connected: {type(error.__cause__ or error).__name__}"
            except (ResponseBroken, trio.BrokenResourceError):
                outcome = "the server closed the connection"
        self.tally.outcomes[name, outcome] += 1
        if outcome == "no answer in time" or outcome.startswith(("not connected", "status 500", "another")):
            self.tally.wrong[f"{name}: {outcome}"] += 1

    # --- visits

    async def behave(self, chance: random.Random) -> str:
        """Read a whole answer, whose text is known: the built-in model continues with the next byte."""
        first, count = chance.randrange(33, 60), chance.randrange(1, 60)
        body = _chat(chr(first), max_tokens=count, stream=chance.random() < 0.5)
        answer = await self._ask(CHAT, body)
        if answer.status != 200:
            return f"status {answer.status}"
        return "answered" if _text(answer) == _next_bytes(first, count) else "another text"

    async def leave(self, chance: random.Random) -> str:
        """Leave after some bytes of the answer."""
        async with await self.target.connect() as client:
            answer = await client.open("POST", *self._posted(CHAT, _chat("a", max_tokens=2000, stream=True)))
            for _ in range(chance.randrange(4)):
                await answer.receive()
            return f"left a {answer.status}"

    async def write_garbage(self, chance: random.Random) -> str:
        """Send bytes that cannot be a request."""
        beginning = chance.choice((b"", b"POST /v1/chat/completions HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: \xff\r\n"))
        async with await self.target.connect() as client:
            await client.stream.send_all(beginning + chance.randbytes(chance.randrange(1, 2000)) + b"\r\n\r\n")
            with trio.move_on_after(0.5):
                while await client.stream.receive_some():
                    pass
            return "sent"

    async def read_slowly(self, chance: random.Random) -> str:
        """Read an answer in small pieces with rests between them, and leave before its end."""
        async with await self.target.connect() as client:
            answer = await client.open("POST", *self._posted(CHAT, _chat("b", max_tokens=3000, stream=True)))
            for _ in range(chance.randrange(1, _SLOW_READS)):
                await trio.sleep(_SLOW_READ_S)
                await answer.receive()
            return f"left a {answer.status}"

    async def send_hostile_schema(self, chance: random.Random) -> str:
        """Ask for an answer that holds to an expensive schema."""
        kind = chance.choice((*KINDS, _simple))
        schema = {"name": "hostile", "schema": kind(chance)}
        form = {"type": "json_schema", "json_schema": schema}
        return _status(await self._ask(CHAT, _chat("c", max_tokens=4, stop_token_ids=[0], response_format=form)))

    async def abort_upload(self, chance: random.Random) -> str:
        """Announce a body, and leave in its middle."""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.target.origin.authority}\r\nContent-Length: 1000000\r\n\r\n"
        async with await self.target.connect() as client:
            await client.stream.send_all(head.encode() + b'{"model": "' + b"x" * chance.randrange(1, 900_000))
            return "left"

    async def send_wrong_values(self, chance: random.Random) -> str:
        """Send a request that must be refused."""
        wrong: dict[str, Any] = chance.choice(
            ({"top_p": 9}, {"messages": []}, {"max_tokens": -1}, {"model": "nobody"}, {"stop": [""]})
        )
        return _status(await self._ask(CHAT, {**_chat("d"), **wrong}))

    async def ask_for_others(self, chance: random.Random) -> str:
        """Tokenize and embed some text."""
        text = " ".join(chance.choices(_WORDS, k=chance.randrange(1, 300)))
        route, field = chance.choice(((TOKENIZE, "text"), (EMBEDDINGS, "input")))
        return _status(await self._ask(route, {"model": self.target.model, field: text}))

    async def send_much(self, chance: random.Random) -> str:
        """Send a prompt that is longer than the context, or nearly as long."""
        return _status(await self._ask(CHAT, _chat("e" * chance.randrange(3000, 200_000), max_tokens=1)))

    # --- requests

    async def _ask(self, route: str, body: Mapping[str, Any]) -> HttpResponse:
        async with await self.target.connect() as client:
            return await _request(client, *self._posted(route, body))

    def _posted(self, route: str, body: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...], bytes]:
        named = {"model": self.target.model, **body}
        return self.target.path(route), self.target.headers, json.dumps(named).encode()


async def _request(client: HttpClient, path: str, headers: tuple[tuple[str, str], ...], body: bytes) -> HttpResponse:
    return await client.request("POST", path, headers, body)


def _simple(chance: random.Random) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{chance.randrange(9)}": {"type": "integer"}}}


def _chat(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def _status(answer: HttpResponse) -> str:
    return f"status {answer.status}"


def _text(answer: HttpResponse) -> str:
    if not answer.body.startswith(b"data: "):
        return str(json.loads(answer.body)["choices"][0]["message"]["content"])
    lines = (line.removeprefix(b"data: ") for line in answer.body.splitlines() if line.startswith(b"data: {"))
    choices = (choice for line in lines for choice in json.loads(line)["choices"])
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def _next_bytes(first: int, count: int) -> str:
    return "".join(chr(first + index + 1) for index in range(count))


_VISITS: dict[str, Callable[[Visitors, random.Random], Awaitable[str]]] = {
    visit.__name__: visit
    for visit in (
        Visitors.behave,
        Visitors.leave,
        Visitors.write_garbage,
        Visitors.read_slowly,
        Visitors.send_hostile_schema,
        Visitors.abort_upload,
        Visitors.send_wrong_values,
        Visitors.ask_for_others,
        Visitors.send_much,
    )
}
