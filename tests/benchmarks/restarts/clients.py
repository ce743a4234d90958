"""Clients of a server that is restarted: each answer must be complete and the same as before.

Owns the requests, and the kinds of what can go wrong. Does not know when the server is restarted.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio

from tlserve.bench.target import TargetServer
from tlserve.errors import ServerFault
from tlserve.http.client.connection import HttpClient, ResponseBroken, ResponseStream

CHAT = "/chat/completions"
KEPT_PAUSE_S = 0.05
PROBE_EVERY_S = 0.05
ANSWER_LIMIT_S = 60.0
PROMPTS = tuple(chr(letter) * (letter - 90) for letter in range(ord("a"), ord("i")))


@attrs.define(eq=False)
class Tally:
    """The outcomes so far. `faults`: requests without their answer, by kind."""

    streams: int = 0
    kept: int = 0
    sent_again: int = 0
    probes: int = 0
    longest_wait_s: float = 0.0
    faults: Counter[str] = attrs.field(factory=Counter)


@attrs.frozen
class Clients:
    """Clients of `target` that ask the same few questions until they are cancelled."""

    target: TargetServer
    health: TargetServer
    output_tokens: int
    tally: Tally
    _expected: dict[str, str] = attrs.field(factory=dict)

    async def learn(self) -> None:
        """Ask every question once, before anything is restarted; raises `ServerFault` if one has no answer."""
        for prompt in PROMPTS:
            async with await self.target.connect() as client:
                self._expected[prompt] = await _read(await self._ask(client, prompt))

    async def stream(self, number: int) -> None:
        """Read streams, each over a connection of its own."""
        for prompt in _for_ever(number):
            if await self._counted(lambda prompt=prompt: self._one_stream(prompt)):  # type: ignore[misc]
                self.tally.streams += 1

    async def keep(self, number: int) -> None:
        """Send requests over a connection that is kept, with a short rest between them."""
        prompts = _for_ever(number)
        while True:
            await self._counted(lambda: self._use_connection(prompts), math.inf)

    async def _use_connection(self, prompts: Iterator[str]) -> None:
        """Send requests over one connection, until it takes no more."""
        async with await self.target.connect() as client:
            await self._check(await self._ask(client, prompt := next(prompts)), prompt)
            while client.is_reusable:
                self.tally.kept += 1
                await trio.sleep(KEPT_PAUSE_S)
                try:
                    answer = await self._ask(client, prompt := next(prompts))
                except ResponseBroken:  # closed while it was idle, which every client must expect
                    self.tally.sent_again += 1
                    return
                await self._check(answer, prompt)
            self.tally.kept += 1

    async def probe(self) -> None:
        """Ask the health port whether the server is ready."""
        while True:
            if await self._counted(self._one_probe):
                self.tally.probes += 1
            await trio.sleep(PROBE_EVERY_S)

    async def _one_stream(self, prompt: str) -> None:
        async with await self.target.connect() as client:
            started_s = trio.current_time()
            answer = await self._ask(client, prompt)
            self.tally.longest_wait_s = max(self.tally.longest_wait_s, trio.current_time() - started_s)
            await self._check(answer, prompt)

    async def _one_probe(self) -> None:
        async with await self.health.connect() as client:
            status = (await client.request("GET", "/readyz")).status
            if status != 200:
                raise ServerFault(f"/readyz {status}")

    async def _ask(self, client: HttpClient, prompt: str) -> ResponseStream:
        body = {
            "model": self.target.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "stream": True,
        }
        return await client.open("POST", self.target.path(CHAT), self.target.headers, json.dumps(body).encode())

    async def _check(self, answer: ResponseStream, prompt: str) -> None:
        if await _read(answer) != self._expected[prompt]:
            raise ServerFault("another text")

    async def _counted(self, send: Callable[[], Awaitable[None]], limit_s: float = ANSWER_LIMIT_S) -> bool:
        kind = "no answer in time"
        with trio.move_on_after(limit_s):
            try:
                await send()
                return True
            except OSError as error:
                kind = f"not connected: {type(error.__cause__ or error).__name__}"
            except ResponseBroken as error:
                kind = f"cut: {error}"
            except ServerFault as error:
                kind = error.message
        self.tally.faults[kind] += 1
        return False


async def _read(answer: ResponseStream) -> str:
    """Return the text of a whole stream; raises `ServerFault` and `ResponseBroken`."""
    if answer.status != 200:
        raise ServerFault(f"status {answer.status}")
    pieces, done = [], False
    async for line in answer.lines():
        data = line.removeprefix(b"data: ")
        if not line.startswith(b"data: "):
            continue
        if data == b"[DONE]":
            done = True
            continue
        chunk = json.loads(data)
        if "error" in chunk:
            raise ServerFault("error event")
        pieces += [choice["delta"].get("content") or "" for choice in chunk["choices"]]
    if not done:
        raise ServerFault("cut: no [DONE]")
    return "".join(pieces)


def _for_ever(number: int) -> Iterator[str]:
    while True:
        yield PROMPTS[number % len(PROMPTS)]
        number += 1
