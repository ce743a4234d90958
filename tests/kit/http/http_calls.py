"""Plain calls to a server over a real socket, by the standard library's client: independent of our own HTTP code."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

TIMEOUT_S = 30.0


@attrs.frozen
class Reply:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Return the stream's payloads, decoded; the last is the string "[DONE]"."""
        return parse_events(self.body)


def call(
    address: str,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Reply:
    """Send one request on a new connection and read the whole answer; `body` is JSON unless it is bytes."""
    with opened(address, method, path, body, headers, timeout_s=timeout_s) as response:
        return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def post(address: str, path: str, body: object, **headers: str) -> Reply:
    """POST `body`; `headers` by their names with underscores."""
    return call(address, "POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})


def get(address: str, path: str, **headers: str) -> Reply:
    """GET `path`."""
    return call(address, "GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})


@contextmanager
def opened(
    address: str,
    method: str,
    path: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[http.client.HTTPResponse]:
    """Send a request and give the response as it arrives; leaving the block closes the connection."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request(method, path, _encoded(body), dict(headers or {}))
        yield connection.getresponse()
    finally:
        connection.close()


def _encoded(body: object) -> bytes | None:
    return body if body is None or isinstance(body, bytes) else json.dumps(body).encode()


def parse_events(body: bytes) -> list[Any]:
    """Read a whole event stream strictly: every event is one `data:` line and a blank line; comments are dropped."""
    text = body.decode()
    assert text.endswith("\n\n"), text[-80:]
    blocks = text[:-2].split("\n\n")
    return [_payload(block) for block in blocks if not block.startswith(":")]


def _payload(block: str) -> Any:
    assert block.startswith("data: "), block
    assert "\n" not in block, block
    data = block.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat with one user turn, greedy unless `fields` say otherwise."""
    return {"model": "succ", "messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def content_of(events: list[Any]) -> str:
    """Join the deltas of a chat stream."""
    chunks = [event for event in events if event != "[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
