"""What the engine counts.

Owns the counters that the step itself moves. Refuses to know gauges and the counts of the scheduler and the blocks: the
engine's snapshot adds them.
"""

from __future__ import annotations

import attrs


@attrs.define
class Counters:
    """Counters of one engine, named as in `generation.EngineStatistics`; none but `batch_tokens` ever falls."""

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
