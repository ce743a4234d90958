"""What the values of a request take in memory while it is in flight: its token ids, and log-probabilities.

Owns the estimates, in bytes of CPython on a 64-bit machine. Does not know the budget: an exchange counts them there. What an
answer takes without log-probabilities is not counted: its blocks in the KV store take far more, and are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tlserve.api.inputs import Input
from tlserve.chat.logprob_entries import LogprobEntry
from tlserve.endpoints.answers.token_reader import AnswerPart
from tlserve.generation import GenerationRequest

ID_BYTES = 40
"""An int object, and its place in a list."""

COPY_BYTES = 16
"""The places of an id in the request to the backend, and in the engine's sequence; the int objects are shared."""

CHOICE_BYTES = 144
"""A token choice with its bytes and its log-probability, and its place in a tuple."""

ENTRY_BYTES = 128
"""The rest of an entry: the object, the tuple of the likeliest tokens, and its place in a tuple."""


def bytes_of_ids(count: int) -> int:
    """Return what `count` token ids take."""
    return ID_BYTES * count


def bytes_of_inputs(inputs: Iterable[Input]) -> int:
    """Return what the token ids of a body take; texts have been counted with the bytes of the body."""
    return bytes_of_ids(sum(len(item.content) for item in inputs if not isinstance(item.content, str)))


def bytes_of_requests(requests: Iterable[GenerationRequest]) -> int:
    """Return what the copies of the prompts take in the backend, and the log-probabilities of the prompts."""
    return sum(len(request.prompt) * _bytes_of_place(request.prompt_logprobs) for request in requests)


def _bytes_of_place(prompt_logprobs: int | None) -> int:
    return COPY_BYTES if prompt_logprobs is None else COPY_BYTES + _bytes_of_entry(prompt_logprobs)


def bytes_of_parts(parts: Iterable[AnswerPart]) -> int:
    """Return what the log-probabilities of the parts take."""
    return sum(_bytes_of_entries(part.delta.logprobs) for part in parts)


def _bytes_of_entries(entries: Sequence[LogprobEntry]) -> int:
    return sum(_bytes_of_entry(len(entry.top)) for entry in entries)


def _bytes_of_entry(top: int) -> int:
    return ENTRY_BYTES + CHOICE_BYTES * (1 + top)
