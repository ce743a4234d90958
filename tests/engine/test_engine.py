"""The engine from outside: how requests are added, their events, and how they end."""

import math

import attrs
import numpy as np
import pytest

from tests.kit.engine.alternating import ALTERNATING, Alternating
from tests.kit.engine.block_invariants import check_blocks, queue_position
from tests.kit.engine.engine_runs import alone, constraint_of, embedded_alone, run_to_end, tokens_of
from tests.kit.engine.hash_model import HashModel
from tests.kit.model.tiny_models import succ_model
from tlserve import errors
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.events import EmbeddingReady, Failed
from tlserve.generation import Finish, GenerationRequest, PrefillStarted, TokenEvent
from tlserve.kernels.interface import StepOutput
from tlserve.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0)
REQUEST = GenerationRequest(prompt=(1, 2, 3), max_tokens=5, seed=0, sampling=GREEDY)


def small(model=None, **config):
    return Engine(model or HashModel(), EngineConfig(**{"block_size": 4, "kv_blocks": 64} | config))


def events_of(engine, key):
    return run_to_end(engine)[key]


# --- answers


@pytest.mark.spec("ENG-4", "ENG-47")
def test_the_successor_model_counts_up_to_the_length_limit():
    engine = small(succ_model())
    key = engine.add_request(attrs.evolve(REQUEST, prompt=(97,), max_tokens=3))
    assert events_of(engine, key) == [
        PrefillStarted(0),
        TokenEvent(0, 98),
        TokenEvent(1, 99),
        TokenEvent(2, 100, finish=Finish.LENGTH),
    ]


@pytest.mark.spec("ENG-5")
def test_a_stop_token_is_reported_and_ends_the_answer():
    engine = small(succ_model())
    key = engine.add_request(attrs.evolve(REQUEST, prompt=(97,), stop_ids=frozenset({99})))
    assert events_of(engine, key)[1:] == [TokenEvent(0, 98), TokenEvent(1, 99, finish=Finish.STOP)]


@pytest.mark.spec("ENG-5")
def test_a_stop_token_at_the_length_limit_is_a_stop():
    engine = small(succ_model())
    key = engine.add_request(attrs.evolve(REQUEST, prompt=(97,), max_tokens=1, stop_ids=frozenset({98})))
    assert events_of(engine, key)[-1].finish is Finish.STOP


@pytest.mark.spec("ENG-47")
def test_the_end_of_the_context_ends_an_answer_by_length():
    engine = small(context_tokens=8)
    key = engine.add_request(attrs.evolve(REQUEST, max_tokens=100))
    assert [event.finish for event in tokens_of(events_of(engine, key))] == [None] * 4 + [Finish.LENGTH]


@pytest.mark.spec("ENG-2")
def test_a_resumed_answer_counts_from_its_emitted_tokens():
    engine = small(succ_model())
    key = engine.add_request(attrs.evolve(REQUEST, prompt=(97,), emitted=(98, 99), max_tokens=4))
    assert events_of(engine, key)[1:] == [TokenEvent(2, 100), TokenEvent(3, 101, finish=Finish.LENGTH)]


@pytest.mark.spec("ENG-22")
def test_the_first_event_says_how_much_of_the_prompt_was_cached():
    engine = small()
    prompt = tuple(range(30))
    for cached in (0, 28):
        key = engine.add_request(attrs.evolve(REQUEST, prompt=prompt))
        assert events_of(engine, key)[0] == PrefillStarted(cached)


@pytest.mark.spec("ENG-46")
def test_nothing_is_reported_before_a_request_has_rows():
    engine = small(max_num_seqs=1)
    engine.add_request(REQUEST)
    waiting = engine.add_request(REQUEST)
    assert not [event for event in engine.step() if event.key == waiting]


@pytest.mark.spec("ENG-46")
def test_a_preempted_request_reports_its_start_once():
    engine = small(kv_blocks=6, prefill_chunk=0)
    for start in range(3):
        engine.add_request(attrs.evolve(REQUEST, prompt=tuple(range(start, start + 6)), max_tokens=12))
    happened = run_to_end(engine)
    assert engine.statistics().preemptions_total > 0
    assert all([isinstance(e, PrefillStarted) for e in events].count(True) == 1 for events in happened.values())


def test_an_engine_without_work_does_nothing():
    engine = small()
    assert not engine.has_work
    assert engine.step() == []
    assert engine.statistics().steps_total == 0


