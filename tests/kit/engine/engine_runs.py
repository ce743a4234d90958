"""Drive an engine by hand: to the end, one request alone, and a random schedule that replays from its seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tests.kit.engine.alternating import ALTERNATING, AlternatingCompiler
from tests.kit.engine.block_invariants import check_blocks, queue_position
from tests.kit.engine.hash_model import HashModel
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.events import EmbeddingReady
from tlserve.generation import GenerationRequest, Progress, PromptLogprobs, PromptToken, TokenConstraint, TokenEvent
from tlserve.kernels.interface import Model
from tlserve.sampling_params import Breaker, Dry, SamplingParams

VOCABULARY = 61

Item = GenerationRequest | tuple[int, ...]
"""A request to generate, or the tokens to embed."""

PLAIN = EngineConfig(prefix_cache="none", prefill_chunk=0, kv_blocks=16, block_size=64)


def run_to_end(engine: Engine, most_steps: int = 5000) -> dict[int, list[Any]]:
    """Step until there is no work and check the blocks after every step; return the events by key, in order."""
    happened: dict[int, list[Any]] = {}
    for _ in range(most_steps):
        if not engine.has_work:
            return happened
        for event in engine.step():
            happened.setdefault(event.key, []).append(event.what)
        check_blocks(engine)
    raise AssertionError(f"still busy after {most_steps} steps")


def tokens_of(events: Iterable[object]) -> list[TokenEvent]:
    return [event for event in events if isinstance(event, TokenEvent)]


def prompt_tokens_of(events: Sequence[object]) -> list[PromptToken]:
    """Return the reported prompt tokens: each once, in order, before the first token of the answer."""
    told = [event for event in events if isinstance(event, PromptLogprobs)]
    kinds = [type(event) for event in events if isinstance(event, PromptLogprobs | TokenEvent)]
    assert kinds == sorted(kinds, key=[PromptLogprobs, TokenEvent].index)
    found = [token for event in told for token in event.tokens]
    places = [event.start for event in told]
    assert places == [1 + sum(len(event.tokens) for event in told[:i]) for i in range(len(told))]
    return found


def alone(request: GenerationRequest, model: Model | None = None, config: EngineConfig = PLAIN) -> list[TokenEvent]:
    """The oracle: the token events of `request` on a fresh engine with the simplest settings."""
    return tokens_of(all_alone(request, model, config))


def all_alone(request: GenerationRequest, model: Model | None = None, config: EngineConfig = PLAIN) -> list[Any]:
    """All its events, in the same way."""
    engine = Engine(model or HashModel(), config)
    key = engine.add_request(request, constraint_of(request))
    return run_to_end(engine)[key]


def check_progress(request: GenerationRequest, events: Sequence[object]) -> None:
    """Assert that progress was sent only on request, only on a change, and never after the first token."""
    told = [event for event in events if isinstance(event, Progress)]
    first = next((i for i, event in enumerate(events) if isinstance(event, TokenEvent)), len(events))
    assert told == [event for event in events[:first] if isinstance(event, Progress)]
    assert request.progress or not told
    assert all(one != other for one, other in itertools.pairwise(told))
    assert all(event.ahead is None or event.done == 0 for event in told)
    assert not (request.progress and first < len(events)) or told[-1] == Progress(done=len(request.prompt))


def embedded_alone(tokens: Sequence[int], model: Model | None = None) -> NDArray[np.float32]:
    engine = Engine(model or HashModel(), PLAIN)
    key = engine.add_embedding(tokens)
    return run_to_end(engine)[key][-1].vector


def ids(rng: random.Random, count: int) -> list[int]:
    """Return random token ids with some repetition, so that drafts find matches."""
    few = [rng.randrange(VOCABULARY) for _ in range(3)]
    return [rng.choice(few) if rng.random() < 0.3 else rng.randrange(VOCABULARY) for _ in range(count)]


def random_edits(rng: random.Random, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    """Return penalties and biases as fields of `SamplingParams`: none of them half of the time."""
    if rng.random() < 0.5:
        return {}
    biased = rng.sample(range(vocabulary), min(vocabulary, rng.choice([0, 0, 1, 6])))
    return {
        "repetition_penalty": rng.choice([1.0, 1.0, 1.3, 2.0, 0.7]),
        "presence_penalty": rng.choice([0.0, 0.0, 0.9, 2.0, -0.5]),
        "frequency_penalty": rng.choice([0.0, 0.0, 0.4, 2.0, -0.3]),
        "logit_bias": tuple((token, rng.choice([-100.0, 100.0, rng.gauss(0, 3)])) for token in biased),
    }


def random_sampling(rng: random.Random, vocabulary: int = VOCABULARY) -> SamplingParams:
    return SamplingParams(
        **random_edits(rng, vocabulary),
        temperature=rng.choice([0, 0, 0.3, 0.7, 1.0, 1.5]),
        top_k=rng.choice([0, 0, 1, 5, 40]),
        top_p=rng.choice([1.0, 1.0, 0.9, 0.5]),
        min_p=rng.choice([0.0, 0.0, 0.1]),
    )


def random_filters(rng: random.Random) -> dict[str, Any]:
    """Return a chain of filters, mirostat or DRY as fields of `SamplingParams`: none of them half of the time."""
    breaker = Breaker(heads=bytes([rng.randrange(256)]), tail=tuple(ids(rng, rng.randrange(3))))
    dry = Dry(multiplier=2.0, allowed_length=rng.choice([1, 2]), last_n=rng.choice([None, 10]), breakers=(breaker,))
    kinds: list[dict[str, Any]] = [
        {"typical_p": 0.8, "xtc_probability": 0.5, "min_keep": 2, "samplers": rng.choice([None, ("xtc", "typical_p")])},
        {
            "top_n_sigma": 1.5,
            "dynatemp_range": 0.5,
            "dynatemp_exponent": 2.0,
            "xtc_probability": 0.2,
            "xtc_threshold": 0.05,
        },
        {"mirostat": rng.choice([1, 2]), "mirostat_tau": 2.0, "mirostat_eta": 0.5},
        {"dry": dry},
        {"penalty_last_n": rng.choice([0, 1, 7]), "presence_penalty": 1.0, "repetition_penalty": 1.5},
    ]
    return rng.choice([*[{} for _ in kinds], *kinds])


def random_bound(rng: random.Random) -> dict[str, Any]:
    """Return allowed ids and banned runs of tokens as fields of a request: mostly none."""
    runs = tuple(tuple(ids(rng, rng.choice([1, 1, 2, 3]))) for _ in range(rng.randrange(60)))
    allowed = tuple(rng.sample(range(VOCABULARY), rng.randrange(1, VOCABULARY)))
    return rng.choice(
        [{}, {}, {}, {"allowed_ids": allowed}, {"banned": runs}, {"banned": runs, "allowed_ids": allowed}]
    )


def random_request(rng: random.Random, beginnings: Sequence[list[int]]) -> GenerationRequest:
    prompt = rng.choice(beginnings)[: rng.randrange(0, 60)] + ids(rng, rng.randrange(1, 40))
    kind = rng.choice(["plain"] * 6 + ["resumed", "constrained"])
    emitted = ids(rng, rng.randrange(1, 6)) if kind == "resumed" else []
    max_tokens = len(emitted) + rng.randrange(1, 30)
    return GenerationRequest(
        prompt=tuple(prompt),
        emitted=tuple(emitted),
        max_tokens=max_tokens,
        min_tokens=rng.choice([0, 0, rng.randrange(max_tokens + 1)]),
        prompt_logprobs=rng.choice([None, None, None, None, 0, 2]),
        cache_salt=rng.choice(["", "", "", "salt"]),
        progress=rng.random() < 0.3,
        seed=rng.randrange(2**64),
        choice=rng.randrange(3),
        sampling=attrs.evolve(random_sampling(rng), **random_filters(rng)),
        stop_ids=frozenset(rng.sample(range(VOCABULARY), rng.choice([0, 1, 4]))) - set(emitted),
        logprobs=rng.choice([None, 0, 3]),
        priority=rng.choice([0, 0, 5, -5]),
        grammar=ALTERNATING if kind == "constrained" else None,
        request_id=kind,
        **random_bound(rng),
    )


def constraint_of(request: GenerationRequest) -> TokenConstraint | None:
    """Return a fresh constraint if the request has a grammar: a constraint has a state, so never share one."""
    return AlternatingCompiler().compile(request.grammar, request.stop_ids) if request.grammar else None


def random_config(rng: random.Random, most_tokens: int, block_sizes: Sequence[int] = (1, 2, 4, 8, 16)) -> EngineConfig:
    block_size = rng.choice(block_sizes)
    needed = -(-most_tokens // block_size)
    return EngineConfig(
        max_num_seqs=rng.choice([1, 2, 4, 16]),
        max_waiting=1000,
        prefill_chunk=rng.choice([0, 1, 3, 16, 64]),
        block_size=block_size,
        kv_blocks=needed + rng.choice([0, 0, 1, needed // 2, 3 * needed]),
        prefix_cache=rng.choice(["none", "hash", "radix"]),
        speculative=rng.choice(["none", "prompt_lookup"]),
        speculative_tokens=rng.choice([1, 3, 8]),
    )


@attrs.define(eq=False)
class RandomRun:
    """A random schedule on one random engine: requests that share beginnings, with arrivals and aborts.

    `wrong` names every request whose bits differ from those alone on the model `truth` (default: the same model).
    """

    seed: int
    model: Model = attrs.field(factory=HashModel)
    truth: Model | None = None
    engine: Engine = attrs.field(init=False)
    requests: dict[int, Item] = attrs.field(factory=dict)
    events: dict[int, list[Any]] = attrs.field(factory=dict)
    aborted: set[int] = attrs.field(factory=set)
    idle_steps: int = 0

    def play(self) -> RandomRun:
        rng = random.Random(self.seed)
        beginnings = [ids(rng, 60) for _ in range(2)]
        coming = [self._random_item(rng, beginnings) for _ in range(rng.randrange(2, 9))]
        most = max(len(c.prompt) + c.max_tokens if isinstance(c, GenerationRequest) else len(c) for c in coming)
        self.engine = Engine(self.model, self._random_config(rng, most))
        for _ in range(20_000):
            while coming and rng.random() < 0.4:
                self._add(coming.pop())
            if rng.random() < 0.02 and self.requests:
                self._abort(rng.choice(sorted(self.requests)))
            self._step()
            if not coming and not self.engine.has_work:
                return self
        raise AssertionError(f"seed {self.seed}: no end")

    @property
    def wrong(self) -> list[int]:
        return [key for key in self.requests if not self._right(key)]

    def _random_config(self, rng: random.Random, most_tokens: int) -> EngineConfig:
        return random_config(rng, most_tokens)

    def _random_item(self, rng: random.Random, beginnings: Sequence[list[int]]) -> Item:
        if rng.random() < 0.2:
            return tuple(rng.choice(beginnings)[: rng.randrange(1, 60)])
        return random_request(rng, beginnings)

    def _step(self) -> None:
        """Make one step; with work there are never two steps in a row that compute nothing."""
        busy, before = self.engine.has_work, self.engine.statistics().steps_total
        for event in self.engine.step():
            self.events[event.key].append(event.what)
        check_blocks(self.engine)
        self.idle_steps = self.idle_steps + 1 if busy and self.engine.statistics().steps_total == before else 0
        assert self.idle_steps < 2, f"seed {self.seed}: no progress"

    def _add(self, item: Item) -> None:
        if isinstance(item, GenerationRequest):
            key = self.engine.add_request(item, constraint_of(item))
        else:
            key = self.engine.add_embedding(item)
        self.requests[key], self.events[key] = item, []

    def _abort(self, key: int) -> None:
        if queue_position(self.engine, key) is not None or key in [s.key for s in self.engine.scheduler.running]:
            self.aborted.add(key)
        self.engine.abort(key)

    def _right(self, key: int) -> bool:
        item, got = self.requests[key], self.events[key]
        if isinstance(item, GenerationRequest):
            check_progress(item, got)
            expected, tokens = self._alone(item), tokens_of(got)
            answers = tokens == expected[: len(tokens)] if key in self.aborted else tokens == expected
            return answers and self._is_told_right(item, got)
        if key in self.aborted:
            return not any(isinstance(event, EmbeddingReady) for event in got)
        return got[-1].vector.tobytes() == embedded_alone(item, self.truth or self.model).tobytes()

    def _alone(self, request: GenerationRequest) -> list[TokenEvent]:
        return alone(request, self.truth or self.model)

    def _is_told_right(self, request: GenerationRequest, got: Sequence[object]) -> bool:
        """Say whether the reported prompt tokens are those of the request alone, all of them if there is an answer."""
        if request.prompt_logprobs is None or request.emitted:
            return prompt_tokens_of(got) == []
        told, expected = prompt_tokens_of(got), prompt_tokens_of(all_alone(request, self.truth or self.model))
        return told == expected if tokens_of(got) else told == expected[: len(told)]
