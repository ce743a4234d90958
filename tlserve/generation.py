"""The contract between the front (HTTP, OpenAI documents, text) and the producers of tokens.

Owns the request, the events, and the protocols of backends, of models that can leave the memory, of constraints and of
compilers of grammars. The engine thread
(`tlserve.worker`) and the fleet (`tlserve.fleet`) implement `Backend`; the endpoints know nothing else of them. Knows
nothing of text, HTTP, threads and trio: token ids in, token ids out.

The exactness contract is stated over these types: for one `BackendInfo.system_fingerprint`, the tokens and the bits of the
logprobs of an answer depend on the fields `prompt`, `emitted`, `mu`, `sampling`, `seed`, `choice`, `max_tokens`, `stop_ids`,
`min_tokens`, `allowed_ids`, `banned` and `grammar` of its `GenerationRequest`, and on nothing else. All of them are plain data:
a request can go to another node as it is.
"""

from __future__ import annotations

import enum
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

import attrs

from tlserve.sampling_params import SamplingParams

if TYPE_CHECKING:  # the documents of the API need these types, and are also used without numpy
    import numpy as np
    from numpy.typing import NDArray


class TokenConstraint(Protocol):
    """The tokens that a grammar allows next; made by `chat`, used by the engine, which never sees the grammar."""

    def mask(self) -> NDArray[np.uint32]:
        """Return the allowed ids as a bit mask: bit `i % 32` of word `i // 32` stands for id `i`."""

    def accept(self, token: int) -> None:
        """Advance over `token`, which the mask allowed."""

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens (drafts that the sampler did not draw)."""


@attrs.frozen
class Grammar:
    """What an answer must match, as data: `source` is a text in the language of its compiler."""

    source: str


class CompiledGrammar(Protocol):
    """A grammar that is ready to be used, any number of times."""

    def start(self) -> TokenConstraint:
        """Return a fresh constraint; quick."""


class GrammarCompiler(Protocol):
    """Compiles grammars; made by `chat`, used by a backend, on any thread."""

    def compile(self, grammar: Grammar, stop_ids: frozenset[int]) -> CompiledGrammar:
        """Return `grammar` compiled, its constraints allowing `stop_ids` where the answer may end; slow.

        Raises ClientError for a grammar that cannot be compiled, or is too large.
        """

    def field(self, grammar: Grammar) -> str:
        """Return the field of the request that asked for `grammar`, for messages."""


@attrs.frozen(kw_only=True)
class GenerationRequest:
    """One sequence to continue. `emitted` are tokens already produced elsewhere: the sample index starts after them.

    `logprobs` None: no log-probabilities are computed; k >= 0: the drawn token's, and the k best ones, all from
    the raw distribution (before temperature and filters). `stop_ids` end the answer; the one drawn is reported as a token
    with `finish` STOP and is never part of the text. `max_tokens` counts `emitted` too. The first `min_tokens` tokens of the
    answer are not from `stop_ids`, unless the grammar allows nothing else: then the answer ends.

    `prompt_logprobs` None: not computed; k >= 0: those of the prompt's tokens, and the k best at each place; for a request with
    `emitted` they were reported before. Requests with different `cache_salt` never find each other's blocks in the prefix
    cache. `progress`: the request asks for `Progress` events. `tenant`: whose request it is; one tenant cannot take all places
    where grammars are compiled. `cache_owner`: whose caches it uses; requests of different owners share none.
    `conversation` is the same for all requests of a conversation that begins with a short text: a fleet sends them to one node.

    `allowed_ids`: no other token is drawn; () allows all. `banned`: the last token of each is not drawn where the answer ends
    with those before it. Both give way, as `min_tokens` does, where the grammar allows nothing else. `mu` is that of the event
    of the last emitted token.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    sampling: SamplingParams = attrs.field(factory=SamplingParams)
    emitted: tuple[int, ...] = ()
    choice: int = 0
    stop_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    allowed_ids: tuple[int, ...] = ()
    banned: tuple[tuple[int, ...], ...] = ()
    mu: float | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None
    priority: int = 0
    cache_salt: str = ""
    progress: bool = False
    request_id: str = ""
    tenant: str = ""
    cache_owner: str = ""
    conversation: str = ""

    @property
    def cache_namespace(self) -> str:
        """Return the name of what may share blocks with it: no two pairs of owner and salt have the same."""
        return f"{len(self.cache_owner)}:{self.cache_owner}{self.cache_salt}"