# --- the shortest answer


SUCCESSORS = attrs.evolve(REQUEST, prompt=(97,), max_tokens=6, stop_ids=frozenset({99, 101}))


@pytest.mark.spec("ENG-39")
def test_no_stop_token_ends_an_answer_before_min_tokens():
    assert [e.token for e in alone(SUCCESSORS, succ_model())] == [98, 99]
    for shortest in range(1, 7):
        tokens = alone(attrs.evolve(SUCCESSORS, min_tokens=shortest), succ_model())
        assert len(tokens) >= shortest
        assert not [event for event in tokens[:shortest] if event.token in SUCCESSORS.stop_ids]


@pytest.mark.spec("ENG-39")
def test_min_tokens_counts_emitted_tokens():
    request = attrs.evolve(SUCCESSORS, min_tokens=2, emitted=(98, 100))
    assert alone(request, succ_model())[0].token == 101


class Ends:
    """Allows nothing but 99, a stop token."""

    def mask(self):
        return np.array([0, 0, 0, 1 << 3], np.uint32)

    def accept(self, token):
        assert token == 99

    def rollback(self, count):
        raise AssertionError


@pytest.mark.spec("ENG-60")
def test_an_answer_that_its_constraint_ends_can_be_below_min_tokens():
    engine = small(succ_model())
    key = engine.add_request(attrs.evolve(SUCCESSORS, min_tokens=5), Ends())
    assert tokens_of(events_of(engine, key)) == [TokenEvent(0, 99, finish=Finish.STOP)]


@pytest.mark.spec("ENG-60")
def test_if_every_token_is_a_stop_token_one_ends_the_answer():
    request = attrs.evolve(SUCCESSORS, stop_ids=frozenset(range(10_000)), min_tokens=5)
    assert alone(request, succ_model()) == [TokenEvent(0, 98, finish=Finish.STOP)]


# --- embeddings


@pytest.mark.spec("ENG-3")
@pytest.mark.parametrize("chunk", [0, 1, 7])
def test_an_embedding_has_the_same_bits_whatever_the_chunks(chunk):
    engine = small(prefill_chunk=chunk)
    keys = [engine.add_embedding(range(length)) for length in (1, 5, 23)]
    happened = run_to_end(engine)
    for key, length in zip(keys, (1, 5, 23), strict=True):
        vector = happened[key][-1].vector
        assert vector.tobytes() == embedded_alone(range(length)).tobytes()
        assert math.fsum(v * v for v in vector.tolist()) == pytest.approx(1, abs=1e-6)


@pytest.mark.spec("ENG-25")
def test_an_embedding_neither_reads_nor_fills_the_prefix_cache():
    engine = small()
    for _ in range(2):
        key = engine.add_embedding(range(20))
        assert events_of(engine, key)[0] == PrefillStarted(0)
    assert engine.statistics().kv_cached == 0
    assert engine.statistics().prefix_cache_queries_total == 0


# --- refusals


@pytest.mark.spec("ENG-7")
@pytest.mark.parametrize("prompt", [(), (-1,), (61,), (5, 10_000)])
def test_an_empty_prompt_or_an_unknown_token_is_a_client_error(prompt):
    engine = small()
    with pytest.raises(errors.ClientError):
        engine.add_request(attrs.evolve(REQUEST, prompt=prompt))
    with pytest.raises(errors.ClientError):
        engine.add_embedding(prompt)
    assert not engine.has_work


@pytest.mark.spec("ENG-48")
def test_a_prompt_must_leave_space_for_one_token():
    engine = small(context_tokens=10)
    engine.add_request(attrs.evolve(REQUEST, prompt=tuple(range(9))))
    engine.add_embedding(range(10))
    with pytest.raises(errors.ContextLengthExceeded, match=r"10 tokens.* is 10 tokens"):
        engine.add_request(attrs.evolve(REQUEST, prompt=tuple(range(10))))
    with pytest.raises(errors.ContextLengthExceeded):
        engine.add_embedding(range(11))


@pytest.mark.spec("ENG-6")
def test_the_context_is_never_longer_than_the_blocks_hold():
    assert small(kv_blocks=3).context_tokens == 12
    assert small(context_tokens=7).context_tokens == 7
    assert small(HashModel(context_tokens=50), context_tokens=90).context_tokens == 50


