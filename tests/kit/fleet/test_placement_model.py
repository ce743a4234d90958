"""The model of conversations repeats from its seed, and knows the cache of each node."""

from tests.kit.fleet.placement_model import ByAffinity, Conversations, at_random, in_turn


def test_conversations_repeat_from_their_seed() -> None:
    assert Conversations(1).hit_rate(at_random(1)) == Conversations(1).hit_rate(at_random(1))
    assert Conversations(1).hit_rate(at_random(1)) != Conversations(2).hit_rate(at_random(1))


def test_one_large_node_finds_everything_that_is_not_new() -> None:
    everything = Conversations(0, cache_blocks=100_000).hit_rate(lambda chain, load: "a")
    nothing = Conversations(0, cache_blocks=1).hit_rate(lambda chain, load: "a")
    assert everything > 0.9
    assert nothing < 0.1


def test_heads_are_used_in_turn() -> None:
    asked = in_turn(lambda chain, load: "a", lambda chain, load: "b")
    assert [asked((), len) for _ in range(4)] == ["a", "b", "a", "b"]
    assert ByAffinity()((), lambda node: "abc".index(node)) in "abc"
