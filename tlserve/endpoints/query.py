"""The query of a request: its parameters, and numbers among them.

Owns the limit of their count, and the rule that unknown ones are ignored and named. Does not know which route takes which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

from tlserve.endpoints.exchange import ApiExchange
from tlserve.errors import ClientError

MOST_PARAMETERS = 100


def read_query(exchange: ApiExchange, names: Sequence[str], inert: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the parameters of the query; those that are in neither list are ignored, and named in the answer.

    Raises ClientError for more than `MOST_PARAMETERS`.
    """
    try:
        given = dict(parse_qsl(exchange.request.query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS))
    except ValueError:
        raise ClientError(f"the query has more than {MOST_PARAMETERS} parameters; send fewer") from None
    exchange.ignored = tuple(name for name in given if name not in (*names, *inert))
    return given


def read_number(given: Mapping[str, str], name: str, usual: int, *, least: int = 0, most: int) -> int:
    """Return a whole number from `least` to `most`, `usual` without one; raises ClientError for another value."""
    text = given.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit() and len(text) < 16 and least <= int(text) <= most):
        raise ClientError(f"{name} is {text[:20]!r}; send a number from {least} to {most}", param=name)
    return int(text)
