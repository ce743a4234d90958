"""The commands of every page of the documentation work, and every link leads to a file.

`docs/how-to/keys-and-tls.md` has its own test in `tests/access`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.cli.pages import Reader, blocks
from tests.kit.source_tree import CHECKOUT

DOCS = CHECKOUT / "docs"
ELSEWHERE = {"how-to/keys-and-tls.md"}
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
PATH = re.compile(r"`((?:tlserve|tests|specs|docs)/[\w./-]+\.\w+)`")


def pages(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (DOCS / folder).glob("*.md"))


def name_of(path: Path) -> str:
    return str(path.relative_to(DOCS))


FOLLOWED = [path for path in pages("tutorials", "how-to") if name_of(path) not in ELSEWHERE]
ALL = sorted([*DOCS.rglob("*.md"), CHECKOUT / "README.md"])


@pytest.fixture
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    made = Reader(tmp_path_factory.mktemp("page"))
    yield made
    made.stop()


@pytest.mark.real_model
@pytest.mark.parametrize("path", FOLLOWED, ids=name_of)
def test_the_commands_of_a_page_do_what_it_says(path: Path, reader: Reader, smol_path: Path, minilm_path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8")):
        reader.follow(block)


@pytest.mark.parametrize("path", ALL, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_every_link_and_every_named_file_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [link for link in LINK.findall(text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []
    assert [file for file in PATH.findall(text) if not (CHECKOUT / file).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    listed = {(DOCS / link).resolve() for link in LINK.findall(index) if "://" not in link}
    assert set(pages("tutorials", "how-to", "reference", "explanation")) - listed == set()


def test_every_decision_is_in_the_index_of_decisions() -> None:
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in pages("decisions")} - set(LINK.findall(index)) == {"README.md"}