@pytest.mark.spec("ENG-8")
def test_requests_beyond_the_running_and_waiting_limits_are_refused():
    engine = small(max_num_seqs=2, max_waiting=1)
    keys = [engine.add_request(REQUEST) for _ in range(3)]
    engine.step()
    with pytest.raises(errors.Overloaded):
        engine.add_request(REQUEST)
    engine.abort(keys[2])
    engine.add_request(REQUEST)


@pytest.mark.spec("ENG-45")
@pytest.mark.parametrize(
    "ended",
    [{"emitted": (4, 5), "max_tokens": 2}, {"emitted": (4, 5), "stop_ids": frozenset({5})}],
)
def test_an_answer_that_has_ended_is_not_resumed(ended):
    with pytest.raises(errors.ClientError):
        small().add_request(attrs.evolve(REQUEST, **ended))


# --- aborts


def aborted_in(engine, key):
    engine.abort(key)
    check_blocks(engine)
    assert not engine.has_work
    statistics = engine.statistics()
    assert (statistics.kv_used, statistics.queue_depth, statistics.active_sequences) == (0, 0, 0)
    assert statistics.finished_aborted_total == 1
    assert engine.step() == []


@pytest.mark.spec("ENG-9")
def test_an_abort_while_waiting_leaves_nothing():
    engine = small()
    aborted_in(engine, engine.add_request(REQUEST))


@pytest.mark.spec("ENG-9")
def test_an_abort_in_the_middle_of_a_prefill_leaves_nothing():
    engine = small(prefill_chunk=5)
    key = engine.add_request(attrs.evolve(REQUEST, prompt=tuple(range(40))))
    engine.step()
    aborted_in(engine, key)


@pytest.mark.spec("ENG-9")
def test_an_abort_while_decoding_leaves_nothing_but_the_cache():
    engine = small()
    key = engine.add_request(attrs.evolve(REQUEST, prompt=tuple(range(10))))
    engine.step()
    engine.step()
    aborted_in(engine, key)
    assert engine.statistics().kv_cached == 2


@pytest.mark.spec("ENG-9")
def test_an_abort_of_a_preempted_request_leaves_nothing():
    engine = small(kv_blocks=5, prefill_chunk=0, max_num_seqs=2)
    first, second = (engine.add_request(attrs.evolve(REQUEST, prompt=(s,) * 6, max_tokens=12)) for s in (1, 2))
    while not engine.statistics().preemptions_total:
        engine.step()
    assert queue_position(engine, second) == 0
    engine.abort(first)
    engine.abort(second)
    check_blocks(engine)
    assert not engine.has_work


@pytest.mark.spec("ENG-9")
def test_an_abort_of_an_embedding_leaves_nothing():
    engine = small(prefill_chunk=5)
    key = engine.add_embedding(range(40))
    engine.step()
    aborted_in(engine, key)


@pytest.mark.spec("ENG-9")
def test_an_abort_of_an_ended_or_unknown_request_is_ignored():
    engine = small()
    key = engine.add_request(REQUEST)
    run_to_end(engine)
    engine.abort(key)
    engine.abort(99)
    assert engine.statistics().finished_aborted_total == 0


@pytest.mark.spec("ENG-9")
def test_abort_all_ends_every_request():
    engine = small(max_num_seqs=2)
    for _ in range(4):
        engine.add_request(REQUEST)
    engine.step()
    engine.abort_all()
    check_blocks(engine)
    assert not engine.has_work
    assert engine.statistics().finished_aborted_total == 4


# --- faults


@attrs.define(eq=False)
class PoisonedModel(HashModel):
    """Gives a NaN wherever the row's token is `poison`."""

    poison: int = 60

    def forward(self, batch, kv):
        output = super().forward(batch, kv)
        output.logits[batch.tokens[batch.logit_rows] == self.poison] = math.nan
        output.hidden[batch.tokens[batch.hidden_rows] == self.poison] = math.nan
        return output


@pytest.mark.spec("ENG-10")
def test_logits_that_are_not_numbers_end_their_own_request_only():
    engine = small(PoisonedModel())
    good, bad = engine.add_request(REQUEST), engine.add_request(attrs.evolve(REQUEST, prompt=(5, 60)))
    happened = run_to_end(engine)
    assert isinstance(happened[bad][-1], Failed)
    assert isinstance(happened[bad][-1].error, errors.ServerFault)
    assert tokens_of(happened[good]) == alone(REQUEST)
    statistics = engine.statistics()
    assert (statistics.finished_failed_total, statistics.finished_length_total) == (1, 1)
    assert statistics.kv_used == 0


