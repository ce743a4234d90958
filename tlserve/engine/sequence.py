"""One sequence under way: its tokens, how many of them are computed, and what it is for.

Owns the counting that everything else rests on. Refuses to know when it runs (scheduler) and where its keys and values lie.
A request that resumes with `emitted` tokens, and a sequence that was preempted, are the same thing here: tokens that are
known, of which none is computed.
"""

from __future__ import annotations

import attrs

from tlserve.engine.blocks.kv_blocks import BlockTable
from tlserve.engine.pooling import HiddenSum
from tlserve.engine.prompt_lookup import PromptLookup
from tlserve.engine.sampling.constraint import Mask, advance
from tlserve.engine.sampling.logit_edits import LogitEdits
from tlserve.generation import Finish, GenerationRequest, Progress, TokenConstraint


@attrs.define(eq=False, kw_only=True)
class EngineSequence:
    """A request to continue (`request`, under its `constraint`), or tokens to encode (`hidden_sum`).

    `tokens` are all that are known: prompt, then answer; `limit` is how many there may be at the end. Keys and values of
    `tokens[:computed]` are stored. `started`: its first rows have been computed once, whatever became of them. `edits` are the
    penalties and biases of the next token, `not_yet` is the mask while the answer is too short to end. The log-probabilities of
    `tokens[scored:prompt_tokens]` are still owed. `told` is the last that was reported of how far it is, `drew` that it has
    drawn here.
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
    computed: int = 0
    scored: int = attrs.field()
    started: bool = False
    drew: bool = False
    told: Progress | None = None

    @scored.default
    def _nothing_is_owed(self) -> int:
        return self.prompt_tokens

    @property
    def order(self) -> tuple[int, int]:
        """The place among others: higher priority first, then first come first served."""
        return (-self.priority, self.key)

    @property
    def pending(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.tokens) - self.computed

    @property
    def scores(self) -> bool:
        """Log-probabilities of the prompt are owed: the logits of its rows are wanted, so that none may come from a cache."""
        return self.scored < self.prompt_tokens

    @property
    def decoding(self) -> bool:
        """Only the last token is pending, and what follows it is wanted: one row gives one token."""
        return self.request is not None and self.pending == 1

    @property
    def emitted(self) -> int:
        """Tokens of the answer so far, those emitted elsewhere included: the index of the next draw."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def finish(self) -> Finish | None:
        """Why the answer ends with the last token; None while it goes on."""
        if self.request is None or not self.emitted:
            return None
        if self.tokens[-1] in self.request.stop_ids:
            return Finish.STOP
        return Finish.LENGTH if len(self.tokens) >= self.limit else None

    def append(self, token: int) -> None:
        """Take in the token that was drawn; a constraint moves on with it, or raises ConstraintFailed."""
        self.tokens.append(token)
        self.drew = True
        if self.edits is not None:
            self.edits.see(token)
        advance(self.constraint, token)

    def restart(self) -> None:
        """Forget everything computed; the tokens stay."""
        self.computed = 0
        if self.hidden_sum is not None:
            self.hidden_sum = HiddenSum(self.hidden_sum.pooling)
