"""The same as `test_schedules_random`, on a real forward pass: a seeded llama of two layers in numpy."""

import pytest

from tests.kit.engine.engine_runs import RandomRun
from tests.kit.model.tiny_models import KIN, tiny_llama


@pytest.mark.spec("CASE-29", "ENG-1")
def test_every_request_of_a_random_schedule_on_a_llama_has_its_own_bits():
    model = tiny_llama()
    preemptions = hits = 0
    for seed in range(7000, 7020):
        print(f"seed {seed}")
        run = RandomRun(seed, model).play()
        assert not run.wrong, f"seed {seed}: {[run.requests[key] for key in run.wrong]}"
        preemptions += run.engine.statistics().preemptions_total
        hits += run.engine.statistics().prefix_cache_hits_total
    assert preemptions
    assert hits


@pytest.mark.spec("MOD-21")
@pytest.mark.parametrize("name", ["short window", "all together"])
def test_every_request_of_a_random_schedule_on_a_family_model_has_its_bits(name):
    model = tiny_llama(**KIN[name])
    for seed in range(7100, 7105):
        print(f"seed {seed}")
        run = RandomRun(seed, model).play()
        assert not run.wrong, f"seed {seed}: {[run.requests[key] for key in run.wrong]}"
