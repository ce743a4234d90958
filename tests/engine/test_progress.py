"""Progress events of a request before its first token."""

import attrs
import pytest

from tests.kit.engine.engine_runs import check_progress, run_to_end
from tests.kit.engine.hash_model import HashModel
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.generation import GenerationRequest, PrefillStarted, Progress, TokenEvent

REQUEST = GenerationRequest(prompt=tuple(range(20)), max_tokens=2, seed=0, progress=True)


def small(**config):
    return Engine(HashModel(), EngineConfig(**{"block_size": 4, "kv_blocks": 64, "prefix_cache": "none"} | config))


@pytest.mark.spec("ENG-63")
def test_the_computed_share_of_the_prompt_is_reported_after_each_chunk():
    engine = small(prefill_chunk=8)
    key = engine.add_request(REQUEST)
    events = run_to_end(engine)[key]
    assert events[:4] == [PrefillStarted(0), Progress(done=8), Progress(done=16), Progress(done=20)]
    assert [type(event) for event in events[4:]] == [TokenEvent, TokenEvent]


@pytest.mark.spec("ENG-42")
def test_a_place_in_the_queue_is_reported_when_it_changes():
    engine = small(max_num_seqs=1)
    first, second, third = (
        engine.add_request(attrs.evolve(REQUEST, prompt=(s, s, s), max_tokens=3)) for s in (1, 2, 3)
    )
    happened = run_to_end(engine)
    assert happened[first][:2] == [PrefillStarted(0), Progress(done=3)]
    assert happened[second][:3] == [Progress(ahead=0), PrefillStarted(0), Progress(done=3)]
    assert happened[third][:4] == [Progress(ahead=1), Progress(ahead=0), PrefillStarted(0), Progress(done=3)]


@pytest.mark.spec("ENG-42")
def test_a_request_of_higher_priority_moves_the_others_back():
    engine = small(max_num_seqs=1)
    engine.add_request(attrs.evolve(REQUEST, max_tokens=9))
    waiting = engine.add_request(REQUEST)
    engine.step()
    engine.add_request(attrs.evolve(REQUEST, priority=1))
    assert [event.what for event in engine.step() if event.key == waiting] == [Progress(ahead=1)]
    assert not [event for event in engine.step() if event.key == waiting]


@pytest.mark.spec("ENG-42")
def test_requests_without_progress_get_none():
    engine = small(max_num_seqs=1, prefill_chunk=8)
    keys = [engine.add_request(attrs.evolve(REQUEST, progress=False)) for _ in "ab"]
    happened = run_to_end(engine)
    assert all([type(e) for e in happened[key]] == [PrefillStarted, TokenEvent, TokenEvent] for key in keys)


@pytest.mark.spec("ENG-63")
def test_no_progress_follows_the_first_token_even_after_a_preemption():
    engine = small(kv_blocks=6, prefill_chunk=0)
    request = attrs.evolve(REQUEST, max_tokens=12)
    keys = [engine.add_request(attrs.evolve(request, prompt=tuple(range(s, s + 6)))) for s in range(3)]
    happened = run_to_end(engine)
    assert engine.statistics().preemptions_total > 0
    for key in keys:
        check_progress(attrs.evolve(request, prompt=tuple(range(6))), happened[key])


@pytest.mark.spec("ENG-42")
def test_a_place_in_the_queue_is_reported_before_the_step_is_computed():
    engine = small(max_num_seqs=1)
    engine.add_request(REQUEST)
    waiting = engine.add_request(REQUEST)
    announced = []
    later = engine.step(announced.extend)
    assert Progress(ahead=0) in [event.what for event in announced if event.key == waiting]
    assert not [event for event in later if event.key == waiting]
