"""Progress events of requests before their first token, for the requests that asked for them.

Owns when there is something new to report: only a change, once a step. Does not know the order of the queue (scheduler).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tlserve.engine.events import EngineEvent
from tlserve.engine.sequence import EngineSequence
from tlserve.generation import Progress


def queue_progress(waiting: Sequence[EngineSequence]) -> Iterator[EngineEvent]:
    """Report to each waiting request how many requests are ahead of it."""
    for ahead, sequence in enumerate(waiting):
        if _asked_for(sequence):
            yield from _report(sequence, Progress(ahead=ahead))


def prefill_progress(sequence: EngineSequence) -> Iterator[EngineEvent]:
    """Report how much of the prompt has been computed."""
    if _asked_for(sequence):
        yield from _report(sequence, Progress(done=min(sequence.computed, sequence.prompt_tokens)))


def _asked_for(sequence: EngineSequence) -> bool:
    return sequence.request is not None and sequence.request.progress and not sequence.drew


def _report(sequence: EngineSequence, progress: Progress) -> Iterator[EngineEvent]:
    if progress != sequence.reported:
        sequence.reported = progress
        yield EngineEvent(sequence.key, progress)
