"""What is told of requests on their way to their first token, to those that asked.

Owns when something new is to be said: only on a change, once a step. Refuses to know the order of the queue (scheduler).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tlserve.engine.events import EngineEvent
from tlserve.engine.sequence import EngineSequence
from tlserve.generation import Progress


def queue_progress(waiting: Sequence[EngineSequence]) -> Iterator[EngineEvent]:
    """Tell those who wait how many are before them."""
    for ahead, sequence in enumerate(waiting):
        if _is_wanted(sequence):
            yield from _tell(sequence, Progress(ahead=ahead))


def prefill_progress(sequence: EngineSequence) -> Iterator[EngineEvent]:
    """Tell how much of the prompt is there by now."""
    if _is_wanted(sequence):
        yield from _tell(sequence, Progress(done=min(sequence.computed, sequence.prompt_tokens)))


def _is_wanted(sequence: EngineSequence) -> bool:
    return sequence.request is not None and sequence.request.progress and not sequence.drew


def _tell(sequence: EngineSequence, progress: Progress) -> Iterator[EngineEvent]:
    if progress != sequence.told:
        sequence.told = progress
        yield EngineEvent(sequence.key, progress)
