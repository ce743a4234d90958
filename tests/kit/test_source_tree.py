"""The reader of the sources, tested with small sources."""

import ast
from pathlib import Path

import pytest

from tests.kit import source_tree

SOURCE = '''
"""Head."""
import os.path as path
from tlserve import errors
from tlserve.http.server import Server

A = 1
B: int = 2


class Public:
    """Doc."""

    field: int

    def __init__(self):
        self.inner = 1

    def method(self):
        """Doc."""
        if True:
            return (
                1
            )

    def stub(self):
        """Doc."""


def _private():
    import trio

    def nested(): ...
'''
TREE = ast.parse(SOURCE)


def test_imports_are_found_wherever_they_are() -> None:
    names = [name for _, name in source_tree.imports(TREE)]
    assert sorted(names) == ["os.path", "tlserve.errors", "tlserve.http.server.Server", "trio"]


def test_a_package_is_the_part_after_tlserve() -> None:
    assert [source_tree.package_of(name) for name in ("tlserve", "tlserve.programs.server", "tlserve.http.sse")] == [
        "",
        "programs",
        "http",
    ]


def test_a_body_is_counted_without_signature_and_docstring() -> None:
    lengths = {node.name: source_tree.body_lines(node) for node in source_tree.functions(TREE)}
    assert lengths == {"__init__": 1, "method": 4, "stub": 0, "_private": 3, "nested": 1}


def test_private_and_nested_things_are_not_public() -> None:
    assert [name for name, _ in source_tree.public_definitions(TREE)] == ["Public", "Public.method", "Public.stub"]


@pytest.mark.parametrize(
    "symbol", ["A", "B", "Public", "Public.field", "Public.inner", "Public.method", "errors", "Server"]
)
def test_a_name_that_a_module_binds_is_defined(symbol: str) -> None:
    assert source_tree.defines(TREE, symbol)


@pytest.mark.parametrize("symbol", ["C", "Public.absent", "Absent.method", "nested", "A.method"])
def test_a_name_that_a_module_does_not_bind_is_not_defined(symbol: str) -> None:
    assert not source_tree.defines(TREE, symbol)


def test_tests_are_found_by_name_and_class(tmp_path: Path) -> None:
    path = tmp_path / "test_x.py"
    path.write_text(
        "def test_a(): ...\nasync def test_b(): ...\ndef other(): ...\nclass TestC:\n    def test_d(self): ...\n"
    )
    assert source_tree.test_names(path) == {"test_a", "test_b", "TestC::test_d"}


def test_the_whole_package_is_read() -> None:
    names = {module.name for module in source_tree.modules()}
    assert {"tlserve", "tlserve.errors", "tlserve.config.settings"} <= names
