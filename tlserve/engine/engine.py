"""The step loop: schedule, plan, forward, sample, settle.

Owns the requests' way in and out, and what becomes of the rows of a step. Refuses to know threads, trio and text; it is
called by one thread, one call at a time. The rules of order and blocks are the scheduler's, the bits of a draw the sampler's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve import errors
from tlserve.engine.blocks.kv_blocks import KvBlocks
from tlserve.engine.blocks.prefix_cache import make_prefix_cache
from tlserve.engine.config import EngineConfig
from tlserve.engine.events import EmbeddingReady, EngineEvent, Failed
from tlserve.engine.pooling import HiddenSum
from tlserve.engine.progress import prefill_progress, queue_progress
from tlserve.engine.request_checks import check_request, check_tokens
from tlserve.engine.runner import Runner
from tlserve.engine.sampling.constraint import advance, all_but
from tlserve.engine.sampling.interface import Draw
from tlserve.engine.sampling.logit_edits import open_edits
from tlserve.engine.sampling.native_sampler import make_sampler
from tlserve.engine.scheduler import Scheduler
from tlserve.engine.sequence import EngineSequence
from tlserve.engine.statistics import Counters
from tlserve.engine.step_draws import NO_DRAWS, ItemDraws, draw_items
from tlserve.engine.step_plan import SequenceRows, plan_batch
from tlserve.generation import (
    EngineStatistics,
    Finish,
    GenerationRequest,
    PrefillStarted,
    PromptLogprobs,
    PromptToken,
    TokenConstraint,
    TokenEvent,
)
from tlserve.kernels.interface import Model
from tlserve.kernels.thread_pool import available_cores
from tlserve.telemetry import catalogue
from tlserve.telemetry.histogram import Histogram


class Engine:
    """Continuous batching over one model.

    `scheduler` and `kv` are open to whoever wants to look (tests check their invariants); change them only through the engine.
    """

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.config = config
        self.context_tokens = config.context_limit(model.spec.context_tokens)
        self.kv = KvBlocks(config.kv_blocks, config.block_size, make_prefix_cache(config.prefix_cache))
        self.scheduler = Scheduler(config, self.kv, whole=model.spec.bidirectional)
        self._runner = Runner(model, config.kv_blocks, config.block_size)
        self._sampler = make_sampler(
            model.spec.vocabulary_size, config.sampler_threads or available_cores(), native=config.sampler == "auto"
        )
        self._sequences: dict[int, EngineSequence] = {}
        self._keys = 0
        self._counters = Counters()
        self._step_durations_s = Histogram(catalogue.STEP_DURATION.buckets)
        self._step_rows = Histogram(catalogue.STEP_ROWS.buckets)

    # --- in and out --------------------------------------------------------------------------------------------------

    def add_request(self, request: GenerationRequest, constraint: TokenConstraint | None = None) -> int:
        """Queue `request`, whose grammar became the fresh `constraint`, and return its key.

        A request with `emitted` goes on after them, the constraint advanced over them; what is known of its prompt was told
        before them. Raises Overloaded if max_num_seqs + max_waiting requests are unfinished, ContextLengthExceeded if no token
        would fit after the prompt, ClientError for an empty prompt, an unknown token id, sampling parameters out of range, or
        nothing left to generate, ConstraintFailed if the constraint does not take `emitted`. A bidirectional model continues
        nothing: Refusal.
        """
        spec = self._runner.spec
        if spec.bidirectional:
            raise errors.Refusal("this model makes embeddings and no text", param="model")
        check_request(request, spec.vocabulary_size, self.context_tokens)
        if self.scheduler.full:
            raise errors.Overloaded("as many requests wait as may; try again soon")
        for token in request.emitted:
            advance(constraint, token)
        return self._add(
            EngineSequence(
                key=self._next_key(),
                priority=request.priority,
                tokens=[*request.prompt, *request.emitted],
                prompt_tokens=len(request.prompt),
                limit=min(len(request.prompt) + request.max_tokens, self.context_tokens),
                table=self.kv.new_table(namespace=request.cache_salt),
                request=request,
                constraint=constraint,
                edits=open_edits(request),
                not_yet=all_but(request.stop_ids, spec.vocabulary_size) if request.min_tokens else None,
                scored=len(request.prompt) if request.prompt_logprobs is None or request.emitted else 1,
            )
        )

    def add_embedding(self, tokens: Sequence[int], priority: int = 0) -> int:
        """Queue `tokens` to be encoded and return the key; raises as `add_request` does, but never Overloaded.

        One request may bring thousands of inputs, so whoever admits the request bounds them. An embedding needs the hidden
        states of all its tokens: it does not read the prefix cache, nor fill it.
        """
        spec = self._runner.spec
        check_tokens(tokens, spec.vocabulary_size, self.context_tokens, room_for=0)
        return self._add(
            EngineSequence(
                key=self._next_key(),
                priority=priority,
                tokens=list(tokens),
                prompt_tokens=len(tokens),
                limit=len(tokens),
                table=self.kv.new_table(cached=False),
                hidden_sum=HiddenSum(spec.pooling),
            )
        )

    def abort(self, key: int) -> None:
        """End the request now and free its blocks; a key that is unknown or has ended is ignored."""
        sequence = self._sequences.pop(key, None)
        if sequence is not None:
            self.scheduler.remove(sequence)
            self._counters.finished_aborted_total += 1

    def abort_all(self) -> None:
        """End every request."""
        for key in tuple(self._sequences):
            self.abort(key)

    @property
    def has_work(self) -> bool:
        """Say whether a step would have anything to do."""
        return bool(self._sequences)

    def queue_position(self, key: int) -> int | None:
        """Return how many requests wait before this one; None if it runs, has ended, or is unknown."""
        sequence = self._sequences.get(key)
        return self.scheduler.waiting.index(sequence) if sequence in self.scheduler.waiting else None

    def statistics(self) -> EngineStatistics:
        """Return a snapshot of all gauges and counters."""
        return EngineStatistics(
            kv_used=self.kv.used,
            kv_cached=len(self.kv.idle),
            kv_free=self.kv.pool.free_count,
            queue_depth=len(self.scheduler.waiting),
            active_sequences=len(self.scheduler.running),
            prefix_cache_queries_total=self.scheduler.cache_queries,
            prefix_cache_hits_total=self.scheduler.cache_hits,
            preemptions_total=self.scheduler.preemptions,
            kv_evictions_total=self.kv.evictions,
            forward_seconds_total=self._runner.forward_s,
            step_durations_s=self._step_durations_s.snapshot(),
            step_rows=self._step_rows.snapshot(),
            **attrs.asdict(self._counters),
        )

    # --- a step ------------------------------------------------------------------------------------------------------

    def step(self, announce: Callable[[list[EngineEvent]], None] | None = None) -> list[EngineEvent]:
        """Compute one step and return what happened, in order for each request.

        `announce` gets what begins in this step, before it is computed; without it that is returned first. Raises what the
        model's forward pass raises; the engine is of no more use then.
        """
        started = perf_counter()
        planned = self.scheduler.schedule()
        events = [*queue_progress(self.scheduler.waiting)]
        events += [event for item in planned for event in self._note_start(item.sequence)]
        if planned and events and announce:
            announce(events)
            events = []
        events += self._compute(planned) if planned else []
        self._note_duration(perf_counter() - started, computed=bool(planned))
        return events

    def _note_duration(self, duration_s: float, *, computed: bool) -> None:
        self._counters.step_seconds_total += duration_s
        if computed:
            self._step_durations_s.observe(duration_s)
            self._step_rows.observe(self._counters.batch_tokens)

    def _compute(self, planned: list[SequenceRows]) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        batch = plan_batch(planned)
        output = self._runner.forward(batch)
        self._counters.steps_total += 1
        self._counters.batch_tokens = len(batch.tokens)
        draws = iter(draw_items(self._sampler, [item for item in planned if item.logit_rows], output.logits))
        hidden = 0
        for item in planned:
            if item.sequence.hidden_sum is None:
                events += self._settle(item, next(draws) if item.logit_rows else NO_DRAWS)
            else:
                events += self._settle_embedding(item, output.hidden[hidden : hidden + item.rows])
                hidden += item.rows
        return events

    def _note_start(self, sequence: EngineSequence) -> list[EngineEvent]:
        if sequence.started:
            return []
        sequence.started = True
        self._counters.prompt_tokens_total += sequence.prompt_tokens
        return [EngineEvent(sequence.key, PrefillStarted(min(sequence.computed, sequence.prompt_tokens)))]

    def _settle(self, item: SequenceRows, found: ItemDraws) -> list[EngineEvent]:
        """Count what was computed; where the known tokens end, take draws as long as the drafts turn out right."""
        sequence = item.sequence
        sequence.computed += item.count
        events: list[EngineEvent] = []
        try:
            if not sequence.drew:
                events += self._note_prompt(item, found)
            finish = self._take_all(item, found, events)
        except errors.ServerFault as fault:
            return [*events, self._fail(sequence, fault)]
        self.kv.publish(sequence.table, sequence.tokens, sequence.computed)
        if finish:
            self._finish(sequence, finish)
        return events

    def _note_prompt(self, item: SequenceRows, found: ItemDraws) -> list[EngineEvent]:
        """Tell what there is to tell of the prompt."""
        sequence = item.sequence
        events = [*prefill_progress(sequence)]
        if item.scored:
            tokens = tuple(map(_prompt_token, found.prompt_tokens()))
            events.append(EngineEvent(sequence.key, PromptLogprobs(item.scored.start + 1, tokens)))
            sequence.scored = item.scored.stop + 1
        return events

    def _take_all(self, item: SequenceRows, found: ItemDraws, events: list[EngineEvent]) -> Finish | None:
        """Take draws as long as the drafts turn out right; return why the answer ended, if it did."""
        sequence, taken, finish = item.sequence, 0, None
        for drawn, draft in zip(found.draws(), (*item.drafts, None), strict=False):
            event = self._take(sequence, drawn)
            events.append(EngineEvent(sequence.key, event))
            taken, finish = taken + 1, event.finish
            if finish or draft != drawn.token:
                break
            sequence.computed += 1
        self._count_drafts(item, taken)
        return finish

    def _take(self, sequence: EngineSequence, drawn: Draw) -> TokenEvent:
        index = sequence.emitted
        sequence.append(drawn.token)
        self._counters.generated_tokens_total += 1
        return TokenEvent(index, drawn.token, drawn.logprob, drawn.top, sequence.finish)

    def _count_drafts(self, item: SequenceRows, drawn: int) -> None:
        if item.drafts:
            self._counters.drafted_tokens_total += len(item.drafts)
            self._counters.accepted_tokens_total += drawn - 1

    def _settle_embedding(self, item: SequenceRows, hidden: NDArray[np.float32]) -> list[EngineEvent]:
        sequence, hidden_sum = item.sequence, item.sequence.hidden_sum
        assert hidden_sum is not None
        sequence.computed += item.count
        hidden_sum.add(hidden)
        if sequence.pending:
            return []
        vector = hidden_sum.embedding()
        if not np.isfinite(vector).all():
            return [self._fail(sequence, errors.ServerFault("the model's output is not a number"))]
        self._finish(sequence, Finish.STOP)
        return [EngineEvent(sequence.key, EmbeddingReady(vector))]

    # --- ends ----------------------------------------------------------------------------------------------------------

    def _finish(self, sequence: EngineSequence, finish: Finish) -> None:
        self._drop(sequence)
        if finish is Finish.STOP:
            self._counters.finished_stop_total += 1
        else:
            self._counters.finished_length_total += 1

    def _fail(self, sequence: EngineSequence, fault: errors.ServerFault) -> EngineEvent:
        self._drop(sequence)
        self._counters.finished_failed_total += 1
        return EngineEvent(sequence.key, Failed(fault))

    def _drop(self, sequence: EngineSequence) -> None:
        del self._sequences[sequence.key]
        self.scheduler.remove(sequence)

    # --- admission -----------------------------------------------------------------------------------------------------

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys

    def _add(self, sequence: EngineSequence) -> int:
        self._sequences[sequence.key] = sequence
        self.scheduler.add(sequence)
        return sequence.key


def _prompt_token(found: Draw) -> PromptToken:
    assert found.logprob is not None
    return PromptToken(found.token, found.logprob, found.top)
