"""The step loop: schedule, plan, forward, sample, and apply the results.

Owns how requests enter and leave. One thread calls it, one call at a time. Knows nothing of threads, trio and text. The
scheduler has the rules of order and blocks, the sampler the bits of a draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter

from tlserve import errors
from tlserve.config.machine import usable_cores
from tlserve.engine.blocks.kv_blocks import KvBlocks
from tlserve.engine.blocks.prefix_cache import make_prefix_cache
from tlserve.engine.config import EngineConfig
from tlserve.engine.events import EngineEvent, Failed
from tlserve.engine.pooling import HiddenSum
from tlserve.engine.progress import queue_progress
from tlserve.engine.request_checks import check_request, check_tokens
from tlserve.engine.runner import Runner
from tlserve.engine.sampling.constraint import advance, all_but, open_bound
from tlserve.engine.sampling.logit_edits import open_edits
from tlserve.engine.sampling.native_sampler import make_sampler
from tlserve.engine.sampling.sampler_chain import carries_state
from tlserve.engine.scheduler import Scheduler
from tlserve.engine.sequence import EngineSequence
from tlserve.engine.statistics import EngineFigures
from tlserve.engine.step_draws import NO_DRAWS, draw_rows
from tlserve.engine.step_plan import SequenceRows, plan_batch
from tlserve.engine.step_results import RowsResult, take_draws, take_hidden
from tlserve.generation import EngineStatistics, Finish, GenerationRequest, PrefillStarted, TokenConstraint
from tlserve.kernels.interface import Model


class Engine:
    """Continuous batching over one model.

    `scheduler` and `kv` are public to be read (tests check their invariants); change them only through the engine.
    """

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.config = config
        self.context_tokens = config.context_limit(model.spec.context_tokens)
        self.kv = KvBlocks(config.kv_blocks, config.block_size, make_prefix_cache(config.prefix_cache))
        self.scheduler = Scheduler(config, self.kv, whole=model.spec.bidirectional)
        self._runner = Runner(model, config.kv_blocks, config.block_size)
        self._sampler = make_sampler(
            model.spec.vocabulary_size, config.sampler_threads or usable_cores(), native=config.sampler == "auto"
        )
        self._sequences: dict[int, EngineSequence] = {}
        self._keys = 0
        self._figures = EngineFigures()
        self._counters = self._figures.counters

    # --- in and out --------------------------------------------------------------------------------------------------

    def add_request(self, request: GenerationRequest, constraint: TokenConstraint | None = None) -> int:
        """Queue `request` and return its key; `constraint` is a fresh one of its grammar.

        A request with `emitted` continues after them, with the constraint advanced over them; the log-probabilities of its
        prompt were reported before them. Raises Overloaded if max_num_seqs + max_waiting requests are unfinished,
        ContextLengthExceeded if no token would fit after the prompt, ClientError for an empty prompt, an unknown token id,
        sampling parameters out of range, or nothing left to generate, ConstraintFailed if the constraint refuses `emitted`.
        A bidirectional model generates nothing: Refusal.
        """
        spec = self._runner.spec
        if spec.bidirectional:
            raise errors.Refusal("this model makes embeddings and no text", param="model")
        check_request(request, spec.vocabulary_size, self.context_tokens)
        if self.scheduler.full:
            raise errors.Overloaded("the queue is full; retry soon")
        for token in request.emitted:
            advance(constraint, token)
        return self._add(
            EngineSequence(
                key=self._next_key(),
                priority=request.priority,
                tokens=[*request.prompt, *request.emitted],
                prompt_tokens=len(request.prompt),
                limit=min(len(request.prompt) + request.max_tokens, self.context_tokens),
                table=self.kv.new_table(namespace=request.cache_namespace),
                request=request,
                constraint=constraint,
                edits=open_edits(request),
                not_yet=all_but(request.stop_ids, spec.vocabulary_size) if request.min_tokens else None,
                bound=open_bound(request.allowed_ids, request.banned, spec.vocabulary_size),
                mu=request.mu,
                can_draft=not carries_state(request.sampling),
                scored=len(request.prompt) if request.prompt_logprobs is None or request.emitted else 1,
            )
        )

    def add_embedding(self, tokens: Sequence[int], priority: int = 0) -> int:
        """Queue `tokens` to be encoded and return the key; raises as `add_request` does, but never Overloaded.

        One request can bring thousands of inputs, so the caller limits them. An embedding needs the hidden states of all its
        tokens: it neither reads nor fills the prefix cache.
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

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys

    def _add(self, sequence: EngineSequence) -> int:
        self._sequences[sequence.key] = sequence
        self.scheduler.add(sequence)
        return sequence.key

    def abort(self, key: int) -> None:
        """End the request now and free its blocks; a key that is unknown or has ended is ignored."""
        sequence = self._sequences.get(key)
        if sequence is not None:
            self._drop(sequence)
            self._counters.finished_aborted_total += 1

    def abort_all(self) -> None:
        """End every request."""
        for key in tuple(self._sequences):
            self.abort(key)

    @property
    def has_work(self) -> bool:
        """Return whether a step would have anything to do."""
        return bool(self._sequences)

    def statistics(self) -> EngineStatistics:
        """Return a snapshot of all gauges and counters."""
        return self._figures.snapshot(self.kv, self.scheduler, self._runner)

    # --- a step ------------------------------------------------------------------------------------------------------

    def step(self, announce: Callable[[list[EngineEvent]], None] | None = None) -> list[EngineEvent]:
        """Compute one step and return its events, in order for each request.

        `announce` gets the events of requests that begin in this step, before it is computed; without it they are returned
        first. Raises what the model's forward pass raises; the engine cannot be used after that.
        """
        started = perf_counter()
        planned = self.scheduler.schedule()
        events = [*queue_progress(self.scheduler.waiting)]
        events += [event for rows in planned for event in self._note_start(rows.sequence)]
        if planned and events and announce:
            announce(events)
            events = []
        events += self._compute(planned) if planned else []
        self._figures.note_step(perf_counter() - started, computed=bool(planned))
        return events

    def _note_start(self, sequence: EngineSequence) -> list[EngineEvent]:
        if sequence.started:
            return []
        sequence.started = True
        self._counters.prompt_tokens_total += sequence.prompt_tokens
        return [EngineEvent(sequence.key, PrefillStarted(min(sequence.computed, sequence.prompt_tokens)))]

    def _compute(self, planned: list[SequenceRows]) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        batch = plan_batch(planned)
        output = self._runner.forward(batch)
        self._counters.steps_total += 1
        self._counters.batch_tokens = len(batch.tokens)
        draws = iter(draw_rows(self._sampler, [rows for rows in planned if rows.logit_rows], output.logits))
        hidden = 0
        for rows in planned:
            if rows.sequence.hidden_sum is None:
                result = take_draws(rows, next(draws) if rows.logit_rows else NO_DRAWS)
            else:
                result = take_hidden(rows, output.hidden[hidden : hidden + rows.rows])
                hidden += rows.rows
            events += self._apply(rows, result)
        return events

    def _apply(self, rows: SequenceRows, result: RowsResult) -> list[EngineEvent]:
        """Count the result, publish the blocks that are full now, and remove a sequence that has ended."""
        sequence, counters = rows.sequence, self._counters
        counters.generated_tokens_total += result.tokens
        if result.fault is not None:
            self._drop(sequence)
            counters.finished_failed_total += 1
            return [*result.events, EngineEvent(sequence.key, Failed(result.fault))]
        if rows.drafts:
            counters.drafted_tokens_total += len(rows.drafts)
            counters.accepted_tokens_total += result.tokens - 1
        self.kv.publish(sequence.table, sequence.tokens, sequence.computed)
        if result.finish is not None:
            self._drop(sequence)
            counters.finished_stop_total += result.finish is Finish.STOP
            counters.finished_length_total += result.finish is Finish.LENGTH
        return result.events

    def _drop(self, sequence: EngineSequence) -> None:
        del self._sequences[sequence.key]
        self.scheduler.remove(sequence)
