"""The nodes that the settings name: always the same, whether they answer or not.

Owns their links. Does not know whether a node answers: the head finds out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

import trio

from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.link import NodeChange, NodeUp


class StaticDirectory:
    """The nodes at `urls`; a node's name is its address. `make_link` makes the link of one."""

    def __init__(self, urls: Iterable[str], make_link: Callable[[str], HttpLink]) -> None:
        """Raise `ValueError` for an invalid address."""
        self._links = [make_link(url) for url in dict.fromkeys(urls)]

    async def changes(self) -> AsyncIterator[NodeChange]:
        """Yield every node once, and then wait forever."""
        for link in self._links:
            yield NodeUp(link.node, link)
        await trio.sleep_forever()

    async def aclose(self) -> None:
        """Close the links."""
        for link in self._links:
            await link.aclose()
