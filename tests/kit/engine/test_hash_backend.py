"""The scripted engine keeps the contract of `Backend`, and its tokens depend on the right fields only."""

from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.kit.engine.hash_backend import HashBackend, answer, events_of, prompt_logprobs, tokens_of
from tlserve.errors import ContextLengthExceeded, Draining, EngineFailed, Overloaded
from tlserve.generation import Finish, GenerationRequest, PrefillStarted, Progress, PromptLogprobs
from tlserve.sampling_params import SamplingParams

REQUEST = GenerationRequest(prompt=tuple(range(40)), max_tokens=8, seed=1, logprobs=1)


async def running(nursery: trio.Nursery, **settings: Any) -> HashBackend:
    backend = HashBackend(**settings)
    await nursery.start(backend.run)
    return backend


async def test_the_engine_gives_the_same_answer_alone_and_with_others(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        backend = await running(nursery, prefill_tokens=8)
        answers = {}

        async def ask(seed: int) -> None:
            request = attrs.evolve(REQUEST, seed=seed)
            answers[seed] = tokens_of(await events_of(backend, request)) == answer(request)

        async with trio.open_nursery() as clients:
            for seed in range(6):
                clients.start_soon(ask, seed)
        assert answers == dict.fromkeys(range(6), True)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": tuple(range(1, 41))},
        {"seed": 2},
        {"choice": 1},
        {"min_tokens": 1},
        {"stop_ids": frozenset({300})},
        {"sampling": SamplingParams(presence_penalty=0.1)},
    ],
)
def test_every_field_of_the_exactness_contract_changes_the_tokens(changes: dict[str, Any]) -> None:
    assert answer(attrs.evolve(REQUEST, **changes)) != answer(REQUEST)


@pytest.mark.parametrize("changes", [{"priority": 1}, {"cache_salt": "a"}, {"progress": True}, {"request_id": "x"}])
def test_no_other_field_does(changes: dict[str, Any]) -> None:
    assert answer(attrs.evolve(REQUEST, **changes)) == answer(REQUEST)


def test_an_answer_continues_from_its_emitted_tokens_only() -> None:
    truth = answer(REQUEST)
    for count in range(8):
        emitted = tuple(event.token for event in truth[:count])
        assert answer(attrs.evolve(REQUEST, emitted=emitted)) == truth[count:]
    swapped = (truth[1].token, truth[0].token)
    assert answer(attrs.evolve(REQUEST, emitted=swapped)) != truth[2:]


def test_stops_and_length_limits_are_respected() -> None:
    truth = answer(REQUEST)
    stop = attrs.evolve(REQUEST, stop_ids=frozenset(range(251)))
    assert [event.finish for event in answer(stop)] == [Finish.STOP]
    assert len(answer(attrs.evolve(stop, stop_ids=frozenset(range(250)), min_tokens=3))) >= 4
    assert (len(truth), truth[-1].finish) == (8, Finish.LENGTH)
    assert len(answer(REQUEST, context_tokens=43)) == 3


async def test_prompts_need_steps_and_cached_ones_fewer(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        backend = await running(nursery, prefill_tokens=8)
        asked = attrs.evolve(REQUEST, progress=True, prompt_logprobs=0)
        first = await events_of(backend, asked)
        assert first[0] == PrefillStarted(0)
        assert [event.done for event in first if isinstance(event, Progress)] == [8, 16, 24, 32, 40]
        assert [event for event in first if isinstance(event, PromptLogprobs)] == prompt_logprobs(asked)
        assert (await events_of(backend, asked))[0] == PrefillStarted(32)
        assert (await events_of(backend, attrs.evolve(asked, cache_salt="x")))[0] == PrefillStarted(0)
        nursery.cancel_scope.cancel()


async def test_it_refuses_like_a_backend_and_counts_aborts(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        backend = await running(nursery, slots=1, queue=0, context_tokens=50)
        with pytest.raises(ContextLengthExceeded):
            await events_of(backend, attrs.evolve(REQUEST, prompt=(1,) * 50))
        async with backend.generate(REQUEST):
            with pytest.raises(Overloaded):
                await events_of(backend, REQUEST)
        assert backend.statistics().finished_aborted_total == 1
        await backend.drain()
        with pytest.raises(Draining):
            await events_of(backend, REQUEST)
        nursery.cancel_scope.cancel()


async def test_it_stalls_and_dies_on_request(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        backend = await running(nursery)
        async with backend.generate(REQUEST) as tokens:
            await anext(tokens)
            backend.hold()
            with trio.move_on_after(100) as scope:
                await anext(tokens)
            assert scope.cancelled_caught
            backend.go_on()
            await anext(tokens)
            backend.fail()
            with pytest.raises(EngineFailed):
                while True:
                    await anext(tokens)
        nursery.cancel_scope.cancel()
