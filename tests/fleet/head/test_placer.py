"""Filter, score, pick: a conversation finds its cache, a loaded node is skipped, and two heads agree."""

import hashlib
import itertools
from array import array

import attrs
import pytest

from tests.kit.fleet.placement_model import ByAffinity, Conversations, at_random, in_turn
from tlserve.fleet.head.limits import PlacementWeights
from tlserve.fleet.head.node_ranking import Candidate, needs_of, rank
from tlserve.fleet.head.prefix_index import BLOCK_TOKENS, PrefixIndex, chain_of, home_key
from tlserve.generation import GenerationRequest, Grammar
from tlserve.sampling_params import SamplingParams

WEIGHTS = PlacementWeights()
NODES = ("a", "b", "c", "d")


def best(*candidates, home=b"home"):
    return rank(candidates, home, WEIGHTS)[0].node


def tokens(first, count):
    return tuple(range(first, first + count))


def is_text(data):
    try:
        return bool(data.decode())
    except UnicodeDecodeError:
        return False


# --- ranking


def test_without_candidates_no_node_is_chosen():
    assert rank((), b"", WEIGHTS) == ()


def test_every_candidate_is_ranked_once():
    candidates = [Candidate(node, load) for load, node in enumerate(NODES)]
    assert sorted(rank(candidates, b"x", WEIGHTS), key=lambda candidate: candidate.node) == candidates


@pytest.mark.spec("PLACE-1")
def test_the_node_with_more_of_the_prompt_is_chosen():
    assert best(Candidate("a", 1, 160), Candidate("b", 1, 320), Candidate("c", 1, 0)) == "b"


@pytest.mark.spec("PLACE-1")
def test_without_a_match_the_least_loaded_node_is_chosen():
    assert best(Candidate("a", 6), Candidate("b", 1), Candidate("c", 5)) == "b"


@pytest.mark.spec("PLACE-1")
def test_load_outweighs_a_short_match_but_not_a_long_one():
    assert best(Candidate("a", 6, 32), Candidate("b", 0, 0)) == "b"
    assert best(Candidate("a", 6, 1024), Candidate("b", 0, 0)) == "a"


@pytest.mark.spec("PLACE-2")
def test_no_match_counts_on_a_node_with_far_more_load():
    assert best(Candidate("a", 8, 4096), Candidate("b", 0, 0)) == "a"
    assert best(Candidate("a", 9, 4096), Candidate("b", 0, 0)) == "b"


@pytest.mark.spec("PLACE-7")
def test_ties_are_decided_the_same_in_any_order():
    candidates = [Candidate(node) for node in NODES]
    for nth in range(50):
        home = str(nth).encode()
        assert rank(candidates, home, WEIGHTS) == rank(candidates[::-1], home, WEIGHTS)


@pytest.mark.spec("PLACE-3")
def test_conversations_are_spread_over_the_nodes():
    chosen = [best(*(Candidate(node) for node in NODES), home=str(nth).encode()) for nth in range(400)]
    assert all(60 < chosen.count(node) < 140 for node in NODES)


@pytest.mark.spec("PLACE-3")
def test_a_node_that_leaves_moves_only_its_own_conversations():
    for nth in range(50):
        home = str(nth).encode()
        before = best(*(Candidate(node) for node in NODES), home=home)
        after = best(*(Candidate(node) for node in NODES if node != "d"), home=home)
        assert before in (after, "d")


@pytest.mark.spec("PLACE-1", "PLACE-7")
def test_a_home_is_worth_a_little_load():
    home = next(
        str(nth).encode() for nth in range(50) if best(Candidate("a"), Candidate("b"), home=str(nth).encode()) == "a"
    )
    assert best(Candidate("a", 1), Candidate("b", 0), home=home) == "a"
    assert best(Candidate("a", 3), Candidate("b", 0), home=home) == "b"


# --- names of blocks


@pytest.mark.spec("PLACE-4")
def test_sequences_share_the_names_of_their_common_blocks():
    one, other = chain_of(tokens(0, 64) + (1,) * 16), chain_of(tokens(0, 64) + (2,) * 16)
    assert one[:4] == other[:4]
    assert one[4] != other[4]


@pytest.mark.spec("PLACE-4")
def test_the_name_of_a_block_depends_on_all_tokens_before_it():
    assert chain_of(tokens(0, 16) + tokens(5, 16))[1] != chain_of(tokens(1, 16) + tokens(5, 16))[1]


