"""Fragments of the changelog are well formed, and a release puts them above the older sections, by kind."""

import datetime
from pathlib import Path

import pytest

from docs.make.changelog import BadFragment, read_fragments, section, with_section
from tests.kit.source_tree import CHECKOUT


def test_every_fragment_has_a_known_kind_and_a_text() -> None:
    read_fragments(CHECKOUT / "docs" / "changelog")


def test_a_section_has_the_changes_by_kind(tmp_path: Path) -> None:
    for name, text in {"b.fixed.md": "It\nworks.\n", "a.added.md": "New.", "README.md": "no fragment"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    made = section("0.2.0", datetime.date(2030, 1, 31), read_fragments(tmp_path))
    assert made == "## 0.2.0 (2030-01-31)\n\n### Added\n\n- New.\n\n### Fixed\n\n- It works.\n"


def test_a_new_section_is_above_the_older_ones() -> None:
    changelog = "# Changelog\n\nWords.\n\n## 0.1.0\n\nOld.\n"
    assert with_section(changelog, "## 0.2.0\n\nNew.\n") == (
        "# Changelog\n\nWords.\n\n## 0.2.0\n\nNew.\n\n## 0.1.0\n\nOld.\n"
    )


@pytest.mark.parametrize(("name", "text"), [("a.md", "x"), ("a.better.md", "x"), ("a.fixed.md", " \n")])
def test_a_bad_fragment_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(BadFragment, match=name):
        read_fragments(tmp_path)
