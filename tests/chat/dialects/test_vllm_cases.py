"""The answers of vLLM's tests of parsers, against the page that says how they are read."""

import random

import pytest

from docs.make.vllm_cases import OTHERWISE, cases, reason, wrong_cases

CASES, LEFT = cases()
WRONG = wrong_cases()
APPLICABLE, RIGHT = 415, 395
"""What was reached; both may only grow."""
SHORT = 150
"""Answers of at most so many characters are cut at every place."""


def test_the_answers_of_vllm_are_read_in_the_same_way_or_the_reason_is_known(capsys):
    right = len(CASES) - len(WRONG)
    with capsys.disabled():
        print(f"\n{right} of {len(CASES)} answers are read as vLLM reads them; {sum(LEFT.values())} do not apply")
    assert len(CASES) >= APPLICABLE
    assert right >= RIGHT
    assert right / len(CASES) >= 0.95
    assert [case for case, _ in WRONG if not reason(case)] == []
    said = [(case.parser, case.said) for case, _ in WRONG]
    assert [row for row in OTHERWISE if not any(parser == row[0] and row[1] in text for parser, text in said)] == []


@pytest.mark.parametrize("parser", sorted({case.parser for case in CASES}))
def test_an_answer_is_read_the_same_however_it_is_cut(parser):
    generator = random.Random(5)
    for case in CASES:
        if case.parser != parser:
            continue
        whole = case.read([case.said])
        assert case.read(list(case.said)) == whole
        places = (
            range(1, len(case.said))
            if len(case.said) <= SHORT
            else sorted(generator.choices(range(len(case.said)), k=8))
        )
        for at in places:
            assert case.read([case.said[:at], case.said[at:]]) == whole
