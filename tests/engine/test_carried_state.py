"""What a draw can depend on besides its row: mirostat's mu, DRY's tokens, windows, and the ids that a request allows."""

import itertools

import attrs
import pytest

from tests.kit.engine.alternating import ALTERNATING
from tests.kit.engine.engine_runs import alone
from tests.kit.engine.hash_model import HashModel
from tlserve import errors
from tlserve.engine.config import EngineConfig
from tlserve.engine.engine import Engine
from tlserve.engine.sampling.constraint import TokenBound, mask_with
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import Breaker, Dry, SamplingParams

REQUEST = GenerationRequest(prompt=(1, 2, 3, 1, 2), max_tokens=24, seed=7)
KINDS = {
    "mirostat 1": SamplingParams(mirostat=1, mirostat_tau=2.0, mirostat_eta=0.5),
    "mirostat 2": SamplingParams(mirostat=2, mirostat_tau=2.0, mirostat_eta=0.5),
    "dry": SamplingParams(dry=Dry(multiplier=3.0, allowed_length=1, breakers=(Breaker(heads=b"\x10"),)), top_k=3),
    "a window": SamplingParams(penalty_last_n=5, presence_penalty=1.5, repetition_penalty=1.3, top_k=3),
    "a chain": SamplingParams(typical_p=0.7, xtc_probability=0.5, min_keep=2, dynatemp_range=0.4),
}


@pytest.mark.spec("ENG-2", "ENG-70", "ENG-71")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [1, 2, 11, 23])
def test_an_answer_continues_with_the_same_bits_from_its_tokens_and_mu(kind, cut):
    request = attrs.evolve(REQUEST, sampling=KINDS[kind], logprobs=1)
    whole = alone(request)
    emitted = tuple(event.token for event in whole[:cut])
    assert alone(attrs.evolve(request, emitted=emitted, mu=whole[cut - 1].mu)) == whole[cut:]
    assert (whole[0].mu is not None) == kind.startswith("mirostat")


@pytest.mark.spec("ENG-69")
@pytest.mark.parametrize("kind", KINDS)
def test_the_samplers_change_the_answer(kind):
    plain = SamplingParams(top_k=KINDS[kind].top_k)
    assert alone(attrs.evolve(REQUEST, sampling=KINDS[kind])) != alone(attrs.evolve(REQUEST, sampling=plain))


def drawn(**fields):
    return [event.token for event in alone(attrs.evolve(REQUEST, **fields))]


@pytest.mark.spec("ENG-72")
def test_only_allowed_ids_are_drawn():
    assert set(drawn(allowed_ids=(3, 60))) == {3, 60}


@pytest.mark.spec("ENG-72")
def test_a_banned_run_is_not_completed_and_the_rest_is_as_it_was():
    free = drawn()
    pair = (free[4], free[5])
    banned = drawn(banned=(pair,))
    assert banned[:5] == free[:5]
    assert banned[5] != free[5]
    assert pair not in itertools.pairwise(banned)
    assert free[7] not in drawn(banned=((free[7],),))


@pytest.mark.spec("ENG-72")
def test_a_run_that_began_in_the_prompt_is_not_banned():
    first = drawn()[0]
    assert drawn(banned=((2, first),))[0] == first


@pytest.mark.spec("ENG-72")
def test_an_answer_that_is_bound_has_the_same_bits_with_drafts():
    request = attrs.evolve(REQUEST, allowed_ids=(3, 60), banned=((3, 3), (60, 60, 3)), sampling=SamplingParams(top_k=9))
    config = EngineConfig(block_size=4, kv_blocks=64, speculative="prompt_lookup", speculative_tokens=4)
    assert alone(request, config=config) == alone(request)


@pytest.mark.spec("ENG-72")
def test_where_a_bound_leaves_nothing_it_gives_way():
    assert set(drawn(allowed_ids=(3,), banned=((3,),))) == {3}
    assert drawn(grammar=ALTERNATING, allowed_ids=(10_000 % 61,)) != []
    bound = TokenBound((3, 4), ((5, 3), (5, 4)), 64)
    assert bound.mask([5]).tolist() == mask_with((3, 4), 64).tolist()


@pytest.mark.spec("ENG-7")
@pytest.mark.parametrize(
    "wrong",
    [
        {"allowed_ids": (10**6,)},
        {"banned": ((-1,),)},
        {"banned": ((),)},
        {"banned": ((1,) * 65,)},
        {"mu": float("nan")},
        *(
            {"sampling": SamplingParams(**fields)}
            for fields in (
                {"top_n_sigma": -1.0},
                {"typical_p": 0.0},
                {"xtc_probability": 2.0},
                {"dynatemp_range": float("inf")},
                {"mirostat": 3},
                {"mirostat_tau": float("nan")},
                {"min_keep": -1},
                {"samplers": ("top_a",)},
                {"samplers": ("top_k", "top_k")},
                {"penalty_last_n": -1},
                {"dry": Dry(multiplier=-1.0)},
                {"dry": Dry(multiplier=1.0, base=0.5)},
                {"dry": Dry(multiplier=1.0, allowed_length=0)},
                {"dry": Dry(multiplier=1.0, breakers=(Breaker(heads=b"\x01"),) * 65)},
                {"dry": Dry(multiplier=1.0, breakers=(Breaker(heads=b"\x01", tail=(1,) * 21),))},
            )
        ),
    ],
    ids=repr,
)
def test_what_no_step_could_use_is_refused(wrong):
    engine = Engine(HashModel(), EngineConfig(block_size=4, kv_blocks=64))
    with pytest.raises(errors.ClientError):
        engine.add_request(attrs.evolve(REQUEST, **wrong))
