"""One sequence in the engine: its tokens, how many of them are computed, and what it is for.

Owns the counts that everything else relies on. Does not know when it runs (scheduler) or where its keys and values are stored.
A request that resumes with `emitted` tokens, and a sequence that was preempted, are the same here: their tokens are known, and
none of them is computed.
"""

from __future__ import annotations

import attrs

from tlserve.engine.blocks.kv_blocks import BlockTable
from tlserve.engine.pooling import HiddenSum
from tlserve.engine.prompt_lookup import PromptLookup
from tlserve.engine.sampling.constraint import Mask, TokenBound, advance
from tlserve.engine.sampling.logit_edits import LogitEdits
from tlserve.generation import Finish, GenerationRequest, Progress, TokenConstraint

MOST_BANNED_TOKENS = 64
"""The longest run of tokens that a request can ban."""


@attrs.define(eq=False, kw_only=True)
class EngineSequence:
    """A request to continue (`request`, under its `constraint`), or tokens to encode (`hidden_sum`).

    `tokens` are all known tokens: prompt, then answer; `limit` is the largest number of them. Keys and values of
    `tokens[:computed]` are stored. `started`: its first rows have been planned at least once. `edits` are the penalties and
    biases of the next token; `not_yet` is the mask while the answer is too short to end, and `bound` what the request allows.
    `mu` is mirostat's. `can_draft`: drafts can be drawn in one call with the row before them. The log-probabilities of
    `tokens[scored:prompt_tokens]` still have to be computed. `reported` is the last progress event; `drew`: it has drawn a
    token in this engine. `was_preempted`: it has given its blocks back at least once.
    """

    key: int
    priority: int
    tokens: list[int]
    prompt_tokens: int
    limit: int
    table: BlockTable
    request: GenerationRequest | None = None
    constraint: TokenConstraint | None = None
    hidden_sum: HiddenSum | None = None
    lookup: PromptLookup | None = None
    edits: LogitEdits | None = None
    not_yet: Mask | None = None
    bound: TokenBound | None = None
    mu: float | None = None
    can_draft: bool = True
    computed: int = 0
    scored: int = attrs.field()
    started: bool = False
    drew: bool = False
    was_preempted: bool = False
    reported: Progress | None = None

    @scored.default
    def _none_to_score(self) -> int:
        return self.prompt_tokens

    @property
    def order(self) -> tuple[int, int]:
        """Its place in the order: higher priority first, then first come first served."""
        return (-self.priority, self.key)

    @property
    def is_first_look(self) -> bool:
        """Whether what it finds in the prefix cache counts: not what it has computed before, here or on another node."""
        return not self.was_preempted and not (self.request is not None and self.request.emitted)

    @property
    def pending(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.tokens) - self.computed

    @property
    def scores(self) -> bool:
        """Whether log-probabilities of the prompt are still needed: then its rows need logits, and none can come from a cache."""
        return self.scored < self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Whether only the last token is pending and a next one is to be drawn: one row gives one token."""
        return self.request is not None and self.pending == 1

    @property
    def emitted(self) -> int:
        """Tokens of the answer so far, including those emitted elsewhere: the index of the next draw."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def finish(self) -> Finish | None:
        """Why the answer ends with the last token; None while it continues."""
        if self.request is None or not self.emitted:
            return None
        if self.tokens[-1] in self.request.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(self.tokens) >= self.limit else None

    def answer_tail(self, drafts: tuple[int, ...]) -> list[int]:
        """Return the last tokens of the answer and `drafts`: as many as a banned run can have."""
        start = max(self.prompt_tokens, len(self.tokens) - MOST_BANNED_TOKENS)
        return [*self.tokens[start:], *drafts]

    def append(self, token: int, mu: float | None = None) -> None:
        """Add the drawn token, and advance the constraint over it; raises ConstraintFailed."""
        self.tokens.append(token)
        self.mu = mu
        self.drew = True
        if self.edits is not None:
            self.edits.see(token)
        advance(self.constraint, token)

    def restart(self) -> None:
        """Forget everything computed; keep the tokens."""
        self.computed = 0
        if self.hidden_sum is not None:
            self.hidden_sum = HiddenSum(self.hidden_sum.pooling)
