"""Drafts repeat earlier text, and stop when they miss."""

import random

import pytest

from tlserve.engine.prompt_lookup import PromptLookup, least_chance


def test_a_draft_has_the_tokens_after_the_earlier_match():
    assert PromptLookup().draft([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 4) == (4, 5, 6, 7)


@pytest.mark.spec("ENG-33")
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


def test_a_draft_has_at_most_the_requested_number_of_tokens():
    assert PromptLookup().draft([1, 2, 3, 4, 5, 6, 1, 2, 3], 1) == (4,)


def test_tokens_that_come_later_are_also_found():
    lookup = PromptLookup()
    tokens = [1, 2, 3, 4]
    assert lookup.draft(tokens, 2) == ()
    tokens += [1, 2, 3]
    assert lookup.draft(tokens, 2) == (4, 1)


def drafted(tokens, sequences, most=8):
    """Return how many of the last 1000 tokens were drafted before they came, and how many of these drafts were right."""
    lookup, count, right = PromptLookup(), 0, 0
    for end in range(len(tokens) - 1000, len(tokens)):
        draft = lookup.draft(tokens[:end], most, least_chance(sequences))
        count += len(draft[:1])
        right += draft[:1] == tuple(tokens[end : end + 1])
    return count, right


@pytest.mark.spec("ENG-64")
def test_drafts_that_miss_become_rare():
    rng, tokens = random.Random(1), list(range(500))
    for new in range(500, 1000):  # three known tokens, then one that is new
        start = rng.randrange(490)
        tokens += (start, start + 1, start + 2, new)
    count, right = drafted(tokens, 1)
    assert right < count < 1000 / 50


@pytest.mark.spec("ENG-33")
def test_with_more_running_sequences_a_draft_must_be_more_likely():
    rng = random.Random(2)
    tokens = [*range(1000)]
    while len(tokens) < 3000:
        start = rng.randrange(900)
        tokens += range(start, start + rng.choice([4, 6, 20]))
    counts = [drafted(tokens, sequences) for sequences in (1, 8, 32)]
    assert counts[0][0] > counts[1][0] > counts[2][0]
    assert counts[0][1] / counts[0][0] < counts[1][1] / counts[1][0]


@pytest.mark.spec("ENG-33", "ENG-64")
def test_a_text_that_repeats_itself_gets_long_drafts_and_a_miss_ends_them():
    lookup, tokens = PromptLookup(), [*range(100), *range(50)]
    assert len(lookup.draft(tokens, 16, least_chance(1))) == 16
    assert len(lookup.draft([*tokens, 50, 51, 52], 4, least_chance(8))) == 4
    assert lookup.draft([*tokens, 50, 51, 52, 7777], 16, least_chance(1)) == ()


def test_the_least_chance_of_a_draft_follows_from_the_cost_of_a_row():
    assert [least_chance(n) for n in (1, 4, 12)] == [1 / 5, 1 / 2, 3 / 4]