@pytest.mark.spec("ENG-10")
def test_hidden_states_that_are_not_numbers_end_their_own_embedding_only():
    engine = small(PoisonedModel())
    good, bad = engine.add_embedding((1, 2)), engine.add_embedding((60, 2))
    happened = run_to_end(engine)
    assert isinstance(happened[bad][-1], Failed)
    assert isinstance(happened[good][-1], EmbeddingReady)


class BrokenModel(HashModel):
    def forward(self, batch, kv) -> StepOutput:
        raise MemoryError("no memory for the activations")


@pytest.mark.spec("ENG-49")
def test_an_exception_of_the_forward_pass_leaves_the_step():
    engine = small(BrokenModel())
    engine.add_request(REQUEST)
    with pytest.raises(MemoryError):
        engine.step()


# --- constraints


def constrained(**fields):
    return attrs.evolve(REQUEST, max_tokens=30, grammar=ALTERNATING, **fields)


@pytest.mark.spec("ENG-31")
@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.2, top_k=20)])
def test_a_constraint_is_enforced_and_drafts_do_not_change_the_answer(sampling):
    prompt = (1, 4, 13, 40) * 4
    plain = alone(constrained(sampling=sampling, prompt=prompt))
    engine = small(speculative="prompt_lookup", speculative_tokens=8)
    request = constrained(sampling=sampling, prompt=prompt)
    constraint = constraint_of(request)
    key = engine.add_request(request, constraint)
    assert tokens_of(events_of(engine, key)) == plain
    assert [event.token % 2 for event in plain] == [0, 1] * 15
    assert constraint.accepted == [event.token for event in plain]


@pytest.mark.spec("ENG-31")
def test_a_resumed_request_advances_its_constraint_over_emitted_tokens():
    whole = alone(constrained())
    emitted = tuple(event.token for event in whole[:7])
    assert alone(constrained(emitted=emitted)) == whole[7:]


@pytest.mark.spec("ENG-10")
def test_a_constraint_that_fails_ends_its_own_request_only():
    engine = small()
    good = engine.add_request(REQUEST)
    bad = engine.add_request(REQUEST, Alternating(fail_at=2))
    happened = run_to_end(engine)
    assert [type(event) for event in happened[bad]] == [PrefillStarted, TokenEvent, TokenEvent, Failed]
    assert tokens_of(happened[good]) == alone(REQUEST)


FORETOLD = (1, 4, 13, 40, 60, 59, 56, 47, 20, 0, 1, 4, 13, 40)
"""Text that repeats itself, and for five tokens as the alternating constraint requires."""