def test_an_incomplete_block_has_no_name():
    assert [len(chain_of(tokens(0, count))) for count in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


@pytest.mark.spec("PLACE-4")
def test_salts_share_nothing():
    assert not set(chain_of(tokens(0, 64), "a")) & set(chain_of(tokens(0, 64), "b"))


@pytest.mark.spec("PLACE-4")
def test_a_crafted_salt_has_the_name_of_no_block():
    first, second = tokens(0, 16), tokens(16, 16)
    digests = ((str(i), hashlib.blake2b(str(i).encode(), digest_size=8).digest()) for i in itertools.count())
    salt, digest = next((salt, digest) for salt, digest in digests if is_text(digest))
    crafted = (digest + array("Q", first).tobytes()).decode()
    assert not set(chain_of(first + second, salt)) & set(chain_of(second, crafted))


@pytest.mark.spec("PLACE-4")
def test_names_are_the_same_in_every_process():
    assert chain_of(tokens(0, 16))[0].hex() == "5fe34dee8eb9674b"


@pytest.mark.spec("PLACE-4")
def test_the_home_of_a_conversation_stays_while_it_grows():
    prompt = tokens(0, 70)
    assert (
        home_key(chain_of(prompt)) == home_key(chain_of(prompt + tokens(100, 500))) != home_key(chain_of(tokens(1, 70)))
    )
    assert home_key(()) == b""


# --- the expected cache of a node


def test_sent_prompts_are_matched_block_by_block():
    index = PrefixIndex(100)
    index.insert(chain_of(tokens(0, 64)))
    assert index.matched_tokens(chain_of(tokens(0, 100))) == 64
    assert index.matched_tokens(chain_of(tokens(0, 40))) == 32
    assert index.matched_tokens(chain_of(tokens(1, 64))) == 0


@pytest.mark.spec("PLACE-5")
def test_the_memory_is_bounded_and_forgets_the_ends_of_the_oldest_first():
    index = PrefixIndex(6)
    old, new = chain_of(tokens(0, 64)), chain_of(tokens(500, 64))
    index.insert(old)
    index.insert(new)
    assert len(index) == 6
    assert (index.matched_tokens(old), index.matched_tokens(new)) == (32, 64)


@pytest.mark.spec("PLACE-8")
def test_the_index_forgets_its_oldest_blocks_if_a_node_had_fewer():
    index = PrefixIndex(100)
    old, new = chain_of(tokens(0, 64)), chain_of(tokens(500, 64))
    index.insert(old)
    index.insert(new)
    index.correct(expected_tokens=64, cached_tokens=64)
    assert len(index) == 8
    index.correct(expected_tokens=64, cached_tokens=31)
    assert (index.matched_tokens(old), index.matched_tokens(new)) == (2 * BLOCK_TOKENS, 64)


# --- the features of a request


@pytest.mark.spec("HEAD-22")
@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({}, set()),
        ({"sampling": SamplingParams(temperature=0, top_k=5, top_p=0.5, min_p=0.1)}, set()),
        ({"sampling": SamplingParams(repetition_penalty=1.0, presence_penalty=0, frequency_penalty=0.0)}, set()),
        ({"sampling": SamplingParams(repetition_penalty=1.1)}, {"penalties"}),
        ({"sampling": SamplingParams(frequency_penalty=-1, logit_bias=((1, 2.0),))}, {"penalties", "logit_bias"}),
        ({"logprobs": 0, "prompt_logprobs": 0, "min_tokens": 1}, {"logprobs", "prompt_logprobs", "min_tokens"}),
        ({"grammar": Grammar("x")}, {"grammar"}),
    ],
)
def test_a_request_needs_the_features_it_uses_and_no_op_values_need_none(changes, needs):
    request = attrs.evolve(GenerationRequest(prompt=(1,), max_tokens=1, seed=0), **changes)
    assert needs_of(request) == needs


# --- conversations


@pytest.mark.spec("PLACE-6")
def test_turns_find_their_cache_where_random_placement_misses_two_fifths():
    affinity = [Conversations(seed).hit_rate(ByAffinity()) for seed in range(3)]
    random = [Conversations(seed).hit_rate(at_random(seed)) for seed in range(3)]
    print(f"share of prompt tokens found: affinity {affinity}, random {random}")
    assert min(affinity) > 0.9
    assert max(random) < 0.65


@pytest.mark.spec("PLACE-6")
def test_turns_find_their_cache_through_two_independent_heads():
    for seed in range(3):
        alone = Conversations(seed).hit_rate(ByAffinity())
        through_two = Conversations(seed).hit_rate(in_turn(ByAffinity(), ByAffinity()))
        assert through_two > 0.9 * alone


@pytest.mark.spec("PLACE-6")
def test_affinity_leaves_no_node_idle():
    conversations = Conversations(0)
    choose, chosen = ByAffinity(), []

    def note(chain, load):
        chosen.append(choose(chain, load))
        return chosen[-1]

    conversations.hit_rate(note)
    assert all(chosen.count(node) > len(chosen) / 6 for node in "abc")
