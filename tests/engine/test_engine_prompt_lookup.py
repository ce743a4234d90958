"""Drafts come from what was said before, and stop costing when they miss."""

from tlserve.engine.prompt_lookup import PromptLookup


def test_a_draft_is_what_followed_the_earlier_match():
    assert PromptLookup().draft([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 4) == (4, 5, 6, 7)


def test_the_longest_match_wins_over_a_later_shorter_one():
    tokens = [9, 1, 2, 3, 50, 60, 8, 1, 2, 3, 70, 80, 9, 1, 2, 3]
    assert PromptLookup().draft(tokens, 2) == (50, 60)


def test_the_latest_of_equal_matches_wins():
    assert PromptLookup().draft([1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3], 1) == (60,)


def test_a_repetition_is_drafted_beyond_its_end():
    assert PromptLookup().draft([7, 8, 7, 8, 7, 8], 4) == (7, 8, 7, 8)


def test_text_without_repetition_has_no_draft():
    assert PromptLookup().draft(list(range(100)), 4) == ()
    assert PromptLookup().draft([1], 4) == ()
    assert PromptLookup().draft([1, 1, 1], 4) == ()


def test_a_draft_has_at_most_as_many_tokens_as_asked():
    assert PromptLookup().draft([1, 2, 3, 4, 5, 6, 1, 2, 3], 1) == (4,)


def test_tokens_that_come_later_are_found_too():
    lookup = PromptLookup()
    tokens = [1, 2, 3, 4]
    assert lookup.draft(tokens, 2) == ()
    tokens += [1, 2, 3]
    assert lookup.draft(tokens, 2) == (4, 1)


def drafted_steps(lookup, tokens, steps):
    """Return how many of `steps` steps draft, when every draft misses."""
    drafted = 0
    for _ in range(steps):
        draft = lookup.draft(tokens, 4)
        if draft:
            drafted += 1
            lookup.settle(len(draft), 0)
    return drafted


def test_drafts_that_miss_become_rare():
    tokens = [1, 2, 3, 4, 1, 2, 3]
    assert drafted_steps(PromptLookup(), tokens, 1000) < 1000 / 50


def test_a_hit_ends_the_rests_and_lengthens_the_drafts():
    lookup, tokens = PromptLookup(), [*range(20), *range(3)]
    drafted_steps(lookup, tokens, 10)
    while not (draft := lookup.draft(tokens, 16)):
        pass
    lengths = []
    for _ in range(5):
        lookup.settle(len(draft), len(draft))
        draft = lookup.draft(tokens, 16)
        lengths.append(len(draft))
    assert lengths == [2, 4, 8, 16, 16]
