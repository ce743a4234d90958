"""Runs on real arithmetic replay, reach every case, and detect a model whose sums depend on neighbours."""

from collections import Counter

import numpy as np
import pytest

from tests.kit.engine.engine_runs import VOCABULARY, RandomRun, tokens_of
from tests.kit.engine.hash_model import HashModel
from tests.kit.engine.real_runs import CONTINUED, Models, RealRun, play, tiny_models
from tlserve.generation import GenerationRequest, TokenEvent
from tlserve.kernels.interface import KvStore, Model, StepBatch, StepOutput

WORDS = tuple(range(VOCABULARY))
REACHED = ("preemptions_total", "kv_evictions_total", "prefix_cache_hits_total", "accepted_tokens_total")


def answers(run: RandomRun) -> dict[int, list[TokenEvent]]:
    return {key: tokens_of(events) for key, events in run.events.items()}


@pytest.mark.slow
def test_a_run_replays_from_its_seed_and_reaches_every_part_of_the_engine() -> None:
    reached, kinds = Counter[str](), set[str]()
    for seed in range(60):
        run, again = (RealRun(seed, HashModel(), words=WORDS).play() for _ in range(2))
        assert answers(run) == answers(again)
        assert run.requests == again.requests
        statistics = run.engine.statistics()
        reached.update({name: getattr(statistics, name) > 0 for name in REACHED})
        kinds |= {getattr(item, "request_id", "embedding") for item in run.requests.values()}
    assert min(reached[name] for name in REACHED) >= 3
    assert kinds == {"plain", "resumed", "constrained", CONTINUED, "embedding"}


def test_a_continued_request_has_the_beginning_of_its_own_answer() -> None:
    runs = [RealRun(seed, HashModel(), words=WORDS).play() for seed in range(20)]
    items = [item for run in runs for item in run.requests.values() if isinstance(item, GenerationRequest)]
    assert any(item.request_id == CONTINUED and item.emitted for item in items)


class Neighbourly:
    """A tiny llama that breaks the contract: a sum changes its order, and a last bit, with the number of rows in its step."""

    def __init__(self, model: Model) -> None:
        self.spec, self.new_kv_store, self._model = model.spec, model.new_kv_store, model

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        output = self._model.forward(batch, kv)
        output.logits[:] = np.nextafter(output.logits, np.float32(0 if len(batch.tokens) > 8 else np.inf))
        return output


def test_a_last_bit_that_depends_on_the_neighbours_is_detected() -> None:
    models = tiny_models()
    broken = Models(tuple(map(Neighbourly, models.all)), Neighbourly(models.truth), models.words)
    with pytest.raises(AssertionError, match="seed"):
        for seed in range(5):
            play(broken, seed)
