"""The engine's own thread: take commands, step, report; until a `Stop`.

Owns the loop and the map from tickets (the event loop's names of requests) to the engine's keys. Does not know who sends the
commands and who gets the reports. Runs inside `trio.to_thread`, and checks for cancellation once per turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import attrs
import trio.from_thread

from tlserve.engine.events import EmbeddingReady, EngineEvent, Failed
from tlserve.errors import TlserveError
from tlserve.generation import (
    EngineStatistics,
    GenerationEvent,
    GenerationRequest,
    Progress,
    TokenConstraint,
    is_last_event,
)
from tlserve.worker.mailbox import Mailbox

Ticket = int


@attrs.frozen
class Generate:
    """Start a generation, under the constraint of its grammar."""

    ticket: Ticket
    request: GenerationRequest
    constraint: TokenConstraint | None = None


@attrs.frozen
class Embed:
    """Start one embedding sequence."""

    ticket: Ticket
    tokens: tuple[int, ...]
    priority: int


@attrs.frozen
class Abort:
    """Forget a request; its blocks are free before the next step. Unknown tickets are ignored: the request has ended."""

    ticket: Ticket


@attrs.frozen
class Stop:
    """Leave the loop."""


Command = Generate | Embed | Abort | Stop


@attrs.frozen(eq=False)
class Ended:
    """The end of a request outside the engine: the engine refused it, a drain cut it, or the engine failed."""

    error: TlserveError


Outcome = GenerationEvent | EmbeddingReady | Failed | Ended
Batch = tuple[Outcome, ...]


@attrs.frozen(eq=False)
class Report:
    """The results of one turn of the loop: events by ticket, in order, and the statistics after it."""

    outcomes: Sequence[tuple[Ticket, Batch]]
    statistics: EngineStatistics


class SteppingEngine(Protocol):
    """What the loop needs of an engine; `tlserve.engine.engine.Engine` is one."""

    @property
    def has_work(self) -> bool:
        """Whether a step would have anything to do."""

    def add_request(self, request: GenerationRequest, constraint: TokenConstraint | None = None) -> int:
        """Queue a generation and return its key."""

    def add_embedding(self, tokens: Sequence[int], priority: int = 0) -> int:
        """Queue an embedding sequence and return its key."""

    def abort(self, key: int) -> None:
        """End a request, whatever its state."""

    def step(self, announce: Callable[[list[EngineEvent]], None]) -> Sequence[EngineEvent]:
        """Run one step and return its events; `announce` gets those of requests that begin in it, before it is computed."""

    def statistics(self) -> EngineStatistics:
        """Return the gauges and counters."""


class EngineThread:
    """The loop; `run` is called on the engine's thread, and everything else happens inside it."""

    def __init__(self, engine: SteppingEngine, mailbox: Mailbox[Command, Report]) -> None:
        self._engine = engine
        self._mailbox = mailbox
        self._keys: dict[Ticket, int] = {}
        self._tickets: dict[int, Ticket] = {}
        self._stopped = False

    def run(self) -> None:
        """Loop until `Stop` or cancellation; raises what the engine raises."""
        while True:
            commands = self._mailbox.take(wait=not self._engine.has_work)
            trio.from_thread.check_cancelled()
            report = self.turn(commands)
            if report is None:
                return
            self._mailbox.post(report)

    def turn(self, commands: Sequence[Command]) -> Report | None:
        """Apply `commands`, run one step if there is work, and return what happened; None after `Stop`."""
        refused = self._apply_all(commands)
        if self._stopped:
            return None
        outcomes = self._outcomes(self._engine.step(self._announce)) if self._engine.has_work else []
        return Report(refused + outcomes, self._engine.statistics())

    def _announce(self, events: Sequence[EngineEvent]) -> None:
        """Report that requests have left the queue before the step is computed: a step may take seconds."""
        self._mailbox.post(Report(self._outcomes(events), self._engine.statistics()))

    def _apply_all(self, commands: Sequence[Command]) -> list[tuple[Ticket, Batch]]:
        refused: list[tuple[Ticket, Batch]] = []
        for command in commands:
            try:
                self._apply(command)
            except TlserveError as error:
                if isinstance(command, Generate | Embed):
                    refused.append((command.ticket, (Ended(error),)))
        return refused

    def _apply(self, command: Command) -> None:
        match command:
            case Generate(ticket, request, constraint):
                self._bind(ticket, self._engine.add_request(request, constraint))
            case Embed(ticket, tokens, priority):
                self._bind(ticket, self._engine.add_embedding(tokens, priority))
            case Abort(ticket):
                self._abort(ticket)
            case Stop():
                self._stopped = True

    def _bind(self, ticket: Ticket, key: int) -> None:
        self._keys[ticket] = key
        self._tickets[key] = ticket

    def _unbind(self, ticket: Ticket) -> int | None:
        key = self._keys.pop(ticket, None)
        if key is not None:
            del self._tickets[key]
        return key

    def _abort(self, ticket: Ticket) -> None:
        key = self._unbind(ticket)
        if key is not None:
            self._engine.abort(key)

    def _outcomes(self, events: Sequence[EngineEvent]) -> list[tuple[Ticket, Batch]]:
        by_ticket: dict[Ticket, list[Outcome]] = {}
        for event in events:
            ticket = self._tickets[event.key]
            by_ticket.setdefault(ticket, []).append(event.what)
            if is_last(event.what):
                self._unbind(ticket)
        return [(ticket, tuple(outcomes)) for ticket, outcomes in by_ticket.items()]


def is_progress(outcomes: Sequence[Outcome]) -> bool:
    """Return whether `outcomes` are progress events only."""
    return all(isinstance(outcome, Progress) for outcome in outcomes)


def is_last(outcome: Outcome) -> bool:
    """Return whether `outcome` is the last of its request."""
    return isinstance(outcome, EmbeddingReady | Failed | Ended) or is_last_event(outcome)
