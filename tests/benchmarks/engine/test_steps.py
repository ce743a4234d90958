"""The bare engine: what is timed, and that nothing is left behind."""

import pytest

from tests.benchmarks.engine.sampling_costs import kinds_of_sampling, measure_sampling
from tests.benchmarks.engine.steps import BareEngine, EnginePlan, measure_engine
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.errors import OperatorError
from tlserve.model.load import builtin_model_path, load_model

VOCABULARY = 256


@pytest.fixture
def engine():
    path = builtin_model_path("succ")
    assert path is not None
    model = load_model(path).model
    return Engine(model, EngineConfig(max_num_seqs=4, kv_blocks=256))


def plan(**fields):
    return EnginePlan(**{"prefill_tokens": 20, "rows": (1, 4), "prompt_tokens": 8, "steps": 5, "repeats": 2, **fields})


@pytest.mark.spec("BENCH-30")
def test_the_prefill_and_every_number_of_rows_are_measured_in_turn(engine):
    done = []
    figures = measure_engine(engine, VOCABULARY, plan(), lambda: done.append(1))
    assert [row.rows for row in figures] == [0, 1, 4]
    assert len(done) == plan().total
    assert not engine.has_work
    assert all(row.step_ms.low <= row.step_ms.median <= row.step_ms.high for row in figures)
    assert all(0 <= row.outside_forward.median < 1 for row in figures)


@pytest.mark.spec("BENCH-30")
def test_every_row_makes_a_token_in_every_step_that_is_timed(engine):
    timed = BareEngine(engine, VOCABULARY, seed=1).time_steps(rows=4, prompt_tokens=8, steps=5)
    assert (timed.steps, timed.tokens) == (5, 20)
    assert 0 < timed.forward_s < timed.seconds


def test_a_prefill_is_timed_to_its_first_token(engine):
    timed = BareEngine(engine, VOCABULARY, seed=1).time_prefill(20)
    assert timed.tokens == 20
    assert timed.steps == 1


@pytest.mark.spec("BENCH-32")
def test_every_kind_of_sampling_is_timed_in_turn_with_the_greedy_step(engine):
    done = []
    bare = BareEngine(engine, VOCABULARY, seed=1)
    costs = measure_sampling(bare, kinds_of_sampling(VOCABULARY), plan(), lambda: done.append(1))
    assert [(cost.kind, cost.rows) for cost in costs] == [(k, n) for n in (1, 4) for k in kinds_of_sampling(VOCABULARY)]
    assert len(done) == 2 * len(costs)
    assert all(cost.over_greedy.median == 1 for cost in costs if cost.kind == "greedy")
    assert all(cost.over_greedy.low <= cost.over_greedy.high for cost in costs)
    assert not engine.has_work


def test_a_run_that_does_not_fit_is_refused_with_the_limit(engine):
    with pytest.raises(OperatorError, match="max_num_seqs"):
        measure_engine(engine, VOCABULARY, plan(rows=(5,)), lambda: None)
    with pytest.raises(OperatorError, match="context holds"):
        measure_engine(engine, VOCABULARY, plan(prefill_tokens=100_000), lambda: None)
