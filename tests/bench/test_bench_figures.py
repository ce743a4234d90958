"""The arithmetic of the bench, on samples whose figures are known."""

import json
from itertools import islice

import pytest

from tlserve.bench.figures import decode_rate, figures_of, percentile, prefill_rate
from tlserve.bench.load import Sample
from tlserve.bench.run import Plan, outside_forward
from tlserve.bench.workload import Workload
from tlserve.cli.entry import main
from tlserve.generation import EngineStatistics


def sample(started_s, first_token_s, last_token_s, prompt_tokens=10, output_tokens=5):
    return Sample(
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        started_s=started_s,
        first_token_s=first_token_s,
        last_token_s=last_token_s,
    )


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.51, 3), (0.99, 4), (1.0, 4), (0.25, 1)])
def test_a_percentile_is_a_value_that_occurred(share, value):
    assert percentile([4, 1, 3, 2], share) == value


def test_rates_are_over_the_whole_run():
    samples = [sample(0, 1, 3), sample(1, 2, 5)]
    assert prefill_rate(samples) == 20 / 2
    assert decode_rate(samples) == 10 / 5


def test_times_are_in_milliseconds_and_per_token_after_the_first():
    figures = figures_of(1, [sample(0, 1, 1)], [sample(0, 0.5, 2.5)], None)
    assert figures.first_token_p50_ms == 500
    assert figures.per_token_p50_ms == 500
    assert figures.outside_forward is None


def test_the_share_outside_the_forward_pass_is_of_the_time_between():
    before = EngineStatistics(step_seconds_total=1, forward_seconds_total=1)
    after = EngineStatistics(step_seconds_total=3, forward_seconds_total=2.5)
    assert outside_forward(before, after) == 0.25
    assert outside_forward(before, before) == 0


def test_prompts_are_new_each_time_and_the_same_for_the_same_seed():
    workload = Workload(model="m", prompt_words=8, output_tokens=2)
    bodies = list(islice(workload.bodies(1), 20))
    assert len(set(bodies)) == 20
    assert bodies == list(islice(workload.bodies(1), 20))


def test_a_plan_knows_how_many_requests_it_sends():
    assert Plan(model="m", streams=(1, 8), rounds=2).requests == 1 + 3 + 24


def test_the_command_measures_a_server_of_its_own(capsys):
    options = "--model succ --streams 1,2 --rounds 1 --output-tokens 4 --prefill-words 4 --prompt-words 4 --json"
    assert main(["bench", *options.split()]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["streams"] for row in rows] == [1, 2]
    assert all(row["decode_tokens_per_s"] > 0 and 0 <= row["outside_forward"] <= 1 for row in rows)
