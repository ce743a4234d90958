"""Events that a client has are never repeated, and events that cannot follow them are detected."""

import random

import attrs
import pytest

from tests.kit.engine import engine_runs
from tests.kit.engine.hash_backend import VOCABULARY, answer, prompt_logprobs
from tests.kit.engine.hash_model import HashModel
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.fleet.head.node_claims import BrokenAnswer
from tlserve.fleet.head.transcript import Transcript
from tlserve.generation import GenerationRequest, PrefillStarted, Progress, PromptLogprobs, TokenEvent

REQUEST = GenerationRequest(prompt=tuple(range(10)), max_tokens=6, seed=1, prompt_logprobs=0, progress=True)


def given(transcript, events):
    return [fresh for event in events if (fresh := transcript.take(event)) is not None]


def test_an_answer_on_one_node_is_passed_on_unchanged():
    transcript = Transcript(REQUEST, VOCABULARY)
    events = [
        Progress(2),
        Progress(0),
        PrefillStarted(4),
        *prompt_logprobs(REQUEST),
        Progress(done=8),
        *answer(REQUEST),
    ]
    assert given(transcript, events) == events
    assert transcript.ended


@pytest.mark.spec("HEAD-4")
@pytest.mark.parametrize("cut", range(9))
def test_events_before_the_first_token_come_once_wherever_a_move_is(cut):
    head = [Progress(1), PrefillStarted(4), Progress(done=4), *prompt_logprobs(REQUEST), Progress(done=10)]
    transcript = Transcript(REQUEST, VOCABULARY)
    got = given(transcript, head[:cut])
    assert transcript.continuation() is REQUEST
    second = [
        Progress(3),
        PrefillStarted(0),
        Progress(done=5),
        *prompt_logprobs(REQUEST),
        Progress(done=10),
        *answer(REQUEST),
    ]
    got += given(transcript, second)
    assert sum(isinstance(event, PrefillStarted) for event in got) == 1
    assert [token for event in got if isinstance(event, PromptLogprobs) for token in event.tokens] == [
        token for event in prompt_logprobs(REQUEST) for token in event.tokens
    ]
    done = [event.done for event in got if isinstance(event, Progress) and event.ahead is None]
    assert done == sorted(set(done))
    assert got[-6:] == answer(REQUEST)


@pytest.mark.spec("HEAD-4")
def test_prompt_logprobs_cut_in_the_middle_of_an_event_are_joined_to_the_token():
    transcript = Transcript(REQUEST, VOCABULARY)
    [whole] = [PromptLogprobs(1, tuple(token for event in prompt_logprobs(REQUEST) for token in event.tokens))]
    got = given(transcript, [PrefillStarted(), PromptLogprobs(1, whole.tokens[:4]), PrefillStarted(), whole])
    assert got[1:] == [PromptLogprobs(1, whole.tokens[:4]), PromptLogprobs(5, whole.tokens[4:])]


@pytest.mark.spec("HEAD-27")
@pytest.mark.parametrize("cut", range(1, 6))
def test_a_continuation_has_the_emitted_tokens_and_repeats_no_request(cut):
    transcript = Transcript(REQUEST, VOCABULARY)
    truth = answer(REQUEST)
    given(transcript, [PrefillStarted(), *prompt_logprobs(REQUEST), *truth[:cut]])
    continuation = transcript.continuation()
    emitted = tuple(event.token for event in truth[:cut])
    assert continuation == attrs.evolve(REQUEST, emitted=emitted, prompt_logprobs=None, progress=False)
    assert given(transcript, [PrefillStarted(10), *answer(continuation)]) == truth[cut:]


@pytest.mark.spec("HEAD-27")
def test_a_request_with_emitted_tokens_continues_from_them():
    truth = answer(REQUEST)
    request = attrs.evolve(REQUEST, emitted=tuple(event.token for event in truth[:2]))
    transcript = Transcript(request, VOCABULARY)
    assert given(transcript, [PrefillStarted(), *truth[2:4]])[1:] == truth[2:4]
    assert transcript.continuation().emitted == tuple(event.token for event in truth[:4])


@pytest.mark.spec("HEAD-5")
@pytest.mark.parametrize("index", [0, 2, 5])
def test_a_token_in_the_wrong_place_is_a_node_fault(index):
    transcript = Transcript(REQUEST, VOCABULARY)
    given(transcript, [PrefillStarted(), *prompt_logprobs(REQUEST), TokenEvent(0, 5)])
    with pytest.raises(BrokenAnswer, match=f"token {index} came instead of token 1"):
        transcript.take(TokenEvent(index, 5))


@pytest.mark.spec("HEAD-5")
def test_no_token_comes_before_the_prefill_has_started():
    with pytest.raises(BrokenAnswer, match="prefill"):
        Transcript(REQUEST, VOCABULARY).take(TokenEvent(0, 5))


@pytest.mark.spec("HEAD-5")
def test_nothing_follows_the_last_token():
    transcript = Transcript(REQUEST, VOCABULARY)
    given(transcript, [PrefillStarted(), *prompt_logprobs(REQUEST), *answer(REQUEST)])
    with pytest.raises(BrokenAnswer):
        transcript.take(TokenEvent(6, 1))


@pytest.mark.spec("HEAD-5")
def test_missing_prompt_logprobs_are_a_node_fault():
    transcript = Transcript(REQUEST, VOCABULARY)
    first, second, third = prompt_logprobs(REQUEST)
    with pytest.raises(BrokenAnswer, match="prefill"):
        transcript.take(first)
    transcript.take(PrefillStarted())
    with pytest.raises(BrokenAnswer, match="prompt token 4 came instead of prompt token 1"):
        transcript.take(second)
    transcript.take(first)
    with pytest.raises(BrokenAnswer, match="prompt token 7 came instead of prompt token 4"):
        transcript.take(third)
    transcript.take(second)
    with pytest.raises(BrokenAnswer, match="a token came instead of prompt token 7"):
        transcript.take(TokenEvent(0, 5))


@pytest.mark.spec("HEAD-36")
def test_every_event_of_a_real_engine_is_believed():
    rng = random.Random(5)
    beginnings = [engine_runs.ids(rng, 60) for _ in range(3)]
    engine = Engine(HashModel(), EngineConfig(block_size=4, kv_blocks=60, max_num_seqs=4, max_waiting=200))
    asked = [engine_runs.random_request(rng, beginnings) for _ in range(150)]
    keys = [engine.add_request(request, engine_runs.constraint_of(request)) for request in asked]
    events = engine_runs.run_to_end(engine)
    for key, request in zip(keys, asked, strict=True):
        transcript = Transcript(request, engine_runs.VOCABULARY)
        assert given(transcript, events[key]) == events[key]
        assert transcript.ended
