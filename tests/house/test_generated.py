"""The generated files of specs/ and docs/ are up to date."""

import pytest

from docs.make.__main__ import FILES, main
from tests.kit.source_tree import CHECKOUT


@pytest.mark.spec("SET-14", "TEL-9", "API-45")
@pytest.mark.parametrize("name", FILES)
def test_a_generated_file_is_current(name: str) -> None:
    """Run `python -m docs.make` to make all of these files again."""
    assert (CHECKOUT / name).read_text(encoding="utf-8") == FILES[name]()


def test_a_name_that_is_not_of_a_generated_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["docs/README.md"])
    assert "docs/README.md is not a generated file; they are docs/reference/cli.md, " in capsys.readouterr().err
