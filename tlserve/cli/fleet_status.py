"""`tlserve fleet status`: the nodes of a head, as a table or as JSON.

Owns the request to the head's health port, and the columns. The states are those that the head reports.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio
from rich import box
from rich.console import Console
from rich.table import Table

from tlserve.config.addresses import parse_address
from tlserve.errors import OperatorError
from tlserve.http.client.connection import ResponseBroken, connect

ANSWER_LIMIT_S = 5.0

WIDTH = 160
"""Characters of a line if standard output is not a terminal."""


def _load(node: Mapping[str, Any]) -> str:
    return f"{node['running']} of {node['slots'] or '?'} + {node['waiting']}"


COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "node": lambda node: node["node"],
    "state": lambda node: node["state"],
    "model": lambda node: node.get("model"),
    "numerics": lambda node: node.get("numerics"),
    "context": lambda node: node["context_tokens"],
    "running + waiting": _load,
    "version": lambda node: node.get("version"),
}

NOTHING_READY = 11


def show_status(health_address: str, *, as_json: bool) -> int:
    """Print the nodes of the head with the health port `health_address`; return 0 if one of them is ready.

    Raises `OperatorError` if no head answers there.
    """
    nodes = trio.run(ask_nodes, health_address)
    if as_json:
        print(json.dumps(nodes, indent=2))
    else:
        print_nodes(nodes)
    return 0 if any(node["state"] == "ready" for node in nodes) else NOTHING_READY


def print_nodes(nodes: Sequence[Mapping[str, Any]]) -> None:
    """Print a row for each node."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for node in nodes:
        cells = (of(node) for of in COLUMNS.values())
        table.add_row(*("-" if cell is None else str(cell) for cell in cells))
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table)


async def ask_nodes(health_address: str) -> list[dict[str, Any]]:
    """Return what the head reports about each node."""
    address = parse_address(health_address)
    try:
        with trio.fail_after(ANSWER_LIMIT_S):
            async with await connect(address.host, address.port) as client:
                answer = await client.request("GET", "/healthz")
    except (OSError, ResponseBroken, trio.TooSlowError) as error:
        raise OperatorError(
            f"no head answers at {health_address}: {error or type(error).__name__}; --health-port sets its health port"
        ) from None
    nodes = _fleet_of(answer.body)
    if not isinstance(nodes, list):
        raise OperatorError(f"the server at {health_address} is not a fleet head, or is still starting")
    return nodes


def _fleet_of(body: bytes) -> object:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document.get("fleet") if isinstance(document, dict) else None