class Finish(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"


@attrs.frozen
class PrefillStarted:
    """The request left the queue; `cached_tokens` of its prompt came from the prefix cache."""

    cached_tokens: int = 0


@attrs.frozen
class TokenLogprob:
    """A token id with its natural-log probability."""

    token: int
    logprob: float


@attrs.frozen
class TokenEvent:
    """One drawn token; `index` counts from 0 and includes `emitted`. The event with `finish` set is the last one.

    `mu`, with mirostat: what a request that continues after this token needs.
    """

    index: int
    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    mu: float | None = None


@attrs.frozen
class PromptToken:
    """A token of the prompt: its log-probability in the raw distribution, and the best tokens at its place, best first."""

    token: int
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@attrs.frozen
class PromptLogprobs:
    """The prompt's tokens from index `start` on (the first token has none); they come in order, before the first `TokenEvent`."""

    start: int
    tokens: tuple[PromptToken, ...]


@attrs.frozen
class Progress:
    """The progress of a request that asked for it: `ahead` requests wait before it, or `done` prompt tokens are computed.

    `ahead` None: it has left the queue. May come before `PrefillStarted`, and never after the first `TokenEvent`.
    """

    ahead: int | None = None
    done: int = 0


GenerationEvent = PrefillStarted | PromptLogprobs | Progress | TokenEvent

TokenStream = AsyncIterator[Sequence[GenerationEvent]]
"""Batches of events in order, each with at least one event: all that is ready, so that one write can send it.

Only `Progress` may come before `PrefillStarted`; the iteration ends after the event with `finish`. Raises `NoCapacity`,
`EngineFailed` or `DrainCut`.
"""


def is_last_event(event: object) -> bool:
    """Return whether `event` is the last one of an answer: a token with its finish."""
    return isinstance(event, TokenEvent) and event.finish is not None


@attrs.frozen(kw_only=True)
class EmbeddingRequest:
    """Sequences to encode: each becomes one vector, in the order given."""

    inputs: tuple[tuple[int, ...], ...]
    priority: int = 0
    request_id: str = ""


@attrs.frozen(kw_only=True)
class BackendInfo:
    """What a backend serves. `context_tokens` bounds prompt and answer together.

    `admission_limit` bounds the requests admitted at once: one call with more can never be admitted. None: not known.

    `system_fingerprint` is a hash of everything that the exactness contract lets an answer depend on, except the request.
    """

    model_id: str
    context_tokens: int
    vocabulary_size: int
    embedding_size: int
    system_fingerprint: str
    kernels: str
    admission_limit: int | None = None
    ready: bool = True
    not_ready_reason: str = ""


@attrs.frozen
class Distribution:
    """The number of values in each bucket.

    `counts[i]` counts values up to `bounds[i]`, the last one those beyond all bounds; `total` is the sum of the values.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: float = 0.0


@attrs.frozen(kw_only=True)
class EngineStatistics:
    """A snapshot of the engine's gauges and counters; counters (`*_total`) never fall.

    `kv_used` counts blocks that live sequences hold; blocks that only the prefix cache holds are `kv_cached`.
    """

    kv_used: int = 0
    kv_cached: int = 0
    kv_free: int = 0
    queue_depth: int = 0
    active_sequences: int = 0
    batch_tokens: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    preemptions_total: int = 0
    kv_evictions_total: int = 0
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
    forward_seconds_total: float = 0.0
    step_durations_s: Distribution = Distribution()
    step_rows: Distribution = Distribution()

    @property
    def prefix_cache_hit_ratio(self) -> float:
        """Prompt tokens found in the prefix cache, over prompt tokens looked up; 0 before the first lookup."""
        return (
            self.prefix_cache_hits_total / self.prefix_cache_queries_total if self.prefix_cache_queries_total else 0.0
        )


class Backend(Protocol):
    """Something that continues token sequences: the local engine, or a fleet of them."""

    def info(self) -> BackendInfo:
        """Describe what is served, and whether it is ready."""

    def statistics(self) -> EngineStatistics:
        """Return the latest snapshot of gauges and counters."""

    def generate(self, request: GenerationRequest) -> AbstractAsyncContextManager[TokenStream]:
        """Admit `request` and stream its tokens; leaving the block aborts it.

        Entering raises `Overloaded`, `Draining`, `ContextLengthExceeded` or `EngineFailed`; then nothing was admitted.
        """

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Return one (embedding_size,) float32 vector per input; raises as `generate` and its stream do.

        Its length is 1, unless the files of a sentence encoder say that it is not normalised.
        """

    async def drain(self) -> None:
        """Admit nothing more, and return when every admitted request has ended."""


class ModelState(enum.Enum):
    """Where a model is between its files and the memory."""

    LOADED = "loaded"
    LOADING = "loading"
    UNLOADING = "unloading"
    UNLOADED = "unloaded"
    FAILED = "failed"


@attrs.frozen(kw_only=True)
class ModelStatus:
    """The state of one model; counters (`*_total`) never fall.

    `memory_bytes`: its weights, and its keys and values when full; 0 while it is not loaded. `leaves_in_s`: how long it stays
    if no request comes. FAILED: the latest load failed; the next request tries again.
    """

    state: ModelState = ModelState.LOADED
    memory_bytes: int = 0
    leaves_in_s: float = math.inf
    loads_total: int = 0
    unloads_total: int = 0
    load_failures_total: int = 0
    load_seconds_total: float = 0.0


class Residency(Protocol):
    """Whether a model is in memory, and how a request keeps it there."""

    @property
    def can_leave(self) -> bool:
        """Whether the model can leave the memory at all."""

    def status(self) -> ModelStatus:
        """Return the state of the model now."""

    def held(self) -> AbstractAsyncContextManager[float]:
        """Wait until the model is loaded, and keep it so for the block; gives the seconds of the wait.

        Raises `Overloaded`, `Draining`, `DrainCut`, `ModelLoading`, `ModelLoadFailed` or `ModelTooLarge`.
        """

    def keep_for(self, idle_s: float) -> None:
        """Let the model leave when no request has held it for `idle_s` seconds; infinity: never for that reason."""
