"""The counters and histograms of an engine, and the snapshot of all its figures.

Owns the figures that the step itself changes. The scheduler, the blocks and the runner count for themselves; the snapshot reads
them.
"""

from __future__ import annotations

import attrs

from tlserve.engine.blocks.kv_blocks import KvBlocks
from tlserve.engine.runner import Runner
from tlserve.engine.scheduler import Scheduler
from tlserve.generation import EngineStatistics
from tlserve.telemetry import catalogue
from tlserve.telemetry.histogram import Histogram


@attrs.define
class Counters:
    """The fields of `generation.EngineStatistics` that the step changes, by the same names; only `batch_tokens` can fall."""

    batch_tokens: int = 0
    steps_total: int = 0
    prompt_tokens_total: int = 0
    generated_tokens_total: int = 0
    drafted_tokens_total: int = 0
    accepted_tokens_total: int = 0
    finished_stop_total: int = 0
    finished_length_total: int = 0
    finished_aborted_total: int = 0
    finished_failed_total: int = 0
    step_seconds_total: float = 0.0


class EngineFigures:
    """What one engine has counted and measured."""

    def __init__(self) -> None:
        self.counters = Counters()
        self._step_durations_s = Histogram(catalogue.STEP_DURATION.buckets)
        self._step_rows = Histogram(catalogue.STEP_ROWS.buckets)

    def note_step(self, duration_s: float, *, computed: bool) -> None:
        """Count the time of a step; `computed`: it had rows."""
        self.counters.step_seconds_total += duration_s
        if computed:
            self._step_durations_s.observe(duration_s)
            self._step_rows.observe(self.counters.batch_tokens)

    def snapshot(self, kv: KvBlocks, scheduler: Scheduler, runner: Runner) -> EngineStatistics:
        """Return all gauges and counters as they are now."""
        return EngineStatistics(
            kv_used=kv.used,
            kv_cached=len(kv.idle),
            kv_free=kv.pool.free_count,
            queue_depth=len(scheduler.waiting),
            active_sequences=len(scheduler.running),
            prefix_cache_queries_total=scheduler.cache_queries,
            prefix_cache_hits_total=scheduler.cache_hits,
            preemptions_total=scheduler.preemptions,
            kv_evictions_total=kv.evictions,
            forward_seconds_total=runner.forward_s,
            step_durations_s=self._step_durations_s.snapshot(),
            step_rows=self._step_rows.snapshot(),
            **attrs.asdict(self.counters),
        )
