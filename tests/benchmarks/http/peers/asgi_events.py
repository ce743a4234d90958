"""The events that the peers send: as many as the request's max_tokens, each ready as bytes, and `[DONE]`.

They have the same fields around one letter as those of tlserve. Building them costs the peers almost nothing: only their way
from bytes to the socket is measured.
"""

import json
from collections.abc import Iterator

BEFORE = (
    b'data: {"id":"chatcmpl-00112233445566778899aabbccddeeff","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"stub","system_fingerprint":"fp_stub","choices":[{"index":0,"delta":{"content":"'
)
AFTER = b'"},"logprobs":null,"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


def events(body: bytes) -> Iterator[bytes]:
    for index in range(json.loads(body)["max_tokens"]):
        yield BEFORE + b"%c" % (ord("a") + index % 26) + AFTER
    yield DONE


async def application(scope, receive, send) -> None:
    """Answer every request with its events, in raw ASGI."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in events(body):
        await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
