"""The rules that an engine keeps in every step of a simulation: of its blocks, its order, its preemptions and its progress.

`EngineRules` is called before and after each step, and raises AssertionError with a sentence about what does not hold. Which
blocks are held is checked by `tests.kit.engine.block_invariants`.
"""

from __future__ import annotations

from typing import Any

from tests.kit.engine.block_invariants import check_blocks
from tlserve.engine.engine import Engine


class EngineRules:
    """The rules of one engine; it listens to the scheduler's preemptions."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._may_go: set[int] = set()
        self._before: dict[int, int] = {}
        self._first: Any = None
        self._steps = 0
        self._idle = 0
        self._busy = False
        scheduler: Any = engine.scheduler
        self._preempt = scheduler._preempt
        scheduler._preempt = self._watch

    def before(self) -> None:
        """Note who runs before a step."""
        running = self._engine.scheduler.running
        self._before = {sequence.key: sequence.computed for sequence in running}
        self._may_go = set(self._before)
        self._first = (running[0], len(running[0].tokens)) if running and running[0].decoding else None
        self._busy = self._engine.has_work
        self._steps = self._engine.statistics().steps_total

    def after(self) -> None:
        """Check all that a step must have kept."""
        check_blocks(self._engine)
        scheduler = self._engine.scheduler
        known = {sequence.key for sequence in (*scheduler.running, *scheduler.waiting)}
        assert known == set(self._engine._sequences), "a sequence is in no queue, or in one after its end"
        idle = self._busy and self._engine.has_work and self._engine.statistics().steps_total == self._steps
        self._idle = self._idle + 1 if idle else 0
        assert self._idle < 2, "the engine has work and computes nothing"
        if self._first is not None:
            first, tokens = self._first
            assert first not in scheduler.waiting, "the first sequence of all was preempted"
            assert first not in scheduler.running or len(first.tokens) > tokens, "the first sequence got no row"
        self._check_prompts()
        self._check_room()

    def _watch(self, victim: Any) -> None:
        """Let the scheduler preempt `victim`: the last one, once in a step, and none that began in this step."""
        assert victim is self._engine.scheduler.running[-1], "a sequence was preempted that is not the last one"
        assert victim.key in self._may_go, "a sequence was admitted and preempted in the same step"
        self._may_go.discard(victim.key)
        self._preempt(victim)

    def _check_prompts(self) -> None:
        """Without a bound of rows a prompt waits only for another one with the same beginning, or for blocks."""
        if self._engine.config.prefill_chunk or self._engine.kv.available == 0:
            return
        running, size = self._engine.scheduler.running, self._engine.config.block_size
        for sequence in running:
            if sequence.decoding or self._before.get(sequence.key) != sequence.computed:
                continue
            end = (sequence.computed // size + 1) * size
            beginning = sequence.tokens[:end]
            others = [other for other in running if other is not sequence and other.tokens[:end] == beginning]
            assert others, "a prompt got no rows, and no other one has its beginning"

    def _check_room(self) -> None:
        """A sequence begins only if there are blocks left for the prompts that run already."""
        running, kv = self._engine.scheduler.running, self._engine.kv
        has_begun = any(sequence.key not in self._before for sequence in running)
        if has_begun and self._engine.config.speculative == "none":  # drafts take blocks that are free
            needed = sum(kv.missing(sequence.table, len(sequence.tokens) - sequence.decoding) for sequence in running)
            assert needed <= kv.available, "a sequence began, and the running ones lack blocks"
