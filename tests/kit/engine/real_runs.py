"""Random schedules on models with real arithmetic: words instead of random ids, longer prompts, answers cut and continued.

The ids that `engine_runs` draws are mapped to `VOCABULARY` tokens of the model, so that the model repeats itself and drafts hit.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import attrs

from tests.kit.engine.engine_runs import VOCABULARY, Item, RandomRun, random_config
from tests.kit.model.native_models import COMPILED, INT12, MIXED, block_shape, ordered, stored
from tests.kit.model.native_models import native as native_model
from tlserve.engine.config import EngineConfig
from tlserve.generation import EngineStatistics, GenerationRequest, TokenEvent
from tlserve.kernels.choose import KernelChoice
from tlserve.kernels.interface import Model
from tlserve.kernels.native import native_isas
from tlserve.model.decoder.numerics import Numerics
from tlserve.model.load import load_model
from tlserve.text.tokenizer import build_tokenizer

CONTINUED = "continued"
BLOCK_SIZES = (1, 3, 8, 16, 32, 64)
PERIOD_TOKENS, PERIODS = (
    48,
    3,
)  # of a common beginning: more than two tiles of keys, and equal blocks in different places
TEXT = """One day the little girl and her dog went to the park to play. The sun was warm, and they sat by the big old tree.
"What is your name?" said a boy. "I am Tom." They ran, and they sang, and then it was time to go home. Numbers: 1, 2, 3, 4, 5.
The king of that country had three sons, and every year in winter he asked them: who can bring me a bird that speaks?"""


@attrs.frozen(eq=False)
class Models:
    """Models that must all give the same bits, the one that computes each request alone, and the ids of the words."""

    all: tuple[Model, ...]
    truth: Model
    words: tuple[int, ...]

    def __getitem__(self, seed: int) -> Model:
        return self.all[seed % len(self.all)]


def real_models(path: Path, activations: str, kv_precision: str, runs_on: Sequence[tuple[str, int]]) -> Models:
    """Return the real model at `path` as each (instruction set, threads) of `runs_on`; the first one is the truth.

    Native kernels run it if they were built; kernels that disagree with numpy are refused.
    """
    choices = [
        (KernelChoice(kernels=COMPILED, activations=activations, kv_precision=kv_precision, isa=isa), threads)
        for isa, threads in runs_on
    ]
    loaded = [load_model(path, threads=threads, kernels=choice) for choice, threads in choices]
    ids = build_tokenizer(loaded[0].metadata).encode(TEXT)
    models = tuple(one.model for one in loaded)
    words = tuple(dict.fromkeys(ids))[:VOCABULARY]
    assert len(words) == VOCABULARY
    return Models(models, models[0], words)


def tiny_models(numerics: Numerics = INT12) -> Models:
    """Return a tiny llama of mixed block formats on every instruction set that was built; its truth is ordered numpy."""
    shape = block_shape()
    tensors = stored(shape, MIXED)
    truth = ordered(shape, tensors, numerics)
    native = [native_model(shape, tensors, numerics, isa, threads) for isa in native_isas() for threads in (1, 2)]
    return Models(tuple(native) or (truth,), truth, tuple(range(VOCABULARY)))


@attrs.define(eq=False)
class RealRun(RandomRun):
    """A `RandomRun` whose ids are `words`, with block sizes up to a whole tile.

    Some requests continue an answer that was cut: their truth is the rest of the whole answer.
    """

    words: tuple[int, ...] = attrs.field(kw_only=True)

    def _random_config(self, rng: random.Random, most_tokens: int) -> EngineConfig:
        """Return a configuration in which several run at once, often in a pool for one, and in chunks of more than a row."""
        config = random_config(rng, most_tokens, BLOCK_SIZES)
        pool_for_one = -(-most_tokens // config.block_size)
        return attrs.evolve(
            config,
            kv_blocks=rng.choice([pool_for_one, pool_for_one + 1, config.kv_blocks]),
            max_num_seqs=2 * config.max_num_seqs,
            prefill_chunk=5 * config.prefill_chunk,
            sampler_threads=rng.choice([1, 2]),
        )

    def _random_item(self, rng: random.Random, beginnings: Sequence[list[int]]) -> Item:
        item = super()._random_item(rng, beginnings)
        instructed = self.seed % 5 == 0
        common = self._in_words(beginnings[0][:PERIOD_TOKENS] * PERIODS) if instructed else ()
        if not isinstance(item, GenerationRequest):
            return (*common, *self._in_words(item))
        request = self._request_in_words(item, common)
        return self._continued(rng, request) if rng.random() < 0.25 and not request.emitted else request

    def _in_words(self, ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.words[i] for i in ids)

    def _request_in_words(self, request: GenerationRequest, common: Iterable[int]) -> GenerationRequest:
        return attrs.evolve(
            request,
            prompt=(*common, *self._in_words(request.prompt)),
            emitted=self._in_words(request.emitted),
            stop_ids=frozenset(self._in_words(request.stop_ids)) - frozenset(self._in_words(request.emitted)),
            sampling=attrs.evolve(
                request.sampling,
                logit_bias=tuple((self.words[i], bias) for i, bias in request.sampling.logit_bias),
            ),
        )

    def _continued(self, rng: random.Random, request: GenerationRequest) -> GenerationRequest:
        events = super()._alone(request)
        cut = rng.randrange(len(events))
        emitted = tuple(event.token for event in events[:cut])
        return attrs.evolve(request, emitted=emitted, mu=events[cut - 1].mu if cut else None, request_id=CONTINUED)

    def _alone(self, request: GenerationRequest) -> list[TokenEvent]:
        if request.request_id != CONTINUED:
            return super()._alone(request)
        return super()._alone(attrs.evolve(request, emitted=(), mu=None))[len(request.emitted) :]


def play(models: Models, seed: int) -> EngineStatistics:
    """Play the schedule of `seed` on one of `models` and return its engine's statistics; a wrong answer is an error."""
    print(f"seed {seed}")
    run = RealRun(seed, models[seed], models.truth, words=models.words).play()
    assert not run.wrong, f"seed {seed}: {[run.requests[key] for key in run.wrong]}"
    return run.engine.statistics()
