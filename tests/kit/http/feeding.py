"""Feed an incremental object its input whole, unit by unit, at every split into two, and at random splits into many.

An incremental object must give the same result for all splits. `Run` makes a new object, feeds it the parts, finishes it, and
returns its result as a value that can be compared. It works for every sequence that can be sliced: str, bytes, lists.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Units = TypeVar("Units", str, bytes, list[Any])
Run = Callable[[list[Units]], Any]


def feed_whole(data: Units, run: Run[Units]) -> Any:
    """Return the result of `data` in one part."""
    return run([data])


def feed_by_unit(data: Units, run: Run[Units]) -> Any:
    """Return the result of `data` one unit at a time."""
    return run(units(data))


def units(data: Units) -> list[Units]:
    """Return the parts of length one."""
    return [data[at : at + 1] for at in range(len(data))]


def splits_in_two(data: Units) -> Iterator[list[Units]]:
    """Yield every way to cut `data` into two parts, empty ones too."""
    for at in range(len(data) + 1):
        yield [data[:at], data[at:]]


def random_splits(data: Units, *, seed: int, count: int) -> Iterator[list[Units]]:
    """Yield `count` ways to cut `data` into many parts, some of them empty."""
    chance = random.Random(seed)
    for _ in range(count):
        cuts: list[int] = sorted(chance.choices(range(len(data) + 1), k=chance.randint(2, 2 + len(data))))
        yield [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def all_feedings(data: Units, *, seed: int = 0, count: int = 20) -> Iterator[list[Units]]:
    """Yield `data` whole, unit by unit, at every split into two, and at `count` random splits."""
    yield [data]
    yield units(data)
    yield from splits_in_two(data)
    yield from random_splits(data, seed=seed, count=count)


def assert_same_at_every_split(data: Units, run: Run[Units], *, seed: int = 0, count: int = 20) -> Any:
    """Return the result of `data` whole, after every other way to feed it gave the same; name the way that did not."""
    expected = feed_whole(data, run)
    for parts in all_feedings(data, seed=seed, count=count):
        found = run(parts)
        assert found == expected, f"fed as {parts!r} (seed {seed}): {found!r}, whole: {expected!r}"
    return expected


def run_text(make: Callable[[], Any]) -> Run[Any]:
    """Return a run for objects with `feed(part) -> str` and `finish() -> str`: the joined results."""

    def run(parts: list[Any]) -> str:
        one = make()
        return "".join([*map(one.feed, parts), one.finish()])

    return run
