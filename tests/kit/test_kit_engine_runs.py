"""A random run replays from its seed, and sees an engine or a model that breaks the contract."""

import math
import random

import numpy as np
import pytest

from tests.kit import naive_sampler as naive
from tests.kit.alternating import Alternating
from tests.kit.engine_runs import RandomRun, constraint_of, random_request
from tests.kit.hash_model import HashModel
from tlserve.generation import SamplingParams


def history(seed):
    run = RandomRun(seed).play()
    return run.requests, run.aborted, [str(events) for events in run.events.values()]


def test_a_random_run_replays_from_its_seed():
    assert history(5) == history(5)
    assert history(5) != history(6)


class NeighbourlyModel(HashModel):
    """Breaks the contract: a row changes a little with the number of rows beside it, as a fast product does."""

    def forward(self, batch, kv):
        output = super().forward(batch, kv)
        output.logits[:] += np.float32(1e-6) * (len(batch.tokens) > 40)
        return output


def test_a_model_whose_rows_depend_on_their_neighbours_is_seen():
    assert any(RandomRun(seed, NeighbourlyModel()).play().wrong for seed in range(10))


def test_every_kind_of_request_comes_up():
    rng = random.Random(0)
    kinds = {random_request(rng, [[1, 2, 3]]).request_id for _ in range(100)}
    assert kinds == {"plain", "resumed", "constrained"}


def test_a_constraint_is_never_shared():
    rng = random.Random(0)
    request = next(r for r in (random_request(rng, [[1]]) for _ in range(100)) if r.request_id == "constrained")
    assert constraint_of(request) is not constraint_of(request)


def test_the_alternating_constraint_refuses_what_it_does_not_allow():
    constraint = Alternating()
    constraint.accept(4)
    assert constraint.mask()[0] == 0b10101010_10101010_10101010_10101010
    with pytest.raises(AssertionError):
        constraint.accept(6)
    constraint.rollback(1)
    constraint.accept(6)
    with pytest.raises(RuntimeError):
        Alternating(fail_at=0).mask()


def test_the_naive_sampler_stands_on_the_true_functions():
    for x in (-0.1, -1.0, -10.0, -300.0):
        assert naive.exp(x) == pytest.approx(math.exp(x), rel=1e-15)
    key = 5 | 7 << 64
    assert naive.philox(key, 3) == int(np.random.Philox(key=key, counter=3).random_raw())
    sampling = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, logit_bias=((1, 0.1),))
    assert naive.edited([4.0, 0.0, -1.0, 4.0], sampling, (0,), (2, 2)) == [2.0, naive.float32(0.1), -3.0, 4.0]
    weights = naive.survivors([2.0, 1.0, 2.0, 0.0], SamplingParams(top_k=3, min_p=0.5))
    assert list(weights) == [0, 2]
