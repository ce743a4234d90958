"""The messages between a head and a node, as bytes: one byte of version, then MessagePack.

Owns the form of every message of `tlserve.fleet.link` and of the types in it, to the bit: floats are the 64 bits of
MessagePack, vectors the 32 bits of each number, little-endian. Does not know what carries the bytes and what they cause.

Types whose fields are plain data are written by their fields, so that a new field is on the wire as soon as it is declared.
`VERSION` must change with them, because a node that does not know a field must refuse the message, not skip the field. Only
what the library cannot distinguish by itself has a form of its own here: events (a number for the class), errors and vectors.
Source: the MessagePack specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tlserve import errors, generation
from tlserve.fleet import link

VERSION = 5

T = TypeVar("T")


class WireRefused(link.NodeLost):
    """Bytes that cannot be read: the other side has another version, or does not use this protocol at all."""


_encoder = msgspec.msgpack.Encoder()
_UNREADABLE = (msgspec.MsgspecError, RecursionError)


def write(message: object) -> bytes:
    """Return a message as bytes."""
    return bytes((VERSION,)) + _encoder.encode(message)


def read(data: bytes, kind: type[T]) -> T:
    """Return the message of type `kind` in `data`; raises `WireRefused`."""
    if data[:1] != bytes((VERSION,)):
        raise WireRefused(_other_version(data))
    try:
        return _decoder(kind).decode(memoryview(data)[1:])
    except _UNREADABLE as error:
        raise WireRefused(f"a fleet message cannot be read: {error}") from None


def _other_version(data: bytes) -> str:
    if not data:
        return "a fleet message is empty"
    return f"the other side uses wire format {data[0]}, this side {VERSION}; run the same version of tlserve on both"


_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def _decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    if kind not in _decoders:
        _decoders[kind] = msgspec.msgpack.Decoder(kind)
    return _decoders[kind]


# --- arguments --------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The arguments of `NodeLink.hello`, and of every other call without arguments."""


class Place(msgspec.Struct, array_like=True, frozen=True):
    """The arguments of `NodeLink.place`."""

    key: link.SessionKey
    request: generation.GenerationRequest
    wall_s: float


class Poll(msgspec.Struct, array_like=True, frozen=True):
    """The arguments of `NodeLink.poll`."""

    head: str
    acks: tuple[link.Ack, ...]
    wait_s: float


class Cancel(msgspec.Struct, array_like=True, frozen=True):
    """The arguments of `NodeLink.cancel`."""

    keys: tuple[link.SessionKey, ...]


# --- errors ---------------------------------------------------------------------------------------------------------

_PARAM_CODE, _PARAM, _RETRY = ("param", "code"), ("param",), ("retry_after_s",)

_FIELD_TYPES: Mapping[str, type | UnionType] = {"param": str | None, "code": str | None, "retry_after_s": int}

CARRIED: Mapping[type[errors.TlserveError], tuple[str, ...]] = {
    errors.ClientError: _PARAM_CODE,
    errors.Refusal: _PARAM,
    errors.ContextLengthExceeded: _PARAM,
    errors.ModelNotFound: (),
    errors.KvHandleNotFound: (),
    errors.CancelledById: (),
    errors.Unavailable: _RETRY,
    errors.Overloaded: _RETRY,
    errors.NoCapacity: _RETRY,
    errors.ModelLoading: _RETRY,
    errors.ModelLoadFailed: _RETRY,
    errors.Draining: _RETRY,
    link.NodeLost: _RETRY,
    link.StalePlacement: _RETRY,
    WireRefused: _RETRY,
    link.NoNode: _RETRY,
    errors.DeadlineExceeded: (),
    errors.ServerFault: (),
    errors.GrammarLimitExceeded: (),
    errors.ModelTooLarge: (),
    errors.EngineFailed: (),
    errors.DrainCut: (),
}
"""The errors on the wire, and the fields of each besides its message; any other error is sent as its nearest base."""

_BY_NAME = {kind.__name__: kind for kind in CARRIED}


class Fault(msgspec.Struct, array_like=True, frozen=True):
    """An error: the name of its class, its message, and its other fields."""

    kind: str
    message: str
    fields: dict[str, str | int | None] = {}


def fault_of(error: errors.TlserveError) -> Fault:
    """Return an error as data."""
    kind = next((kind for kind in type(error).__mro__ if kind in CARRIED), errors.ServerFault)
    return Fault(kind.__name__, error.message, {name: getattr(error, name) for name in CARRIED.get(kind, ())})


