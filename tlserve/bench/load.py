"""A closed loop: some clients, each sending its next request when its last one has ended.

Owns the clients and their clocks. Refuses to know what the figures are compared with. Times are of this process's clock, from
before the connection is opened to the arrival of the bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import attrs
import trio

from tlserve.config.addresses import Address
from tlserve.errors import ServerFault
from tlserve.http.client import AnswerStream, connect

CHAT = "/v1/chat/completions"
PREFIX = b"data: "


@attrs.frozen(kw_only=True)
class Sample:
    """One request as its client met it; times in seconds."""

    prompt_tokens: int
    output_tokens: int
    started_s: float
    first_token_s: float
    last_token_s: float

    @property
    def time_to_first_token_s(self) -> float:
        """Seconds from the start to the first piece of text."""
        return self.first_token_s - self.started_s

    @property
    def time_per_token_s(self) -> float:
        """Seconds between tokens after the first."""
        return (self.last_token_s - self.first_token_s) / max(1, self.output_tokens - 1)


async def run_clients(
    address: Address, bodies: Iterator[bytes], *, clients: int, requests: int, done: Callable[[], None]
) -> list[Sample]:
    """Send `requests` requests from `clients` clients and return one sample each, in the order of their ends."""
    samples: list[Sample] = []
    left = iter(range(requests))

    async def client() -> None:
        for _ in left:
            samples.append(await _ask(address, next(bodies)))
            done()

    async with trio.open_nursery() as nursery:
        for _ in range(min(clients, requests)):
            nursery.start_soon(client)
    return samples


async def _ask(address: Address, body: bytes) -> Sample:
    started_s = time.perf_counter()
    async with await connect(address.host, address.port) as client:
        answer = await client.open("POST", CHAT, (("Content-Type", "application/json"),), body)
        if answer.status != 200:
            raise ServerFault(f"the server answered {answer.status}: {(await answer.read())[:300].decode()}")
        return await _read(answer, started_s)


async def _read(answer: AnswerStream, started_s: float) -> Sample:
    times_s: list[float] = []
    usage: dict[str, int] = {}
    async for line in answer.lines():
        if not line.startswith(PREFIX) or line == PREFIX + b"[DONE]":
            continue
        chunk = json.loads(line.removeprefix(PREFIX))
        if "error" in chunk:
            raise ServerFault(f"the server ended a stream with an error: {chunk['error'].get('message')}")
        usage = chunk.get("usage") or usage
        if any(choice["delta"].get("content") for choice in chunk["choices"]):
            times_s.append(time.perf_counter())
    if not times_s or not usage:
        raise ServerFault("the server ended a stream without text or without usage")
    return Sample(
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        started_s=started_s,
        first_token_s=times_s[0],
        last_token_s=times_s[-1],
    )
