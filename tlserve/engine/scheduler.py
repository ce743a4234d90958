"""Which sequences run in the next step, and how many rows each gets.

Owns the queue, the running set, and the rules between them. Knows nothing of models and sampling. The rules:

- The order is the same everywhere: higher priority first, then first come first served.
- Every decoding sequence gets its row in every step; prompts share the additional rows that `prefill_chunk` allows.
- A bidirectional model gets whole sequences only: as many as `prefill_chunk` holds, and a longer one by itself.
- A waiting sequence never takes the place or the blocks of a running one, whatever its priority.
- A running sequence that needs blocks takes them from those after it in the order, never from one before it; if that is
  not enough it waits for a step. So the first one always advances, and every sequence becomes the first at some time.
- A preempted sequence gives all its blocks back, keeps its tokens, and waits at its old place in the order.
- Two prompts with a common beginning do not compute it twice: the later one waits while the earlier one computes the block
  that both need next, then finds it in the cache. So the choices of one prompt share its blocks.
- A prompt that needs log-probabilities takes nothing from the cache, though others find its blocks there. The number of its
  rows, which all need logits, is bounded in every step, whatever `prefill_chunk` says.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from tlserve.engine.blocks.kv_blocks import KvBlocks
from tlserve.engine.config import EngineConfig
from tlserve.engine.prompt_lookup import PromptLookup, least_chance
from tlserve.engine.sequence import EngineSequence
from tlserve.engine.step_plan import SequenceRows, plan_rows

MOST_SCORED_ROWS = 128
"""Prompt rows with logits in one step; with a vocabulary of 150,000 tokens they take 77 MB."""


def share_prefill(prompts: Sequence[tuple[int, int]], budget: int) -> list[int]:
    """Share `budget` rows among prompts, each a (priority, pending tokens), given in order; return the rows of each.

    A higher priority comes first. Within one priority the first prompt always gets half, so that it never starves; the rest
    goes to the shortest first, so that a short prompt does not wait behind a long one.
    """
    shares = [0] * len(prompts)
    for priority in sorted({priority for priority, _ in prompts}, reverse=True):
        members = [i for i, (own, pending) in enumerate(prompts) if own == priority and pending]
        turns = [(members[0], (budget + 1) // 2)] if members else []
        turns += [(i, budget) for i in sorted(members, key=lambda i: prompts[i][1])]
        for i, most in turns:
            rows = min(most, budget, prompts[i][1] - shares[i])
            shares[i] += rows
            budget -= rows
    return shares


def share_whole(prompts: Sequence[tuple[int, int]], budget: int) -> list[int]:
    """Share `budget` rows among whole prompts, each a (priority, pending tokens), in order; return the rows of each.

    The first one always gets all its rows, so that it never starves; of the others, those that still fit get theirs.
    """
    shares = [0] * len(prompts)
    left = budget
    for i, (_, pending) in enumerate(prompts):
        if pending <= left or left == budget:
            shares[i] = pending
            left -= pending
    return shares


class Scheduler:
    """The waiting and the running sequences, both kept in order; `whole`: a sequence is computed in one step or not at all."""

    def __init__(self, config: EngineConfig, kv: KvBlocks, *, whole: bool = False) -> None:
        self.waiting: list[EngineSequence] = []
        self.running: list[EngineSequence] = []
        self.preemptions = 0
        self.cache_queries = 0
        self.cache_hits = 0
        self._config = config
        self._share_rows = share_whole if whole else share_prefill
        self._kv = kv
        self._plan: dict[EngineSequence, SequenceRows] = {}

    @property
    def full(self) -> bool:
        """Whether the number of unfinished generations is at its limit."""
        unfinished = sum(sequence.request is not None for queue in (self.waiting, self.running) for sequence in queue)
        return unfinished >= self._config.max_unfinished

    def add(self, sequence: EngineSequence) -> None:
        """Put `sequence` into the queue at its place in the order."""
        bisect.insort(self.waiting, sequence, key=_order)

    def remove(self, sequence: EngineSequence) -> None:
        """Remove `sequence`, running or waiting, and take its blocks back."""
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self._kv.release(sequence.table)

    def schedule(self) -> list[SequenceRows]:
        """Decide one step: decodes, running prompts, prompts that begin, drafts. The rows are in the order of the sequences."""
        self._plan = {}
        for sequence in tuple(self.running):
            if sequence.decoding and sequence in self.running and self._obtain(sequence, len(sequence.tokens)):
                self._plan[sequence] = plan_rows(sequence, 1)
        self._plan_prefills()
        # A sequence that was planned and then preempted no longer runs: its rows are left out here.
        planned = [self._plan[sequence] for sequence in self.running if sequence in self._plan]
        if self._config.speculative == "none":
            return planned
        chance = least_chance(sum(rows.sampled > 0 for rows in planned))
        return [self._with_drafts(rows, chance) for rows in planned]

    def _with_drafts(self, rows: SequenceRows, chance: float) -> SequenceRows:
        """Add drafts, if there are blocks left for them: a guess never takes another sequence's blocks."""
        sequence = rows.sequence
        room = sequence.limit - len(sequence.tokens) - 1
        if not (sequence.decoding and sequence.can_draft) or room < 1:
            return rows
        sequence.lookup = sequence.lookup or PromptLookup()
        drafts = sequence.lookup.draft(sequence.tokens, min(room, self._config.speculative_tokens), chance)
        if not drafts or not self._kv.grow(sequence.table, len(sequence.tokens) + len(drafts)):
            return rows
        return plan_rows(sequence, 1, drafts)

    # --- prompts ---------------------------------------------------------------------------------------------------

    def _plan_prefills(self) -> None:
        prompts = [sequence for sequence in self.running if not sequence.decoding]
        claims: set[object] = set()
        pending = [self._claim(sequence, claims) for sequence in prompts]
        while self.waiting and len(self.running) < self._config.max_num_seqs:
            if not self._try_to_admit(prompts, pending, claims):
                break
        shares = _bound_scored(prompts, self._share(prompts, pending))
        for sequence, rows in zip(prompts, shares, strict=True):
            if rows and sequence in self.running and self._obtain(sequence, sequence.computed + rows):
                self._plan[sequence] = plan_rows(sequence, rows)

    def _claim(self, sequence: EngineSequence, claims: set[object]) -> int:
        """Skip the blocks that the cache has; return the tokens to compute, 0 while another sequence computes the next block."""
        if sequence.scores:
            return sequence.pending
        cached = self._kv.extend_from_cache(sequence.table, sequence.tokens)
        if sequence.is_first_look:
            self.cache_hits += max(0, cached - sequence.computed)
        sequence.computed = max(sequence.computed, cached)
        following = self._kv.next_block(sequence.table, sequence.tokens)
        if following is None:
            return sequence.pending
        if following in claims:
            return 0
        claims.add(following)
        return sequence.pending

    def _share(self, prompts: Sequence[EngineSequence], pending: Sequence[int]) -> list[int]:
        budget = self._config.prefill_chunk or sum(pending)
        return self._share_rows([(s.priority, tokens) for s, tokens in zip(prompts, pending, strict=True)], budget)

    def _try_to_admit(self, prompts: list[EngineSequence], pending: list[int], claims: set[object]) -> bool:
        """Let the first waiting sequence run if it gets a row (or waits for a common block) and there are enough blocks."""
        candidate = self.waiting[0]
        place = bisect.bisect(prompts, candidate.order, key=_order)
        hits, claimed = self.cache_hits, set(claims)
        own = self._claim(candidate, claimed)
        tried = [*pending[:place], own, *pending[place:]]
        served = own == 0 or self._share([*prompts[:place], candidate, *prompts[place:]], tried)[place] > 0
        if not (served and self._fits(candidate)):
            self._give_back(candidate)
            self.cache_hits = hits
            return False
        if candidate.is_first_look and candidate.table.root and not candidate.scores:
            self.cache_queries += candidate.prompt_tokens
        bisect.insort(self.running, self.waiting.pop(0), key=_order)
        prompts.insert(place, candidate)
        pending[:] = tried
        claims |= claimed
        return True

    def _fits(self, candidate: EngineSequence) -> bool:
        """Return whether it fits next to what the running ones will still need: else it would be preempted at once."""
        if not self.running:
            return True
        promised = sum(self._kv.missing(s.table, len(s.tokens)) + s.decoding for s in self.running)
        own = self._kv.missing(candidate.table, min(len(candidate.tokens) + 1, candidate.limit))
        return own + promised <= self._kv.available

    # --- blocks ----------------------------------------------------------------------------------------------------

    def _obtain(self, sequence: EngineSequence, tokens: int) -> bool:
        """Get blocks for `tokens` positions, preempting from the end of the order; False if those before it hold the rest."""
        while not self._kv.grow(sequence.table, tokens):
            if self.running[-1] is sequence:
                return False
            self._preempt(self.running[-1])
        return True

    def _preempt(self, victim: EngineSequence) -> None:
        self.running.remove(victim)
        self._give_back(victim)
        victim.was_preempted = True
        self.add(victim)
        self.preemptions += 1

    def _give_back(self, sequence: EngineSequence) -> None:
        self._kv.release(sequence.table)
        sequence.restart()


def _bound_scored(prompts: Sequence[EngineSequence], shares: Sequence[int]) -> list[int]:
    """Limit the shares of prompts whose rows need logits to MOST_SCORED_ROWS together, in the order of the prompts."""
    left, bounded = MOST_SCORED_ROWS, []
    for sequence, rows in zip(prompts, shares, strict=True):
        bounded.append(min(rows, left) if sequence.scores else rows)
        left -= bounded[-1] if sequence.scores else 0
    return bounded


def _order(sequence: EngineSequence) -> tuple[int, int]:
    return sequence.order