class Watched(Alternating):
    """Counts its queries."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def mask(self):
        self.asked += 1
        return super().mask()


@pytest.mark.spec("ENG-56")
def test_a_constraint_is_queried_once_for_each_row_that_can_count():
    request = constrained(sampling=GREEDY, prompt=FORETOLD)
    engine = small(HashModel(pull=12.0), speculative="prompt_lookup", speculative_tokens=8)
    constraint = Watched()
    key = engine.add_request(request, constraint)
    tokens = tokens_of(events_of(engine, key))
    statistics = engine.statistics()
    assert tokens == alone(request, HashModel(pull=12.0))
    assert statistics.accepted_tokens_total > 0
    assert len(tokens) <= constraint.asked <= len(tokens) + statistics.drafted_tokens_total


@pytest.mark.spec("ENG-56")
@pytest.mark.parametrize("fail_at", range(9))
def test_a_constraint_that_fails_ends_at_the_same_token_with_drafts(fail_at):
    request = constrained(sampling=GREEDY, prompt=FORETOLD)
    found = []
    for speculative in ("none", "prompt_lookup"):
        engine = small(HashModel(pull=12.0), speculative=speculative, speculative_tokens=8)
        key = engine.add_request(request, Alternating(fail_at=fail_at))
        found.append([event for event in events_of(engine, key) if isinstance(event, TokenEvent | Failed)])
    assert len(found[0]) == fail_at + 1
    assert [str(event) for event in found[0]] == [str(event) for event in found[1]]


class Forgetful(Alternating):
    def rollback(self, count):
        raise RuntimeError("it was not written down")


@pytest.mark.spec("ENG-31")
def test_a_constraint_that_cannot_take_drafts_back_ends_its_own_request():
    engine = small(HashModel(pull=12.0), speculative="prompt_lookup", speculative_tokens=8)
    key = engine.add_request(constrained(sampling=GREEDY, prompt=FORETOLD), Forgetful())
    other = engine.add_request(REQUEST)
    happened = run_to_end(engine)
    assert isinstance(happened[key][-1], Failed)
    assert len(tokens_of(happened[other])) == 5


class Costly(Alternating):
    def mask(self):
        raise errors.GrammarLimitExceeded("the grammar takes too much work for one token")


@pytest.mark.spec("ENG-31")
def test_a_grammar_that_reaches_its_limit_ends_its_own_request():
    engine = small()
    key, other = engine.add_request(constrained(), Costly()), engine.add_request(REQUEST)
    happened = run_to_end(engine)
    assert isinstance(happened[key][-1].error, errors.GrammarLimitExceeded)
    assert len(tokens_of(happened[other])) == 5


# --- speculation


@pytest.mark.spec("ENG-32")
def test_drafts_that_hit_save_steps_and_are_counted():
    repeating = GenerationRequest(prompt=(*range(97, 123), *range(97, 100)), max_tokens=20, seed=0, sampling=GREEDY)
    engine = small(succ_model(), speculative="prompt_lookup")
    engine.add_request(repeating)
    rows = 0
    while engine.has_work:
        engine.step()
        rows += engine.statistics().batch_tokens
    statistics = engine.statistics()
    assert statistics.steps_total <= 10
    assert statistics.generated_tokens_total == 20
    assert statistics.accepted_tokens_total == 20 - statistics.steps_total
    assert rows == len(repeating.prompt) + statistics.steps_total - 1 + statistics.drafted_tokens_total


def test_tokens_that_cannot_be_part_of_the_answer_are_not_drafted():
    engine = small(succ_model(), speculative="prompt_lookup")
    engine.add_request(GenerationRequest(prompt=(1, 2, 3, 4, 5, 1, 2), max_tokens=2, seed=0, sampling=GREEDY))
    run_to_end(engine)
    assert engine.statistics().drafted_tokens_total == 0


@pytest.mark.spec("ENG-32")
def test_an_answer_that_stops_inside_a_draft_gets_nothing_after_the_stop():
    prompt = (*range(97, 123), *range(97, 100))
    request = GenerationRequest(prompt=prompt, max_tokens=20, seed=0, sampling=GREEDY, stop_ids=frozenset({103}))
    engine = small(succ_model(), speculative="prompt_lookup", speculative_tokens=16)
    key = engine.add_request(request)
    tokens = tokens_of(events_of(engine, key))
    assert [event.token for event in tokens] == [100, 101, 102, 103]
    assert tokens[-1].finish is Finish.STOP


# --- counting


@pytest.mark.spec("ENG-11")
def test_the_statistics_add_up():
    engine = small(succ_model(), prefill_chunk=4)
    engine.add_request(attrs.evolve(REQUEST, prompt=(97,) * 10, max_tokens=3))
    engine.add_request(attrs.evolve(REQUEST, prompt=(97,), max_tokens=9, stop_ids=frozenset({99})))
    engine.add_embedding((1, 2, 3))
    run_to_end(engine)
    statistics = engine.statistics()
    assert statistics.prompt_tokens_total == 14
    assert statistics.generated_tokens_total == 5
    assert (statistics.finished_length_total, statistics.finished_stop_total) == (1, 2)
    assert 0 < statistics.forward_seconds_total < statistics.step_seconds_total
    assert statistics.kv_free + statistics.kv_cached == 64


@pytest.mark.spec("ENG-11")
def test_gauges_show_waiting_and_running_sequences():
    engine = small(max_num_seqs=1)
    for _ in range(3):
        engine.add_request(REQUEST)
    engine.step()
    statistics = engine.statistics()
    assert (statistics.queue_depth, statistics.active_sequences, statistics.batch_tokens) == (2, 1, 3)
    assert statistics.kv_used == 1


@pytest.mark.parametrize(
    "wrong", [{"block_size": 0}, {"max_num_seqs": 0}, {"prefix_cache": "tree"}, {"speculative": "yes"}]
)
def test_a_setting_out_of_range_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EngineConfig(**wrong)