def _fits(fault: Fault) -> bool:
    """Return whether each field has the type that an error has there."""
    return all(type(value) is int if name in _RETRY else type(value) is not int for name, value in fault.fields.items())


def error_of(fault: Fault) -> errors.TlserveError:
    """Return the error of a fault; raises `WireRefused` for one that is not known here, or has other fields."""
    kind = _BY_NAME.get(fault.kind)
    if kind is None or set(fault.fields) != set(CARRIED[kind]) or not _fits(fault):
        raise WireRefused(f"the node failed with an unknown error, {fault.kind}: {fault.message}")
    for name, value in fault.fields.items():
        if not isinstance(value, _FIELD_TYPES[name]):
            raise WireRefused(f"the node failed with an error whose {name} is of a wrong type: {fault.message}")
    return kind(fault.message, **fault.fields)


# --- answers -----------------------------------------------------------------------------------------------


class Reply(msgspec.Struct, array_like=True, frozen=True):
    """The answer to any call: its result, or its error."""

    result: msgspec.Raw = msgspec.Raw(b"\xc0")
    fault: Fault | None = None


def reply_of(result: object) -> Reply:
    """Return the result of a call in its form on the wire."""
    return Reply(msgspec.Raw(_encoder.encode(result)))


def result_of(reply: Reply, kind: type[T]) -> T:
    """Return the result in a reply; raises the call's error, or `WireRefused`."""
    if reply.fault is not None:
        raise error_of(reply.fault)
    try:
        return _decoder(kind).decode(reply.result)
    except _UNREADABLE as error:
        raise WireRefused(f"a fleet answer cannot be read: {error}") from None


EVENTS: tuple[type[generation.GenerationEvent], ...] = (
    generation.PrefillStarted,
    generation.PromptLogprobs,
    generation.Progress,
    generation.TokenEvent,
)
"""The classes of events; the position of each is its number on the wire."""

_CLASSES = dict(enumerate(EVENTS))
_NUMBERS = {kind: number for number, kind in _CLASSES.items()}


class Events(msgspec.Struct, array_like=True, frozen=True):
    """A `SessionEvents`: each event with the number of its class."""

    key: link.SessionKey
    start: int
    events: list[tuple[int, msgspec.Raw]]
    error: Fault | None


class PollAnswer(msgspec.Struct, array_like=True, frozen=True):
    """A `PollReply`."""

    incarnation: str
    sessions: list[Events]
    unknown: tuple[link.SessionKey, ...]
    statistics: generation.EngineStatistics
    draining: bool


def poll_answer_of(reply: link.PollReply) -> tuple[object, ...]:
    """Return a poll's reply in the form of a `PollAnswer`, ready to be written."""
    sessions = [_events_of(session) for session in reply.sessions]
    return (reply.incarnation, sessions, reply.unknown, reply.statistics, reply.draining)


def _events_of(session: link.SessionEvents) -> tuple[object, ...]:
    fault = None if session.error is None else fault_of(session.error)
    return (session.key, session.start, [(_NUMBERS[type(event)], event) for event in session.events], fault)


def poll_reply_of(answer: PollAnswer) -> link.PollReply:
    """Return the reply of an answer; raises `WireRefused`."""
    try:
        sessions = tuple(_session_of(events) for events in answer.sessions)
    except (*_UNREADABLE, KeyError) as error:
        raise WireRefused(f"a fleet event cannot be read: {error}") from None
    return link.PollReply(
        incarnation=answer.incarnation,
        sessions=sessions,
        unknown=answer.unknown,
        statistics=answer.statistics,
        draining=answer.draining,
    )


def _session_of(events: Events) -> link.SessionEvents:
    return link.SessionEvents(
        key=events.key,
        start=events.start,
        events=tuple(_decoder(_CLASSES[number]).decode(event) for number, event in events.events),
        error=None if events.error is None else error_of(events.error),
    )


def vectors_to_bytes(vectors: tuple[NDArray[np.float32], ...]) -> list[bytes]:
    """Return each vector's numbers, 4 bytes each."""
    return [vector.astype("<f4", copy=False).tobytes() for vector in vectors]


def vectors_of(data: list[bytes]) -> tuple[NDArray[np.float32], ...]:
    """Return the vectors of the bytes: (n,) float32; raises `WireRefused`."""
    if any(len(vector) % 4 for vector in data):
        raise WireRefused("the length of a vector is not a multiple of 4 bytes")
    return tuple(np.frombuffer(vector, "<f4").astype(np.float32) for vector in data)
