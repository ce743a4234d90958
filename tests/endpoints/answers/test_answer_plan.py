"""The plan of an answer, made from a task alone: no exchange, no key, no clock."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from tests.kit.scripted_backend import INFO, ScriptedBackend
from tests.kit.served_succ import SUCC
from tlserve.api.options import GenerationOptions
from tlserve.chat.served_model import Served
from tlserve.endpoints.answers.answer_plan import AnswerPlan, GenerationTask, RequestSource, TaskPrompt, plan_answer
from tlserve.endpoints.request_headers import GenerationHeaders
from tlserve.endpoints.routes import chat_completions, completions
from tlserve.errors import ClientError, ContextLengthExceeded

SERVED = Served(**SUCC, backend=ScriptedBackend(), eos_ids=frozenset({0}))
SOURCE = RequestSource("r1", "key a")
SMALL = attrs.evolve(INFO, context_tokens=10, vocabulary_size=256, admission_limit=4)


def task(
    *prompts: tuple[int, ...], shape: Any = completions.SHAPE, echo: str | None = None, **options: Any
) -> GenerationTask:
    return GenerationTask(
        served=SERVED,
        named="succ",
        shape=shape,
        options=GenerationOptions(**options),
        prompts=[TaskPrompt(ids=ids, place=f"prompt[{index}]", echo=echo) for index, ids in enumerate(prompts)],
        headers=GenerationHeaders(priority=7, progress=True),
    )


def plan(*prompts: tuple[int, ...], **more: Any) -> AnswerPlan:
    return plan_answer(task(*prompts, **more), SMALL, seed=-1, source=SOURCE)


def test_each_prompt_has_n_requests_in_order() -> None:
    made = plan((1, 2), (3,), n=2, max_tokens=4)
    assert [(request.prompt, request.choice) for request in made.requests] == [
        ((1, 2), 0),
        ((1, 2), 1),
        ((3,), 0),
        ((3,), 1),
    ]


def test_the_same_task_gives_the_same_plan() -> None:
    assert plan((1,), n=3) == plan((1,), n=3)


def test_a_request_has_what_the_task_and_the_model_say() -> None:
    (request,) = plan((1,), stop_token_ids=(9,), min_tokens=2, cache_salt="s").requests
    assert (request.seed, request.priority, request.progress) == (2**64 - 1, 7, True)
    assert (request.request_id, request.tenant) == ("r1", "key a")
    assert (request.stop_ids, request.min_tokens, request.cache_salt) == (frozenset({0, 9}), 2, "s")
    assert plan((1,), ignore_eos=True).requests[0].stop_ids == frozenset()


@pytest.mark.parametrize(("shape", "max_tokens"), [(completions.SHAPE, 7), (chat_completions.SHAPE, 7)])
def test_an_answer_without_a_limit_fits_the_context(shape: Any, max_tokens: int) -> None:
    assert [request.max_tokens for request in plan((1, 2, 3), shape=shape).requests] == [max_tokens]


def test_completions_without_a_limit_have_16_tokens() -> None:
    (request,) = plan_answer(task((1,)), attrs.evolve(SMALL, context_tokens=100), seed=0, source=SOURCE).requests
    assert request.max_tokens == 16


def test_the_tokens_of_prompts_and_limits_are_reserved() -> None:
    assert plan((1, 2), (3,), n=2, max_tokens=4).reserved_tokens == 3 + 4 * 4
    assert plan((1, 2), (3,), n=2).reserved_tokens == 3


@pytest.mark.parametrize(
    ("options", "echo", "expected"),
    [
        ({"prompt_logprobs": 3}, None, [3, None]),
        ({"prompt_logprobs": 3, "logprobs": 5}, None, [3, None]),
        ({"logprobs": 5}, "ab", [5, 5]),
        ({"prompt_logprobs": 7, "logprobs": 5}, "ab", [7, 5]),
        ({}, "ab", [None, None]),
    ],
)
def test_the_first_choice_of_a_prompt_computes_its_log_probabilities(
    options: dict[str, Any], echo: str | None, expected: list[int | None]
) -> None:
    assert [request.prompt_logprobs for request in plan((1, 2), n=2, echo=echo, **options).requests] == expected


@pytest.mark.parametrize(
    ("prompts", "options", "param"),
    [
        (((1,),), {"n": 5}, "n"),
        (((1,),) * 5, {}, "prompt"),
        (((),), {}, "prompt[0]"),
        (((1,),), {"stop_token_ids": (256,)}, "stop_token_ids"),
        (((1,),), {"sampling": {"logit_bias": ((256, 1.0),)}}, "logit_bias"),
        (((1,),), {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ],
)
def test_a_task_that_does_not_fit_the_model_is_refused(prompts: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(ClientError) as refused:
        plan(*prompts, **options)
    assert refused.value.param == param


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(ContextLengthExceeded) as refused:
        plan((1,) * 10)
    assert refused.value.param == "prompt[0]"
