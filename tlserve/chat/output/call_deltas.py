"""The pieces of calls -> deltas of calls, each with its call's index; the first delta of a call has its id and name."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import attrs

from tlserve.chat.dialect import CallArguments, CallClosed, CallOpened, Piece
from tlserve.chat.output.deltas import CallDelta


def new_call_id() -> str:
    """Return a new id for a call: 120 random bits, so that no two calls share one."""
    return "call_" + secrets.token_hex(15)


class CallNumbers:
    """Gives each call of an answer its index and id; `closed` is the number of complete calls."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.closed = 0
        self._new_id = new_id
        self._opened = 0

    def number(self, pieces: list[Piece]) -> tuple[CallDelta, ...]:
        """Return one delta for each call to which `pieces` add something."""
        deltas: dict[int, CallDelta] = {}
        for piece in pieces:
            if isinstance(piece, CallOpened):
                deltas[self._opened] = CallDelta(self._opened, id=self._new_id(), name=piece.name)
                self._opened += 1
            elif isinstance(piece, CallArguments):
                index = self._opened - 1
                deltas[index] = _extended(deltas.get(index), index, piece.text)
            elif isinstance(piece, CallClosed):
                self.closed += 1
        return tuple(deltas.values())


def _extended(delta: CallDelta | None, index: int, arguments: str) -> CallDelta:
    return CallDelta(index, arguments) if delta is None else attrs.evolve(delta, arguments=delta.arguments + arguments)
