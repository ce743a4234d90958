"""The name of a test is a short sentence in plain English."""

import ast
import functools
import re

import pytest

from tests.kit.source_tree import CHECKOUT, Function

LONGEST_NAME = 80

# Words that a native reader stumbles over; `tests/house/test_plain_english.py` has the same for prose.
STUMBLES = re.compile(
    r"_(?:anew|any_more|for_ever|whoever|nobody|anybody|mend|alike)(?:_|$)"
    r"|(?<!there)_(?:is|are)_no_(?!longer)"
    r"|_(?:is|are)_told(?:_|$)"
    r"|_(?:tells?|lies?|stands?|wants?|wanted|goes_on|go_on)(?:_|$)"
)


@functools.cache
def names() -> dict[str, str]:
    """Return the path of each test by its name."""
    found: dict[str, str] = {}
    for path in sorted((CHECKOUT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = (node.name for node in ast.walk(tree) if isinstance(node, Function))
        found |= {name: str(path.relative_to(CHECKOUT)) for name in functions if name.startswith("test_")}
    return found


def test_no_test_name_is_longer_than_80_characters() -> None:
    assert {name: path for name, path in names().items() if len(name) > LONGEST_NAME} == {}


def test_no_test_name_has_a_phrase_that_is_hard_to_read() -> None:
    assert {name: path for name, path in names().items() if STUMBLES.search(name)} == {}


@pytest.mark.parametrize("name", ["test_a_node_is_no_server", "test_the_loss_is_told", "test_a_stream_goes_on"])
def test_a_phrase_that_is_hard_to_read_is_detected(name: str) -> None:
    assert STUMBLES.search(name)


@pytest.mark.parametrize("name", ["test_a_node_is_no_longer_listed", "test_there_is_no_name", "test_no_key_is_shown"])
def test_a_plain_name_is_not(name: str) -> None:
    assert not STUMBLES.search(name)
