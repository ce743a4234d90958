"""The arithmetic of the bench, on outcomes whose figures are known."""

import pytest

from tlserve.bench.comparison import LoadRun, loads_of, ratios, select, spread_of
from tlserve.bench.figures import figures_of, percentile, prefill_rate
from tlserve.bench.load import Closed
from tlserve.bench.run import LoadPlan, outside_forward
from tlserve.bench.samples import Failure, Sample
from tlserve.generation import EngineStatistics


def sample(due_s, first_token_s, last_token_s, prompt_tokens=10, output_tokens=5, counted=True):
    return Sample(
        due_s=due_s,
        first_token_s=first_token_s,
        last_token_s=last_token_s,
        ended_s=last_token_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        counted=counted,
    )


def failure(kind, due_s=0.0, ended_s=1.0):
    return Failure(kind=kind, message="", due_s=due_s, ended_s=ended_s)


ONE = Closed(1)


def run(target, rate, repeat=0, load=ONE):
    """Return a run of one second in which `rate` tokens came."""
    return LoadRun(target=target, load=load, repeat=repeat, figures=figures_of([sample(0, 0.5, 1, output_tokens=rate)]))


@pytest.mark.spec("BENCH-20")
@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4), (0.25, 1)])
def test_a_percentile_is_a_value_that_occurred(share, value):
    assert percentile([4, 1, 3, 2], share) == value


@pytest.mark.spec("BENCH-20")
def test_rates_are_over_the_whole_run():
    figures = figures_of([sample(0, 1, 3), sample(1, 2, 5)])
    assert figures.seconds == 5
    assert figures.output_tokens_per_s == 10 / 5
    assert figures.total_tokens_per_s == 30 / 5
    assert figures.requests_per_s == 2 / 5


def test_the_prefill_rate_ends_with_the_last_first_token():
    assert prefill_rate([sample(0, 1, 3), sample(1, 2, 5)]) == 20 / 2
    assert prefill_rate([failure("broken")]) is None


def test_times_are_in_milliseconds_and_per_token_after_the_first():
    figures = figures_of([sample(0, 0.5, 2.5)])
    assert figures.first_token_ms.p50 == 500
    assert figures.per_token_ms.p99 == 500
    assert figures.whole_ms.p90 == 2500


def test_an_answer_of_one_token_has_no_time_per_token():
    assert figures_of([sample(0, 1, 1, output_tokens=1)]).per_token_ms is None


@pytest.mark.spec("BENCH-11")
def test_failures_are_counted_by_kind_but_not_part_of_the_times():
    figures = figures_of([sample(0, 1, 2), failure("status 429"), failure("status 429"), failure("broken", ended_s=4)])
    assert figures.errors == {"status 429": 2, "broken": 1}
    assert (figures.requests, figures.answered) == (4, 1)
    assert figures.first_token_ms.p99 == 1000
    assert figures.output_tokens_per_s == 5 / 4, "the time that failures took counts"


def test_a_run_without_answers_has_no_times():
    figures = figures_of([failure("connect")])
    assert figures.first_token_ms is None
    assert figures.output_tokens_per_s == 0


@pytest.mark.spec("BENCH-12")
def test_one_answer_without_usage_makes_the_whole_run_count_pieces():
    assert figures_of([sample(0, 1, 2)]).counted
    assert not figures_of([sample(0, 1, 2), sample(0, 1, 2, counted=False)]).counted


@pytest.mark.spec("BENCH-21")
def test_a_ratio_is_of_medians_and_its_range_of_neighbours():
    runs = [run("a", 10, 0), run("b", 5, 0), run("a", 40, 1), run("b", 10, 1), run("a", 20, 2), run("b", 20, 2)]
    found = next(ratio for ratio in ratios(runs, "a", "b") if ratio.measure == "output_tokens_per_s")
    assert (found.spread.median, found.spread.low, found.spread.high) == (20 / 10, 1, 4)


def test_a_measure_without_values_is_not_compared():
    dead = [LoadRun(target=name, load=Closed(1), repeat=0, figures=figures_of([failure("connect")])) for name in "ab"]
    assert ratios(dead, "a", "b") == []


def test_runs_are_found_by_target_and_load_in_the_order_of_the_runs():
    runs = [run("a", 1, 0, Closed(8)), run("a", 2, 0, Closed(1)), run("a", 3, 1, Closed(8))]
    assert loads_of(runs) == [Closed(8), Closed(1)]
    assert [found.figures.output_tokens for found in select(runs, "a", Closed(8))] == [1, 3]
    assert spread_of([3.0, 1.0, 2.0]).median == 2


def test_the_share_outside_the_forward_pass_is_of_the_time_between_tokens():
    before = EngineStatistics(step_seconds_total=1, forward_seconds_total=1)
    after = EngineStatistics(step_seconds_total=3, forward_seconds_total=2.5)
    assert outside_forward(before, after) == 0.25
    assert outside_forward(before, before) == 0


def test_a_plan_knows_how_many_requests_it_sends():
    plan = LoadPlan(loads=(Closed(1), Closed(8)), rounds=2, warm_up=1, repeats=3, prefill_words=4)
    assert plan.total(targets=2) == 2 * 3 * ((2 + 1 + 1) + (16 + 1 + 8))
