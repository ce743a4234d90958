"""A reader of documents that handles wrong ones also handles those that are nested too deeply to be read.

`json.loads`, msgspec and tomli raise RecursionError for them, which is not a ValueError.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.kit.source_tree import modules

READERS = (
    "json.loads",
    "tomli.loads",
    "raw_decode",
    "msgspec.json.decode",
    "msgspec.msgpack.decode",
    ".decode(memoryview",
)
WRONG = ("ValueError", "MsgspecError", "TOMLDecodeError", "JSONDecodeError", "DecodeError", "ValidationError")


def careless(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of each `try` that reads a document and forgets RecursionError."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(
            reader in line for line in map(ast.unparse, node.body) for reader in READERS
        ):
            caught = " ".join(ast.unparse(handler.type) for handler in node.handlers if handler.type)
            if any(name in caught for name in WRONG) and "RecursionError" not in caught:
                yield node.lineno


def reads(text: str) -> bool:
    return any(reader in text for reader in READERS)


# A value whose depth was bounded before it is read.
BOUNDED = {
    "tlserve/openai/messages.py",
    "tlserve/api/fields.py",
    "tlserve/chat/regions/python_call.py",
    "tlserve/chat/dialects/probe.py",
}


def test_a_document_nested_too_deeply_is_refused_like_any_wrong_one() -> None:
    found = [f"{module.path}:{line}" for module in modules() if reads(module.text) for line in careless(module.tree)]
    assert [place for place in found if place.partition(":")[0] not in BOUNDED] == []


@pytest.mark.parametrize("caught", ["ValueError", "(OSError, ValueError)", "tomli.TOMLDecodeError"])
def test_a_careless_reader_is_detected(caught: str) -> None:
    assert list(careless(ast.parse(f"try:\n    a = json.loads(b)\nexcept {caught}:\n    pass"))) == [1]
    assert not list(careless(ast.parse(f"try:\n    a = json.loads(b)\nexcept ({caught}, RecursionError):\n    pass")))
