"""The engine thread behind the backend: admission, deadlines, failure, cancellation; the gated model controls the order."""

import attrs
import pytest
import trio

from tests.kit.engine.engine_runs import tokens_of
from tests.kit.engine.gated_model import GatedModel
from tests.kit.engine.local_backend import local_backend, make_local_backend
from tests.kit.model.tiny_models import succ_model
from tlserve.errors import ContextLengthExceeded, DrainCut, EngineFailed, NoCapacity, Overloaded
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


class FailingModel(GatedModel):
    """A model whose arithmetic breaks once the gate is open."""

    def forward(self, batch, kv):
        super().forward(batch, kv)
        raise ArithmeticError("the arithmetic broke")


async def wait_for_step(model):
    await trio.to_thread.run_sync(model.wait_for_step)


async def until(condition):
    with trio.fail_after(10):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_a_request_above_the_limit_is_refused_and_a_freed_place_is_usable():
    model = GatedModel(succ_model())
    async with local_backend(model, admission=2, max_num_seqs=1) as backend:
        async with backend.generate(REQUEST), backend.generate(REQUEST):
            with pytest.raises(Overloaded):
                async with backend.generate(REQUEST):
                    pass
        async with backend.generate(REQUEST) as tokens:
            model.open_all()
            assert tokens_of([event async for batch in tokens for event in batch])[-1].finish is Finish.LENGTH


async def test_a_request_past_the_queue_deadline_gets_no_capacity_and_leaves():
    model = GatedModel(succ_model())
    async with local_backend(model, max_num_seqs=1, queue_deadline_s=0.05) as backend:
        async with backend.generate(REQUEST) as running:
            model.open_one()
            assert isinstance((await anext(running))[0], PrefillStarted)
            async with backend.generate(REQUEST) as waiting:
                with pytest.raises(NoCapacity):
                    await anext(waiting)
            model.open_all()
            async for _ in running:
                pass
        await until(lambda: backend.statistics().queue_depth == 0 and backend.statistics().active_sequences == 0)


@pytest.mark.spec("ENG-43")
async def test_progress_does_not_stop_the_deadline_of_the_queue():
    model = GatedModel(succ_model())
    async with (
        local_backend(model, max_num_seqs=1, queue_deadline_s=0.5) as backend,
        backend.generate(REQUEST) as running,
    ):
        model.open_one()
        assert isinstance((await anext(running))[0], PrefillStarted)
        async with backend.generate(attrs.evolve(REQUEST, progress=True)) as waiting:
            model.open_one()
            assert await anext(waiting) == [Progress(ahead=0)]
            with pytest.raises(NoCapacity):
                await anext(waiting)
        model.open_all()
        async for _ in running:
            pass


@pytest.mark.spec("ENG-43")
async def test_progress_that_is_not_read_takes_no_space_from_the_answer():
    asking = attrs.evolve(REQUEST, prompt=tuple(range(200)) * 2, progress=True, max_tokens=1)
    async with local_backend(prefill_chunk=1) as backend, backend.generate(asking) as tokens:
        await until(lambda: backend.statistics().generated_tokens_total == 1)
        events = [event async for batch in tokens for event in batch]
    assert isinstance(events[-1], TokenEvent)
    assert len(events) < 100


@pytest.mark.spec("ENG-43")
async def test_prompt_events_wait_for_their_reader_chunk_by_chunk():
    asking = attrs.evolve(REQUEST, prompt=tuple(range(200)), prompt_logprobs=1, max_tokens=1)
    async with local_backend(prefill_chunk=1) as backend, backend.generate(asking) as tokens:
        await until(lambda: backend.statistics().generated_tokens_total == 1)
        events = [event async for batch in tokens for event in batch]
    assert [type(event) for event in events] == [PrefillStarted, *[PromptLogprobs] * 199, TokenEvent]


async def test_the_deadline_of_the_queue_does_not_end_a_request_that_runs():
    model = GatedModel(succ_model())
    async with local_backend(model, queue_deadline_s=0.05) as backend, backend.generate(REQUEST) as tokens:
        assert isinstance((await anext(tokens))[0], PrefillStarted)  # reported before its step is computed
        with trio.move_on_after(0.1) as passed:
            await anext(tokens)
        assert passed.cancelled_caught  # neither a token nor NoCapacity arrived
        model.open_all()
        assert tokens_of([event async for batch in tokens for event in batch])[-1].finish is Finish.LENGTH


