"""Make the files of docs/ and specs/ that follow from the code: `python -m docs.make [FILE ...]`, from the repository root.

Without a name all files are made. A test compares each file with what the code gives now.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from docs.make.commands_page import commands_page
from docs.make.dialects_page import dialects_page
from docs.make.endpoints_page import endpoints_page
from docs.make.metrics_page import metrics_page
from docs.make.metrics_yaml import catalogue_yaml
from docs.make.models_page import models_page
from docs.make.openapi import openapi_text
from docs.make.peer_fields_page import peer_fields_page
from docs.make.runtime_schema import runtime_schema_text
from docs.make.settings_page import settings_page
from docs.make.templates_page import templates_page
from docs.make.tokenizers_page import tokenizers_page

CHECKOUT = Path(__file__).parents[2]

FILES: Mapping[str, Callable[[], str]] = {
    "docs/reference/cli.md": commands_page,
    "docs/reference/dialects.md": dialects_page,
    "docs/reference/endpoints.md": endpoints_page,
    "docs/reference/fields-of-other-servers.md": peer_fields_page,
    "docs/reference/metrics.md": metrics_page,
    "docs/reference/models.md": models_page,
    "docs/reference/settings.md": settings_page,
    "docs/reference/templates.md": templates_page,
    "docs/reference/tokenizers.md": tokenizers_page,
    "specs/metrics.yaml": catalogue_yaml,
    "specs/openapi-subset.v1.yaml": openapi_text,
    "specs/runtime.schema.json": runtime_schema_text,
}
"""Each generated file, by its path in the repository, and the function that returns its text."""


def main(argv: Sequence[str] | None = None) -> None:
    """Write the files that `argv` names, or all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.make", description="Make the generated files of docs/ and specs/."
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="one of " + ", ".join(FILES))
    names = parser.parse_args(argv).files or list(FILES)
    for unknown in set(names) - set(FILES):
        parser.error(f"{unknown} is not a generated file; they are {', '.join(FILES)}")
    for name in names:
        (CHECKOUT / name).write_text(FILES[name](), encoding="utf-8")


if __name__ == "__main__":
    main()
