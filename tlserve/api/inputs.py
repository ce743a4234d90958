"""The input of a request: one text or token ids, or a list of these; and the request for their vectors.

Owns the four forms of `prompt` and `input`, and the place of each item in errors ("input[3]"). Does not know vocabularies and
contexts: the endpoints check the limits that depend on a model.

Source: the public API reference, `prompt` of completions and `input` of embeddings.
"""

from __future__ import annotations

from typing import Any

import attrs

from tlserve.errors import ClientError

MAX_INPUTS = 2048


@attrs.frozen
class Input:
    """One text, or token ids that are used unchanged; `place` names it in errors."""

    content: str | tuple[int, ...]
    place: str


@attrs.frozen(kw_only=True)
class EmbeddingsRequest:
    """Texts or token ids to turn into vectors. `as_base64`: the vectors are sent in that form.

    `input_type` ("query" or "document") or `prompt_name` selects one of the model's prompts; both empty: its default one.
    `keep_alive_s`: how long the model stays in memory afterwards; None if the request does not say.
    """

    model: str
    inputs: tuple[Input, ...]
    as_base64: bool = False
    dimensions: int | None = None
    input_type: str = ""
    prompt_name: str = ""
    timeout_s: float | None = None
    keep_alive_s: float | None = None
    ignored: tuple[str, ...] = ()


def read_inputs(given: str | list[Any], field: str) -> tuple[Input, ...]:
    """Return the inputs in order, none of them empty; raises ClientError whose `param` is the place."""
    single = isinstance(given, str) or _is_ids(given)
    inputs = (_input(given, field),) if single else _read_list(given, field)
    empty = next((item for item in inputs if not item.content), None)
    if empty is not None:
        raise ClientError(f"{empty.place} is empty; send some text, or at least one token id", param=empty.place)
    return inputs


def _is_ids(given: str | list[Any]) -> bool:
    return bool(given) and all(isinstance(item, int) for item in given)


def _read_list(given: str | list[Any], field: str) -> tuple[Input, ...]:
    if not given:
        raise ClientError(f"{field} is an empty list; send at least one text", param=field)
    if len({type(item) for item in given}) > 1:
        raise ClientError(f"{field} mixes strings, token ids and lists; send one kind", param=field)
    if len(given) > MAX_INPUTS:
        raise ClientError(f"{field} has {len(given)} items; send at most {MAX_INPUTS} in one request", param=field)
    return tuple(_input(item, f"{field}[{index}]") for index, item in enumerate(given))


def _input(given: str | list[int], place: str) -> Input:
    return Input(given if isinstance(given, str) else tuple(given), place)
