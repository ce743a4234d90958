"""The answers of llama.cpp's tests of chat parsers, against the page that says how they are read."""

import random

import pytest

from docs.make.dialects_page import REASONS, cases, dialects_page, wrong_cases
from tests.kit.source_tree import CHECKOUT

CASES, LEFT = cases()
WRONG = wrong_cases()
APPLICABLE, RIGHT, OTHERWISE = 417, 405, 12
"""What was reached: the first two may only grow, the last one only fall."""


def test_the_answers_of_llama_cpp_are_read_in_the_same_way(capsys):
    right = len(CASES) - len(WRONG)
    with capsys.disabled():
        print(f"\n{right} of {len(CASES)} answers are read as llama.cpp reads them; {sum(LEFT.values())} do not apply")
    assert len(CASES) >= APPLICABLE
    assert right >= RIGHT
    assert len(WRONG) <= OTHERWISE
    assert {case.template for case, _ in WRONG} == set(REASONS)
    assert (CHECKOUT / "docs/reference/dialects.md").read_text("utf-8") == dialects_page()


@pytest.mark.parametrize("template", sorted({case.template for case in CASES}))
def test_an_answer_is_read_the_same_however_it_is_cut(template):
    generator = random.Random(5)
    for case in CASES:
        if case.template != template:
            continue
        whole = case.read([case.said])
        assert case.read(list(case.said)) == whole
        for _ in range(4):
            cuts = sorted(generator.choices(range(len(case.said) + 1), k=5))
            parts = [case.said[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
            assert case.read(parts) == whole
