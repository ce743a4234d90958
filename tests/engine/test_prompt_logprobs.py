"""Log-probabilities of the prompt: of every token except the first, once, in order, in every schedule."""

import attrs
import numpy as np
import pytest

from tests.kit.engine.engine_runs import all_alone, prompt_tokens_of, run_to_end, tokens_of
from tests.kit.engine.hash_model import HashModel
from tests.kit.model.tiny_models import succ_model
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.events import Failed
from tlserve.engine.sampling.sampler import with_logprobs
from tlserve.engine.scheduler import MOST_SCORED_ROWS
from tlserve.generation import GenerationRequest, PrefillStarted, PromptLogprobs, TokenEvent

REQUEST = GenerationRequest(prompt=tuple(i * 7 % 61 for i in range(40)), max_tokens=3, seed=0, prompt_logprobs=2)


def small(model=None, **config):
    return Engine(model or HashModel(), EngineConfig(**{"block_size": 4, "kv_blocks": 64} | config))


def events_of(engine, request):
    key = engine.add_request(request)
    return run_to_end(engine)[key]


@pytest.mark.spec("ENG-40")
def test_each_token_has_the_logprob_of_the_logits_before_it():
    model = succ_model()
    told = prompt_tokens_of(all_alone(attrs.evolve(REQUEST, prompt=(97, 98, 120)), model))
    table = model._table  # the row of a token is the distribution of the next token
    expected = [with_logprobs(token, np.array(table[before]), 2) for before, token in [(97, 98), (98, 120)]]
    assert [(t.token, t.logprob, t.top) for t in told] == [(e.token, e.logprob, e.top) for e in expected]


@pytest.mark.spec("ENG-40", "ENG-61")
@pytest.mark.parametrize("sampler", ["auto", "numpy"])
@pytest.mark.parametrize("chunk", [0, 1, 7, 39, 40])
def test_they_have_the_same_bits_for_all_chunks_and_come_once_per_chunk(chunk, sampler):
    events = events_of(small(prefill_chunk=chunk, sampler=sampler), REQUEST)
    assert prompt_tokens_of(events) == prompt_tokens_of(all_alone(REQUEST))
    assert [t.token for t in prompt_tokens_of(events)] == list(REQUEST.prompt[1:])
    chunks = -(-40 // (chunk or 40))
    assert len([e for e in events if isinstance(e, PromptLogprobs)]) == chunks - (chunk in (1, 39))
    assert tokens_of(events) == tokens_of(all_alone(attrs.evolve(REQUEST, prompt_logprobs=None)))


@pytest.mark.spec("ENG-40")
def test_a_prompt_of_one_token_has_none():
    assert [type(e) for e in all_alone(attrs.evolve(REQUEST, prompt=(5,)))] == [PrefillStarted, *[TokenEvent] * 3]


@pytest.mark.spec("ENG-40")
def test_a_request_can_ask_for_no_likeliest_tokens():
    told = prompt_tokens_of(all_alone(attrs.evolve(REQUEST, prompt_logprobs=0)))
    assert len(told) == 39
    assert {token.top for token in told} == {()}


@pytest.mark.spec("ENG-41")
def test_such_a_request_does_not_read_the_prefix_cache_but_others_find_its_blocks():
    engine = small()
    events_of(engine, attrs.evolve(REQUEST, prompt_logprobs=None))
    events = events_of(engine, REQUEST)
    assert events[0] == PrefillStarted(0)
    assert len(prompt_tokens_of(events)) == 39
    assert engine.statistics().prefix_cache_queries_total == 40
    engine = small()
    events_of(engine, REQUEST)
    assert events_of(engine, attrs.evolve(REQUEST, prompt_logprobs=None))[0] == PrefillStarted(36)


@pytest.mark.spec("ENG-40", "ENG-61")
def test_a_preempted_request_gets_each_token_once():
    engine = small(kv_blocks=16, prefill_chunk=4)
    first = engine.add_request(attrs.evolve(REQUEST, prompt=tuple(range(12)), max_tokens=40, prompt_logprobs=None))
    second = engine.add_request(attrs.evolve(REQUEST, max_tokens=20))
    happened = run_to_end(engine)
    assert engine.statistics().preemptions_total > 0
    assert prompt_tokens_of(happened[second]) == prompt_tokens_of(all_alone(REQUEST))
    assert len(tokens_of(happened[first])) == 40


@pytest.mark.spec("ENG-61")
def test_a_resumed_answer_does_not_get_its_prompt_again():
    events = all_alone(attrs.evolve(REQUEST, emitted=(4,)))
    assert prompt_tokens_of(events) == []
    assert len(tokens_of(events)) == 2


@pytest.mark.spec("ENG-62")
def test_the_rows_with_logits_of_a_step_are_bounded():
    engine = small(prefill_chunk=0, kv_blocks=1000)
    model = engine._runner._model
    prompt = tuple(i * 7 % 61 for i in range(500))
    keys = [engine.add_request(attrs.evolve(REQUEST, prompt=prompt, cache_salt=salt)) for salt in "abc"]
    happened = run_to_end(engine)
    assert all(len(prompt_tokens_of(happened[key])) == 499 for key in keys)
    assert max(len(batch.logit_rows) for batch in model.forwards) <= MOST_SCORED_ROWS + len(keys)


@pytest.mark.spec("ENG-62")
def test_only_the_needed_rows_have_logits():
    engine = small(prefill_chunk=16)
    events_of(engine, attrs.evolve(REQUEST, prompt_logprobs=None, max_tokens=1))
    assert [len(batch.logit_rows) for batch in engine._runner._model.forwards] == [0, 0, 1]
    engine = small(prefill_chunk=16)
    events_of(engine, attrs.evolve(REQUEST, max_tokens=1))
    assert [len(batch.logit_rows) for batch in engine._runner._model.forwards] == [16, 16, 8]


@attrs.define(eq=False)
class Poisoned(HashModel):
    def logits_of(self, state, token):
        logits = super().logits_of(state, token)
        return np.full_like(logits, np.nan) if token == 60 else logits


@pytest.mark.spec("ENG-40")
def test_a_prompt_with_bad_logits_ends_its_own_request_only():
    engine = small(Poisoned())
    bad = engine.add_request(attrs.evolve(REQUEST, prompt=(1, 60, 2)))
    good = engine.add_request(attrs.evolve(REQUEST, prompt=(1, 2, 3)))
    happened = run_to_end(engine)
    assert isinstance(happened[bad][-1], Failed)
    assert len(tokens_of(happened[good])) == 3
