"""A random run replays from its seed, and detects an engine or a model that breaks the contract."""

import math
import random

import attrs
import numpy as np
import pytest

from tests.kit.engine import naive_sampler as naive
from tests.kit.engine.alternating import Alternating
from tests.kit.engine.engine_runs import RandomRun, check_progress, constraint_of, prompt_tokens_of, random_request
from tests.kit.engine.hash_model import HashModel
from tlserve.generation import GenerationRequest, PrefillStarted, Progress, PromptLogprobs, PromptToken, TokenEvent
from tlserve.kernels.interface import KvStore, StepBatch, StepOutput
from tlserve.sampling_params import SamplingParams


def history(seed: int) -> tuple[object, ...]:
    run = RandomRun(seed).play()
    return run.requests, run.aborted, [str(events) for events in run.events.values()]


def test_a_random_run_replays_from_its_seed() -> None:
    assert history(5) == history(5)
    assert history(5) != history(6)


class NeighbourlyModel(HashModel):
    """Breaks the contract: a row changes a little with the number of rows in its step, as in a fast product."""

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        output = super().forward(batch, kv)
        output.logits[:] += np.float32(1e-6) * (len(batch.tokens) > 40)
        return output


def test_a_model_whose_rows_depend_on_their_neighbours_is_detected() -> None:
    assert any(RandomRun(seed, NeighbourlyModel()).play().wrong for seed in range(10))


def test_every_kind_of_request_occurs() -> None:
    rng = random.Random(0)
    kinds = {random_request(rng, [[1, 2, 3]]).request_id for _ in range(100)}
    assert kinds == {"plain", "resumed", "constrained"}


def test_every_parameter_of_sampling_occurs() -> None:
    rng = random.Random(0)
    requests = [random_request(rng, [[1, 2, 3]]) for _ in range(200)]
    defaults = {field.name: field.default for field in attrs.fields(SamplingParams)}
    unchanged = {
        name for name, default in defaults.items() if all(getattr(r.sampling, name) == default for r in requests)
    }
    assert unchanged == set()
    assert all(
        any(getattr(r, name) for r in requests) for name in ("min_tokens", "prompt_logprobs", "cache_salt", "progress")
    )


TOLD = [PromptLogprobs(1, (PromptToken(5, -0.5), PromptToken(6, -0.5))), PromptLogprobs(3, (PromptToken(7, -0.5),))]


def test_prompt_events_are_joined_and_gaps_or_wrong_order_are_detected() -> None:
    assert [token.token for token in prompt_tokens_of([*TOLD, TokenEvent(0, 1)])] == [5, 6, 7]
    for wrong in ([TOLD[1]], [*TOLD, TOLD[1]], [TOLD[0], TokenEvent(0, 1), TOLD[1]]):
        with pytest.raises(AssertionError):
            prompt_tokens_of(wrong)


def test_repeated_late_or_unrequested_progress_is_detected() -> None:
    asked = GenerationRequest(prompt=(1, 2), max_tokens=1, seed=0, progress=True)
    good = [Progress(ahead=1), Progress(ahead=0), PrefillStarted(), Progress(done=2), TokenEvent(0, 1)]
    check_progress(asked, good)
    check_progress(asked, good[:2])
    for request, events in (
        (attrs.evolve(asked, progress=False), good),
        (asked, [good[0], *good]),
        (asked, [*good, Progress(done=2)]),
        (asked, [*good[:3], TokenEvent(0, 1)]),
        (asked, [Progress(ahead=1, done=1), *good]),
    ):
        with pytest.raises(AssertionError):
            check_progress(request, events)


def test_a_constraint_is_never_shared() -> None:
    rng = random.Random(0)
    request = next(r for r in (random_request(rng, [[1]]) for _ in range(100)) if r.request_id == "constrained")
    assert constraint_of(request) is not constraint_of(request)


def test_the_alternating_constraint_refuses_forbidden_tokens() -> None:
    constraint = Alternating()
    constraint.accept(4)
    assert constraint.mask()[0] == 0b10101010_10101010_10101010_10101010
    with pytest.raises(AssertionError):
        constraint.accept(6)
    constraint.rollback(1)
    constraint.accept(6)
    with pytest.raises(RuntimeError):
        Alternating(fail_at=0).mask()


def test_the_naive_sampler_uses_the_exact_functions() -> None:
    for x in (-0.1, -1.0, -10.0, -300.0):
        assert naive.exp(x) == pytest.approx(math.exp(x), rel=1e-15)
    key = 5 | 7 << 64
    assert naive.philox(key, 3) == tuple(np.random.Philox(key=key, counter=3).random_raw(2).tolist())
    sampling = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.5, logit_bias=((1, 0.1),))
    assert naive.edited([4.0, 0.0, -1.0, 4.0], sampling, (0,), (2, 2)) == [2.0, naive.float32(0.1), -3.0, 4.0]
    weights = naive.survivors([2.0, 1.0, 2.0, 0.0], SamplingParams(top_k=3, min_p=0.5))
    assert list(weights) == [0, 2]
