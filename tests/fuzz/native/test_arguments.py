"""A small fixed share of the wrong calls, without sanitizers; with them: `python -m tests.fuzz native`."""

import pytest
import tomli

from tests.fuzz.native.arguments import REFUSALS, TARGET, by_name, use_call, wrong_call
from tests.fuzz.native.build import COPIED
from tests.fuzz.parsers.search import chance, play, search
from tests.kit.source_tree import CHECKOUT


@pytest.mark.spec("KER-13")
@pytest.mark.slow
def test_a_wrong_call_returns_or_raises_and_the_process_lives() -> None:
    outcome = search(TARGET, 1, 300)
    assert outcome.inputs == 300
    assert not outcome.faults, "\n".join(map(str, outcome.faults))


def test_the_valid_calls_are_of_every_function_and_succeed() -> None:
    calls = by_name()
    assert set(calls) == {"Matrix", "Model", "forward", "multiply", "Sampler", "draw"}
    for name in ("Matrix", "multiply", "draw"):
        use_call(calls[name][0])


def test_most_wrong_calls_are_refused() -> None:
    refused = 0
    for number in range(100):
        call = wrong_call(chance(TARGET, 2, number))
        try:
            use_call(call)
        except REFUSALS:
            refused += 1
    assert 40 <= refused <= 100
    assert [fault for _, fault in play(TARGET, 2, range(5)) if fault] == []


def test_the_build_copies_what_the_package_needs() -> None:
    (extension,) = tomli.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    assert all((CHECKOUT / source).is_file() and source.split("/")[0] in COPIED for source in extension["sources"])
