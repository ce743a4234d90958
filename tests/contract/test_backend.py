"""The contract of every `Backend`: the scripted one, the one with the engine thread, and fleets in process and over HTTP."""

from contextlib import asynccontextmanager

import attrs
import numpy as np
import pytest
import trio

from tests.kit.engine.local_backend import local_backend
from tests.kit.fleet.http_fleet import http_fleet
from tests.kit.fleet.successor_fleet import successor_fleet
from tests.kit.scripted_backend import ScriptedBackend
from tlserve.errors import ContextLengthExceeded, Draining
from tlserve.generation import EmbeddingRequest, Finish, GenerationRequest, PrefillStarted, TokenEvent

REQUEST = GenerationRequest(prompt=(97,), max_tokens=3, seed=0)


@asynccontextmanager
async def scripted():
    yield ScriptedBackend()


@pytest.fixture(
    params=[scripted, local_backend, successor_fleet, http_fleet], ids=["scripted", "local", "fleet", "http_fleet"]
)
def open_backend(request):
    return request.param


async def events_of(backend, request=REQUEST):
    async with backend.generate(request) as tokens:
        return [event async for batch in tokens for event in batch]


@pytest.mark.spec("HEAD-1", "RAY-1")
async def test_the_prefill_is_the_first_event_and_the_finish_the_last(open_backend):
    async with open_backend() as backend:
        first, *tokens = await events_of(backend)
        assert isinstance(first, PrefillStarted)
        assert [event.token for event in tokens] == [98, 99, 100]
        assert [event.index for event in tokens] == [0, 1, 2]
        assert [event.finish for event in tokens] == [None, None, Finish.LENGTH]


async def test_no_batch_is_empty(open_backend):
    async with open_backend() as backend, backend.generate(REQUEST) as tokens:
        assert all([len(batch) > 0 async for batch in tokens])


async def test_a_stop_id_ends_the_answer_and_is_reported(open_backend):
    async with open_backend() as backend:
        events = await events_of(backend, attrs.evolve(REQUEST, stop_ids=frozenset({99})))
        assert events[-1] == TokenEvent(1, 99, finish=Finish.STOP)


async def test_a_stream_that_ended_stays_ended(open_backend):
    async with open_backend() as backend, backend.generate(REQUEST) as tokens:
        async for _ in tokens:
            pass
        with pytest.raises(StopAsyncIteration):
            await anext(tokens)


async def test_a_prompt_beyond_the_context_is_refused_on_entering(open_backend):
    async with open_backend() as backend:
        prompt = (97,) * (backend.info().context_tokens + 1)
        with pytest.raises(ContextLengthExceeded):
            await events_of(backend, attrs.evolve(REQUEST, prompt=prompt))


@pytest.mark.spec("HEAD-1")
async def test_leaving_the_block_is_the_abort(open_backend):
    async with open_backend() as backend:
        async with backend.generate(attrs.evolve(REQUEST, max_tokens=2000)) as tokens:
            await anext(tokens)
        with trio.fail_after(5):
            while backend.statistics().finished_aborted_total != 1 or backend.statistics().active_sequences:
                await trio.lowlevel.checkpoint()


@pytest.mark.spec("LINK-1")
async def test_many_requests_at_once_each_get_their_own_answer(open_backend):
    async with open_backend() as backend:
        answers = {}

        async def ask(first):
            answers[first] = [e.token for e in (await events_of(backend, attrs.evolve(REQUEST, prompt=(first,))))[1:]]

        async with trio.open_nursery() as nursery:
            for first in range(40):
                nursery.start_soon(ask, first)
        assert answers == {first: [first + 1, first + 2, first + 3] for first in range(40)}


async def test_a_vector_comes_back_for_every_input_in_order(open_backend):
    async with open_backend() as backend:
        vectors = await backend.embed(EmbeddingRequest(inputs=((1, 2), (3,), (1, 2))))
        assert [vector.shape for vector in vectors] == [(backend.info().embedding_size,)] * 3
        assert all(vector.dtype == np.float32 for vector in vectors)
        assert all(abs(float(np.linalg.norm(vector)) - 1) < 1e-6 for vector in vectors)
        assert np.array_equal(vectors[0], vectors[2])


async def test_a_drain_finishes_open_requests_and_refuses_new_ones(open_backend):
    async with open_backend() as backend, trio.open_nursery() as nursery, backend.generate(REQUEST) as tokens:
        await anext(tokens)
        nursery.start_soon(backend.drain)
        with trio.fail_after(5):
            while True:
                await trio.lowlevel.checkpoint()
                try:
                    async with backend.generate(REQUEST):
                        pass
                except Draining:
                    break
        async for _ in tokens:
            pass
