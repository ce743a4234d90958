"""A node as a head reaches it over HTTP: kept connections, a key, and one error for every failure on the way.

Owns the connections to one node. A poll that waits holds one of them, so that no other call waits behind it. A closed
connection is noticed at once; a silent peer is noticed by the deadline of the call. Does not know what the calls mean. The key
appears in no representation and no error.
"""

from __future__ import annotations

import ssl

from tlserve.fleet.http.node_routes import CONTENT_TYPE, PREFIX
from tlserve.fleet.link import NodeLost
from tlserve.fleet.remote_node import USUAL_TIMES, CallTimes, RemoteNode
from tlserve.http.client.connection import HttpResponse, ResponseBroken
from tlserve.http.client.origin import OpenStream, parse_origin, stream_opener
from tlserve.http.client.pool import ClientPool

_REMEDIES = {
    401: "it requires another key: set fleet.internal_key of the head to that of the node",
    404: "it has no fleet routes: set fleet.internal = true there",
}
_QUOTED_BYTES = 300


class HttpLink(RemoteNode):
    """The node at `url` ("http://10.0.0.7:8000"), which is also its name; `aclose` closes the idle connections.

    `tls`: the trusted authorities, for an https address; `server_name`: the name that its certificate must have, if not the host
    of `url`. `open_stream`: how to connect, instead of TCP to `url`. Raises `ValueError` for an invalid address.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        times: CallTimes = USUAL_TIMES,
        open_stream: OpenStream | None = None,
    ) -> None:
        origin = parse_origin(url)
        super().__init__(origin.url, self._post, times)
        self._headers = (CONTENT_TYPE, *((("Authorization", f"Bearer {key}"),) if key else ()))
        self._pool = ClientPool(open_stream or stream_opener(origin, tls, server_name), server_name or origin.authority)

    async def aclose(self) -> None:
        """Close the idle connections, and the others when their calls end."""
        await self._pool.aclose()

    async def _post(self, name: str, body: bytes) -> bytes:
        try:
            answer = await self._pool.request("POST", f"{PREFIX}/{name}", self._headers, body)
        except (OSError, ResponseBroken) as error:
            raise NodeLost(f"the node {self.node} cannot be reached: {error}") from None
        if answer.status != 200:
            raise NodeLost(f"the node {self.node} refused {name!r}: {_said(answer)}")
        return answer.body


def _said(answer: HttpResponse) -> str:
    quoted = answer.body[:_QUOTED_BYTES].decode("utf-8", "replace")
    return f"{answer.status}, {_REMEDIES.get(answer.status, quoted)}"
