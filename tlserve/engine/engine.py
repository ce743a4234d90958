"""The step loop: schedule, plan, forward, sample, settle.

Owns the requests' way in and out, and what becomes of the rows of a step. Refuses to know threads, trio and text; it is
called by one thread, one call at a time. The rules of order and blocks are the scheduler's, the bits of a draw the sampler's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from time import perf_counter

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve import errors
from tlserve.engine.config import EngineConfig
from tlserve.engine.constraint import advance
from tlserve.engine.drawing import open_draws
from tlserve.engine.draws import Draw
from tlserve.engine.events import EmbeddingReady, EngineEvent, Failed
from tlserve.engine.kv_blocks import KvBlocks
from tlserve.engine.native_sampler import make_sampler
from tlserve.engine.pooling import HiddenSum
from tlserve.engine.prefix_cache import make_prefix_cache
from tlserve.engine.runner import Runner
from tlserve.engine.scheduler import Scheduler
from tlserve.engine.sequence import Sequence
from tlserve.engine.statistics import Counters
from tlserve.engine.step_plan import SequenceRows, plan_batch
from tlserve.generation import EngineStatistics, Finish, GenerationRequest, PrefillStarted, TokenConstraint, TokenEvent
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
        self._sequences: dict[int, Sequence] = {}
        self._keys = 0
        self._counters = Counters()
        self._step_durations_s = Histogram(catalogue.STEP_DURATION.buckets)
        self._step_rows = Histogram(catalogue.STEP_ROWS.buckets)

    # --- in and out --------------------------------------------------------------------------------------------------

    def add_request(self, request: GenerationRequest, constraint: TokenConstraint | None = None) -> int:
        """Queue `request`, whose grammar became the fresh `constraint`, and return its key.

        A request with `emitted` goes on after them, the constraint advanced over them. Raises Overloaded if
        max_num_seqs + max_waiting requests are unfinished, ContextLengthExceeded if no token would fit after the prompt,
        ClientError for an empty prompt, an unknown token id, or nothing left to generate, ConstraintFailed if the constraint
        does not take `emitted`. A bidirectional model continues nothing: Refusal.
        """
        if self._runner.spec.bidirectional:
            raise errors.Refusal("this model makes embeddings and no text", param="model")
        self._check_tokens((*request.prompt, *request.emitted), room_for=1)
        if len(request.emitted) >= request.max_tokens or request.stop_ids.intersection(request.emitted):
            raise errors.ClientError("nothing is left to generate: the answer has ended", param="max_tokens")
        if self.scheduler.full:
            raise errors.Overloaded("as many requests wait as may; try again soon")
        for token in request.emitted:
            advance(constraint, token)
        return self._add(
            request.priority,
            [*request.prompt, *request.emitted],
            prompt_tokens=len(request.prompt),
            limit=min(len(request.prompt) + request.max_tokens, self.context_tokens),
            request=request,
            constraint=constraint,
        )

    def add_embedding(self, tokens: Items[int], priority: int = 0) -> int:
        """Queue `tokens` to be encoded and return the key; raises as `add_request` does, but never Overloaded.

        One request may bring thousands of inputs, so whoever admits the request bounds them. An embedding needs the hidden
        states of all its tokens: it does not read the prefix cache, nor fill it.
        """
        self._check_tokens(tokens, room_for=0)
        hidden_sum = HiddenSum(self._runner.spec.pooling)
        return self._add(priority, list(tokens), prompt_tokens=len(tokens), limit=len(tokens), hidden_sum=hidden_sum)

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
        events = self._compute(planned, announce) if planned else []
        self._note_duration(perf_counter() - started, computed=bool(planned))
        return events

    def _note_duration(self, duration_s: float, *, computed: bool) -> None:
        self._counters.step_seconds_total += duration_s
        if computed:
            self._step_durations_s.observe(duration_s)
            self._step_rows.observe(self._counters.batch_tokens)

    def _compute(
        self, planned: list[SequenceRows], announce: Callable[[list[EngineEvent]], None] | None
    ) -> list[EngineEvent]:
        events = [event for item in planned for event in self._note_start(item.sequence)]
        if events and announce:
            announce(events)
            events = []
        batch = plan_batch(planned)
        output = self._runner.forward(batch)
        self._counters.steps_total += 1
        self._counters.batch_tokens = len(batch.tokens)
        draws = iter(open_draws(self._sampler, [item for item in planned if item.sampled], output.logits))
        hidden = 0
        for item in planned:
            if item.sequence.hidden_sum is None:
                events += self._settle(item, next(draws) if item.sampled else iter(()))
            else:
                events += self._settle_embedding(item, output.hidden[hidden : hidden + item.rows])
                hidden += item.rows
        return events

    def _note_start(self, sequence: Sequence) -> list[EngineEvent]:
        if sequence.started:
            return []
        sequence.started = True
        self._counters.prompt_tokens_total += sequence.prompt_tokens
        return [EngineEvent(sequence.key, PrefillStarted(min(sequence.computed, sequence.prompt_tokens)))]

    def _settle(self, item: SequenceRows, draws: Iterator[Draw]) -> list[EngineEvent]:
        """Count what was computed; where the known tokens end, take draws as long as the drafts turn out right."""
        sequence = item.sequence
        sequence.computed += item.count
        events: list[EngineEvent] = []
        try:
            for drawn, draft in zip(draws, (*item.drafts, None), strict=False):
                events.append(self._take(sequence, drawn))
                if sequence.finish or draft != drawn.token:
                    break
                sequence.computed += 1
        except errors.ServerFault as fault:
            return [*events, self._fail(sequence, fault)]
        self._count_drafts(item, len(events))
        self.kv.publish(sequence.table, sequence.tokens, sequence.computed)
        if sequence.finish:
            self._finish(sequence, sequence.finish)
        return events

    def _take(self, sequence: Sequence, drawn: Draw) -> EngineEvent:
        index = sequence.emitted
        sequence.append(drawn.token)
        self._counters.generated_tokens_total += 1
        return EngineEvent(sequence.key, TokenEvent(index, drawn.token, drawn.logprob, drawn.top, sequence.finish))

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

    def _finish(self, sequence: Sequence, finish: Finish) -> None:
        self._drop(sequence)
        if finish is Finish.STOP:
            self._counters.finished_stop_total += 1
        else:
            self._counters.finished_length_total += 1

    def _fail(self, sequence: Sequence, fault: errors.ServerFault) -> EngineEvent:
        self._drop(sequence)
        self._counters.finished_failed_total += 1
        return EngineEvent(sequence.key, Failed(fault))

    def _drop(self, sequence: Sequence) -> None:
        del self._sequences[sequence.key]
        self.scheduler.remove(sequence)

    # --- admission -----------------------------------------------------------------------------------------------------

    def _check_tokens(self, tokens: Items[int], room_for: int) -> None:
        if not tokens:
            raise errors.ClientError("the prompt is empty", param="prompt")
        if len(tokens) + room_for > self.context_tokens:
            raise errors.ContextLengthExceeded(
                f"the prompt has {len(tokens)} tokens, and the context holds {self.context_tokens}, the answer included"
            )
        vocabulary = self._runner.spec.vocabulary_size
        if min(tokens) < 0 or max(tokens) >= vocabulary:
            raise errors.ClientError(f"token ids go from 0 to {vocabulary - 1}", param="prompt")

    def _add(
        self,
        priority: int,
        tokens: list[int],
        *,
        prompt_tokens: int,
        limit: int,
        request: GenerationRequest | None = None,
        constraint: TokenConstraint | None = None,
        hidden_sum: HiddenSum | None = None,
    ) -> int:
        self._keys += 1
        self._sequences[self._keys] = sequence = Sequence(
            key=self._keys,
            priority=priority,
            tokens=tokens,
            prompt_tokens=prompt_tokens,
            limit=limit,
            table=self.kv.new_table(cached=hidden_sum is None),
            request=request,
            constraint=constraint,
            hidden_sum=hidden_sum,
        )
        self.scheduler.add(sequence)
        return self._keys
