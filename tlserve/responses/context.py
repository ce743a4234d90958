"""The items before the input of a request: those of earlier responses, and those that its references name.

Owns the order of the items of a conversation, and the errors of what is not found. Blocks as the store does.

Source: the public reference: `previous_response_id`, and the code of its error; `item_reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tlserve.errors import ClientError
from tlserve.responses.items import Item, response_of
from tlserve.responses.store import KeptResponse

Find = Callable[[str], KeptResponse | None]


def find_items(previous: str, items: Sequence[Item], find: Find) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Return the items of the earlier responses, in order, and `items` without references.

    Raises ClientError for a response or an item that is not kept, or is of another key.
    """
    return earlier_items(previous, find), tuple(_resolved(item, find) for item in items)


def earlier_items(previous: str, find: Find) -> tuple[Item, ...]:
    """Return the items of the response `previous` and of those before it, in order."""
    chain = list(_chain(previous, find))
    return tuple(item for kept in reversed(chain) for item in kept.whole_items)


def _chain(name: str, find: Find) -> Iterator[KeptResponse]:
    seen = set[str]()
    while name and name not in seen:
        kept = find(name)
        if kept is None:
            raise ClientError(
                f"the response {name[:64]!r} is not kept here; send its items in input",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        if kept.is_running:
            status = kept.document["status"]
            raise ClientError(f"the response {name!r} is {status}; wait until it ends", param="previous_response_id")
        yield kept
        seen.add(name)
        name = kept.previous


def _resolved(item: Item, find: Find) -> Item:
    if item["type"] != "item_reference":
        return item
    kept = find(response_of(item["id"]))
    for own in () if kept is None else kept.whole_items:
        if own["id"] == item["id"]:
            return own
    raise ClientError(f"the item {item['id'][:64]!r} is not kept here; send the item itself", param="input")