async def test_an_engine_that_dies_ends_every_open_request_and_refuses_new_ones():
    model = FailingModel(succ_model())
    backend = make_local_backend(model, max_num_seqs=1)
    ends = []

    async def ask():
        with pytest.raises(EngineFailed) as caught:
            async with backend.generate(REQUEST) as tokens:
                async for _ in tokens:
                    pass
        ends.append(caught.value)

    async def run():
        with pytest.raises(EngineFailed):
            await backend.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(3):
            nursery.start_soon(ask)
        await wait_for_step(model)
        model.open_all()
    assert len(ends) == 3
    assert not backend.info().ready
    with pytest.raises(EngineFailed):
        async with backend.generate(REQUEST):
            pass


async def test_an_idle_engine_ends_at_once_when_it_is_cancelled():
    backend = make_local_backend()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        with trio.fail_after(5):
            nursery.cancel_scope.cancel()
            await trio.lowlevel.checkpoint_if_cancelled()


async def test_a_busy_engine_ends_after_its_step_when_it_is_cancelled():
    model = GatedModel(succ_model())
    backend = make_local_backend(model)
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        async with backend.generate(attrs.evolve(REQUEST, max_tokens=1000)):
            await wait_for_step(model)
            nursery.cancel_scope.cancel()
            model.open_one()
    assert model.steps <= 2


async def test_stop_lets_run_return():
    backend = make_local_backend()
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        assert backend.info().ready
        backend.stop()
    assert not backend.info().ready


async def test_a_cut_ends_all_open_requests_and_frees_their_blocks():
    model = GatedModel(succ_model())
    async with local_backend(model) as backend:
        async with backend.generate(REQUEST) as tokens:
            model.open_one()
            await anext(tokens)
            backend.cut()
            model.open_all()
            with pytest.raises(DrainCut):
                while True:
                    await anext(tokens)
            with pytest.raises(DrainCut):
                await anext(tokens)
        await until(lambda: backend.statistics().active_sequences == 0 and backend.statistics().kv_used == 0)


async def test_events_that_are_ready_together_are_one_batch():
    model = GatedModel(succ_model())
    async with local_backend(model) as backend, backend.generate(REQUEST) as tokens:
        model.open_all()
        await until(lambda: backend.statistics().finished_length_total == 1)
        batch = await anext(tokens)
        assert len(batch) == 4


async def test_during_a_step_that_takes_too_long_the_backend_is_not_ready():
    model = GatedModel(succ_model())
    async with local_backend(model, heartbeat_stale_s=0.01) as backend:
        async with backend.generate(REQUEST) as tokens:
            await wait_for_step(model)
            await until(lambda: not backend.info().ready)
            assert "step" in backend.info().not_ready_reason
            model.open_all()
            async for _ in tokens:
                pass
        await until(lambda: backend.info().ready)


async def test_an_input_that_does_not_fit_refuses_the_whole_embedding_request():
    async with local_backend(succ_model(context_tokens=8)) as backend:
        with pytest.raises(ContextLengthExceeded):
            await backend.embed(EmbeddingRequest(inputs=((1,), (1,) * 9)))


async def test_embeddings_that_are_cancelled_leave_the_engine():
    model = GatedModel(succ_model())
    async with local_backend(model) as backend:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.embed, EmbeddingRequest(inputs=((1,), (2,), (3,))))
            await wait_for_step(model)
            nursery.cancel_scope.cancel()
        model.open_all()
        await until(lambda: backend.statistics().active_sequences == 0 and backend.statistics().queue_depth == 0)


async def test_emitted_tokens_count_and_the_answer_continues_after_them():
    async with local_backend() as backend, backend.generate(attrs.evolve(REQUEST, emitted=(98, 99))) as tokens:
        events = [event async for batch in tokens for event in batch]
        assert events[1:] == [TokenEvent(2, 100, finish=Finish.LENGTH)]


async def test_many_inputs_leave_capacity_for_a_chat():
    model = GatedModel(succ_model())
    async with local_backend(model, embeddings=2, max_num_seqs=4) as backend, trio.open_nursery() as nursery:
        nursery.start_soon(backend.embed, EmbeddingRequest(inputs=tuple((index,) for index in range(200))))
        await wait_for_step(model)
        async with backend.generate(REQUEST) as tokens:
            for _ in range(4):
                model.open_one()
            assert isinstance((await anext(tokens))[0], PrefillStarted)
        assert backend.statistics().finished_stop_total < 20
        model.open_all()
