"""What the rows of one sequence gave in a step: its events, and whether it ends.

Owns how a sequence advances over its computed rows. The engine removes sequences that have ended, and counts.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.engine.events import EmbeddingReady, EngineEvent
from tlserve.engine.progress import prefill_progress
from tlserve.engine.sampling.interface import Draw
from tlserve.engine.sequence import EngineSequence
from tlserve.engine.step_draws import SequenceDraws
from tlserve.engine.step_plan import SequenceRows
from tlserve.errors import ServerFault
from tlserve.generation import Finish, PromptLogprobs, PromptToken, TokenEvent


@attrs.define(eq=False)  # frozen ones take longer to make, and there is one a token
class RowsResult:
    """`events` in order, `tokens` of them drawn; with `finish` or `fault` the sequence has ended."""

    events: list[EngineEvent]
    tokens: int = 0
    finish: Finish | None = None
    fault: ServerFault | None = None


def take_draws(rows: SequenceRows, found: SequenceDraws) -> RowsResult:
    """Move the sequence over its rows: its prompt, then one draw after the other while the drafts were right."""
    events: list[EngineEvent] = []
    sequence, tokens, finish = rows.sequence, 0, None
    sequence.computed += rows.count
    try:
        if not sequence.drew:
            events += _prompt_events(rows, found)
        for drawn, draft in zip(found.draws(), (*rows.drafts, None), strict=False):
            event = _take(sequence, drawn)
            events.append(EngineEvent(sequence.key, event))
            tokens, finish = tokens + 1, event.finish
            if finish or draft != drawn.token:
                break
            sequence.computed += 1
    except ServerFault as fault:
        return RowsResult(events, tokens, fault=fault)
    return RowsResult(events, tokens, finish)


def _take(sequence: EngineSequence, drawn: Draw) -> TokenEvent:
    index = sequence.emitted
    sequence.append(drawn.token, drawn.mu)
    return TokenEvent(index, drawn.token, drawn.logprob, drawn.top, sequence.finish, drawn.mu)


def _prompt_events(rows: SequenceRows, found: SequenceDraws) -> list[EngineEvent]:
    """Return the progress in the prompt and the log-probabilities of its tokens, as far as the request asked for them."""
    sequence = rows.sequence
    events = [*prefill_progress(sequence)]
    if rows.scored:
        tokens = tuple(_prompt_tokens(found))
        events.append(EngineEvent(sequence.key, PromptLogprobs(rows.scored.start + 1, tokens)))
        sequence.scored = rows.scored.stop + 1
    return events


def _prompt_tokens(found: SequenceDraws) -> Iterator[PromptToken]:
    for draw in found.prompt_tokens():
        assert draw.logprob is not None
        yield PromptToken(draw.token, draw.logprob, draw.top)


def take_hidden(rows: SequenceRows, hidden: NDArray[np.float32]) -> RowsResult:
    """Add the hidden states of the rows, (rows, hidden_size) float32, to the embedding; it ends with its last token."""
    sequence, hidden_sum = rows.sequence, rows.sequence.hidden_sum
    assert hidden_sum is not None
    sequence.computed += rows.count
    hidden_sum.add(hidden)
    if sequence.pending:
        return RowsResult([])
    vector = hidden_sum.embedding()
    if not np.isfinite(vector).all():
        return RowsResult([], fault=ServerFault("the model's output is not a number"))
    return RowsResult([EngineEvent(sequence.key, EmbeddingReady(vector))], finish=Finish.STOP)
