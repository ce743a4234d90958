"""Every file and symbol that a docstring, a comment or a page names exists. A rename does not change prose by itself."""

from pathlib import Path

import pytest

from tests.kit.names_in_text import link_is_true, links_to_symbols, missing_names, prose_of
from tests.kit.source_tree import CHECKOUT

READ = {"tlserve": ("*.py", "*.c", "*.h"), "tests": ("*.py",), "docs": ("*.md", "*.py"), "specs": ("*.md",)}


def read_files(folder: str) -> list[Path]:
    return [path for pattern in READ[folder] for path in sorted((CHECKOUT / folder).rglob(pattern))]


def missing_in(paths: list[Path]) -> dict[str, list[str]]:
    found = {str(path.relative_to(CHECKOUT)): missing_names(prose_of(path)) for path in paths}
    return {path: names for path, names in found.items() if names}


@pytest.mark.parametrize("folder", READ)
def test_every_name_in_the_prose_of_a_folder_is_there(folder: str) -> None:
    assert missing_in(read_files(folder)) == {}


def test_every_name_in_the_pages_at_the_top_is_there() -> None:
    assert missing_in(sorted(CHECKOUT.glob("*.md"))) == {}


def pages() -> list[Path]:
    return [*sorted(CHECKOUT.glob("*.md")), *sorted((CHECKOUT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_symbol_that_a_page_links_is_in_its_file(page: Path) -> None:
    assert [link for link, source in links_to_symbols(page).items() if not link_is_true(link, source)] == []


def test_a_link_to_a_symbol_that_is_not_there_is_seen(tmp_path: Path) -> None:
    engine, forward = CHECKOUT / "tlserve/engine/engine.py", CHECKOUT / "tlserve/kernels/native/forward.c"
    page = tmp_path / "page.md"
    page.write_text(f"[`Engine.step`]({engine}) [`Engine.fly`]({engine}) [`forward`]({forward}) [`fly`]({forward})")
    assert [link_is_true(link, source) for link, source in links_to_symbols(page).items()] == [True, False, True, False]


@pytest.mark.parametrize(
    "text",
    [
        "as `nowhere.py` does",
        "the order of reference/int8_attention.py",
        "see `tests/house/test_nothing.py`",
        "see `tlserve/nothing/`",
        "`tlserve.engine.engine.Machine` computes",
        "`Engine.fly` does it",
        "run `python -m tests.nothing`",
    ],
)
def test_a_name_that_does_not_exist_is_detected(text: str) -> None:
    assert len(missing_names(text)) == 1


def test_names_that_are_there_are_not_reported() -> None:
    text = "`engine.py`, `kernels/native/forward.c`, `tests/house/`, `tlserve.errors.Refusal`, `Engine.step`, `Path.exists`"
    assert missing_names(text) == []


def test_docstrings_and_comments_are_prose_and_code_is_not(tmp_path: Path) -> None:
    python, page = tmp_path / "a.py", tmp_path / "a.md"
    python.write_text('"""Head."""\nX = "code.py"  # a comment\n"""About X."""\n', encoding="utf-8")
    page.write_text("Words.\n\n```sh\npython code.py\n```\n", encoding="utf-8")
    assert prose_of(python) == "Head.\nAbout X.\n# a comment"
    assert prose_of(page).strip() == "Words."
