"""How a server ends: serving -> draining -> ended, or cut at the deadline or by a second signal.

Owns the table of phases (pure), and `Drain`, which follows it: stop accepting requests, wait for the open ones up to a deadline,
then cut those that are left. Does not know what a request is: four callables are its arguments. Every wait has an end. Source:
Kubernetes' pod termination.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from tlserve.errors import ServerFault

CUT_GRACE_S = 5.0
"""The time for cut requests to send their error events, in seconds."""

EXIT_DRAINED = 0
EXIT_CUT = 3

_log = logging.getLogger("tlserve.lifecycle")


class Phase(enum.Enum):
    """The phases in the life of a server."""

    SERVING = "serving"
    DRAINING = "draining"
    CUT = "cut"
    ENDED = "ended"


class Happening(enum.Enum):
    """The events that move a server from one phase to the next."""

    STOP_ASKED = "stop asked"
    DEADLINE_PASSED = "deadline passed"
    ALL_ENDED = "all ended"


@attrs.frozen
class DrainState:
    """A phase, and whether any request was cut before."""

    phase: Phase = Phase.SERVING
    was_cut: bool = False

    @property
    def exit_code(self) -> int:
        """Return the exit code of a server that ends in this state."""
        return EXIT_CUT if self.was_cut else EXIT_DRAINED


_NEXT = {
    (Phase.SERVING, Happening.STOP_ASKED): Phase.DRAINING,
    (Phase.DRAINING, Happening.STOP_ASKED): Phase.CUT,
    (Phase.DRAINING, Happening.DEADLINE_PASSED): Phase.CUT,
    (Phase.DRAINING, Happening.ALL_ENDED): Phase.ENDED,
    (Phase.CUT, Happening.STOP_ASKED): Phase.CUT,
    (Phase.CUT, Happening.DEADLINE_PASSED): Phase.CUT,
    (Phase.CUT, Happening.ALL_ENDED): Phase.ENDED,
    (Phase.ENDED, Happening.STOP_ASKED): Phase.ENDED,
}


def next_state(state: DrainState, happening: Happening) -> DrainState:
    """Return the state after `happening`; raises `ServerFault` if it cannot happen in this phase."""
    phase = _NEXT.get((state.phase, happening))
    if phase is None:
        raise ServerFault(f"{happening.value} cannot happen to a server that is {state.phase.value}")
    return DrainState(phase, state.was_cut or phase is Phase.CUT)


class Drain:
    """The end of one server. `timeout_s`: the time that open requests have after the first `stop`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._state = DrainState()
        self._asked = trio.Event()
        self._patience = trio.CancelScope()

    @property
    def phase(self) -> Phase:
        """Return the phase of the server."""
        return self._state.phase

    def stop(self) -> None:
        """Start the drain; a second call cuts the open requests; a call after the end does nothing."""
        self._state = next_state(self._state, Happening.STOP_ASKED)
        self._asked.set()
        if self._state.phase is Phase.CUT:
            self._patience.cancel()

    async def wait_asked(self) -> None:
        """Wait until the drain has begun."""
        await self._asked.wait()

    async def run(
        self,
        *,
        close: Callable[[], Awaitable[None]],
        open_requests: Callable[[], int],
        wait_ended: Callable[[], Awaitable[None]],
        cut: Callable[[], None],
    ) -> int:
        """Wait for `stop`, drain, and return the exit code: 0, or 3 if a request was cut.

        `close` ends the listeners and refuses new requests; `wait_ended` returns when no request is open, and can be
        cancelled; `cut` ends each open request with an error.
        """
        await self._asked.wait()
        await close()
        if open_requests():
            await self._wait_or_cut(open_requests, wait_ended, cut)
            self._state = next_state(self._state, Happening.ALL_ENDED)
        else:  # no request is open, so none is cut, even if the stop was requested twice
            self._state = DrainState(Phase.ENDED)
        return self._state.exit_code

    async def _wait_or_cut(
        self, open_requests: Callable[[], int], wait_ended: Callable[[], Awaitable[None]], cut: Callable[[], None]
    ) -> None:
        _log.info("open requests: %d; they get %.1f s", open_requests(), self._timeout_s)
        self._patience.deadline = trio.current_time() + self._timeout_s
        with self._patience:
            await wait_ended()
            return
        self._state = next_state(self._state, Happening.DEADLINE_PASSED)
        _log.warning("open requests: %d; they are cut", open_requests())
        cut()
        with trio.move_on_after(CUT_GRACE_S):
            await wait_ended()
