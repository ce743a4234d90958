"""The scripted backend keeps the contract of `generation.Backend`, at virtual times."""

import attrs
import pytest
import trio
import trio.testing

from tests.kit.scripted_backend import INFO, QUEUE, Counts, Script, ScriptedBackend
from tlserve.errors import ContextLengthExceeded, Draining, EngineFailed, NoCapacity, Overloaded, TlserveError
from tlserve.generation import (
    EmbeddingRequest,
    Finish,
    GenerationRequest,
    PrefillStarted,
    Progress,
    PromptLogprobs,
    TokenEvent,
)

REQUEST = GenerationRequest(prompt=(97,), max_tokens=3, seed=0)


async def collect(backend: ScriptedBackend, request: GenerationRequest = REQUEST) -> list[list[object]]:
    async with backend.generate(request) as tokens:
        return [list(batch) async for batch in tokens]


async def test_a_request_starts_with_its_prefill_and_ends_with_one_finish() -> None:
    backend = ScriptedBackend()
    batches = await collect(backend)
    assert batches == [
        [PrefillStarted(0)],
        [TokenEvent(0, 98)],
        [TokenEvent(1, 99)],
        [TokenEvent(2, 100, finish=Finish.LENGTH)],
    ]
    assert backend.counts == Counts(finished=1)


async def test_a_stop_id_ends_the_answer_and_is_reported() -> None:
    events = await collect(ScriptedBackend(), attrs.evolve(REQUEST, stop_ids=frozenset({99})))
    assert events[-1] == [TokenEvent(1, 99, finish=Finish.STOP)]


async def test_events_that_are_ready_together_are_one_batch() -> None:
    batches = await collect(ScriptedBackend(Script(batch_tokens=9)))
    assert [len(batch) for batch in batches] == [4]


async def test_logprobs_are_sent_only_on_request() -> None:
    [[event]] = (await collect(ScriptedBackend(), attrs.evolve(REQUEST, max_tokens=1, logprobs=2)))[1:]
    assert isinstance(event, TokenEvent)
    assert event.logprob is not None
    assert len(event.top) == 2


async def test_a_script_plays_at_virtual_times(autojump_clock: trio.testing.MockClock) -> None:
    start = trio.current_time()
    async with ScriptedBackend(Script(queue_s=5, prefill_s=2, token_s=1)).generate(REQUEST) as tokens:
        times = [trio.current_time() - start async for _ in tokens]
    assert times == pytest.approx([5, 7, 8, 9])


async def test_a_gate_holds_a_request_until_the_test_opens_it() -> None:
    gates = {QUEUE: trio.Event(), 1: trio.Event()}
    seen: list[object] = []
    async with trio.open_nursery() as nursery:

        async def consume() -> None:
            async with ScriptedBackend(Script(gates=gates)).generate(REQUEST) as tokens:
                async for batch in tokens:
                    seen.extend(batch)

        nursery.start_soon(consume)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        gates[QUEUE].set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(seen) == 2
        gates[1].set()
    assert len(seen) == 4


async def test_leaving_the_block_early_is_an_abort() -> None:
    backend = ScriptedBackend()
    async with backend.generate(REQUEST):
        assert backend.counts.open == 1
    assert backend.counts == Counts(aborted=1)


@pytest.mark.parametrize("error", [Overloaded("full"), Draining("stopping"), EngineFailed("dead")])
async def test_a_refusal_is_raised_on_entering_and_admits_nothing(error: TlserveError) -> None:
    backend = ScriptedBackend(Script(refusal=error))
    with pytest.raises(type(error)):
        await collect(backend)
    assert backend.counts == Counts()


async def test_a_failure_comes_after_the_tokens_before_it() -> None:
    backend = ScriptedBackend(Script(failure=EngineFailed("dead"), fail_before=2, batch_tokens=9))
    async with backend.generate(REQUEST) as tokens:
        assert len(await anext(tokens)) == 3
        with pytest.raises(EngineFailed):
            await anext(tokens)
    assert backend.counts == Counts(failed=1)


async def test_a_failure_in_the_queue_comes_before_any_event() -> None:
    with pytest.raises(NoCapacity):
        await collect(ScriptedBackend(Script(failure=NoCapacity("late"), fail_before=QUEUE)))


async def test_a_prompt_past_the_context_is_refused() -> None:
    long = attrs.evolve(REQUEST, prompt=(1,) * (INFO.context_tokens + 1))
    with pytest.raises(ContextLengthExceeded):
        await collect(ScriptedBackend(), long)


async def test_a_drain_refuses_new_requests_and_waits_for_the_open_ones(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backend = ScriptedBackend()
    async with trio.open_nursery() as nursery, backend.generate(REQUEST):
        nursery.start_soon(backend.drain)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Draining):
            await collect(backend)


async def test_embeddings_are_unit_vectors_in_the_order_of_the_inputs() -> None:
    first, second = await ScriptedBackend().embed(EmbeddingRequest(inputs=((0,), (1, 1))))
    assert first.tolist() == [1, 0, 0, 0]
    assert second.tolist() == [0, 1, 0, 0]


async def test_progress_is_sent_on_request_up_to_the_first_token(autojump_clock: trio.testing.MockClock) -> None:
    backend = ScriptedBackend(Script(queue_s=4, ahead=(2, 0), prefill_s=6, chunk_tokens=2))
    start, seen = trio.current_time(), []
    async with backend.generate(attrs.evolve(REQUEST, prompt=(1, 2, 3), max_tokens=1, progress=True)) as tokens:
        async for batch in tokens:
            seen += [(round(trio.current_time() - start, 6), event) for event in batch]
    assert seen == [
        (0, Progress(ahead=2)),
        (2, Progress(ahead=0)),
        (4, PrefillStarted()),
        (8, Progress(done=2)),
        (10, Progress(done=3)),
        (10, TokenEvent(0, 4, finish=Finish.LENGTH)),
    ]


@pytest.mark.parametrize(("chunk_tokens", "starts"), [(1, [1, 2]), (2, [1, 2]), (9, [1])])
async def test_prompt_logprobs_come_in_order_without_the_first_token(chunk_tokens: int, starts: list[int]) -> None:
    request = attrs.evolve(REQUEST, prompt=(1, 2, 3), prompt_logprobs=1)
    batches = await collect(ScriptedBackend(Script(chunk_tokens=chunk_tokens)), request)
    told = [event for batch in batches for event in batch if isinstance(event, PromptLogprobs)]
    assert [event.start for event in told] == starts
    assert [token.token for event in told for token in event.tokens] == [2, 3]
    assert isinstance(batches[0][0], PrefillStarted)


async def test_the_first_min_tokens_tokens_are_not_stop_ids() -> None:
    request = attrs.evolve(REQUEST, stop_ids=frozenset({98, 99}), min_tokens=1)
    assert await collect(ScriptedBackend(), request) == [
        [PrefillStarted()],
        [TokenEvent(0, 100)],
        [TokenEvent(1, 99, finish=Finish.STOP)],
    ]
