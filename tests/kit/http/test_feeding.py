"""The feeding kit finds objects that depend on the splits, and passes others."""

from typing import Any

import pytest

from tests.kit.http.feeding import (
    all_feedings,
    assert_same_at_every_split,
    feed_by_unit,
    feed_whole,
    random_splits,
    run_text,
    splits_in_two,
    units,
)


class Echo:
    def feed(self, part: str) -> str:
        return part

    def finish(self) -> str:
        return "."


class PartCounter(Echo):
    def feed(self, part: str) -> str:
        return f"[{part}]"


@pytest.mark.parametrize("data", ["abc", b"abc", [1, 2, 3]])
def test_every_feeding_joins_to_the_data(data: Any) -> None:
    for parts in all_feedings(data):
        joined = type(data)() if not isinstance(data, str) else ""
        for part in parts:
            joined += part
        assert joined == data


def test_splits_in_two_are_all_of_them() -> None:
    assert list(splits_in_two("ab")) == [["", "ab"], ["a", "b"], ["ab", ""]]


def test_units_of_bytes_are_bytes() -> None:
    assert units(b"ab") == [b"a", b"b"]


def test_random_splits_repeat_with_their_seed() -> None:
    assert list(random_splits("abcdef", seed=3, count=5)) == list(random_splits("abcdef", seed=3, count=5))


def test_an_object_that_ignores_the_splits_passes() -> None:
    assert assert_same_at_every_split("abc", run_text(Echo)) == "abc."


def test_an_object_that_depends_on_the_splits_is_detected() -> None:
    with pytest.raises(AssertionError, match="fed as"):
        assert_same_at_every_split("abc", run_text(PartCounter))


def test_whole_and_by_unit_are_one_and_many_parts() -> None:
    assert (feed_whole("abc", list), feed_by_unit("abc", list)) == (["abc"], ["a", "b", "c"])


def test_empty_data_can_be_fed() -> None:
    assert assert_same_at_every_split("", run_text(Echo)) == "."
