"""The page of the architecture names every folder of the package, in the layers that the imports follow."""

import re
from itertools import groupby

from tests.house.test_layers import LAYERS
from tests.kit.source_tree import CHECKOUT

PAGE = CHECKOUT / "docs" / "explanation" / "architecture.md"
ROW = re.compile(r"^\| (?P<layer>\d*) ?\| `(?P<place>[\w/]+?)(?:/|\.py)` \| \S", re.MULTILINE)

# Not packages: the entry point, and the package itself.
NOT_LISTED = {"__main__", ""}


def rows() -> list[tuple[str, str]]:
    """Return (layer, folder or module) of each row of the table; the layer of a folder inside a package is empty."""
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def folders() -> set[str]:
    package = CHECKOUT / "tlserve"
    found = (path for path in package.rglob("*") if path.is_dir() and path.name != "__pycache__")
    return {path.relative_to(package).as_posix() for path in found}


def layers_of_packages() -> list[set[str]]:
    """Return the layers from top to bottom, with the parts of a package that have layers of their own as one."""
    named = [{place.partition(".")[0] for place in places} - NOT_LISTED for places in LAYERS]
    return [names for names, _ in groupby(named) if names]


def test_every_folder_of_the_package_is_named_once() -> None:
    named = [place for _, place in rows()]
    assert sorted(named) == sorted(folders() | {"generation", "sampling_params", "errors"})


def test_the_layers_are_those_that_the_imports_follow() -> None:
    listed = [(int(layer), place) for layer, place in rows() if layer]
    numbers = sorted({layer for layer, _ in listed})
    assert numbers == list(range(1, len(numbers) + 1))
    assert [{place for layer, place in listed if layer == number} for number in numbers] == layers_of_packages()


def test_a_folder_inside_a_package_follows_its_package() -> None:
    package = ""
    for layer, place in rows():
        package = place if layer else package
        assert place.partition("/")[0] == package
