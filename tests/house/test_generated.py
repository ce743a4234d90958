"""The files of specs/ and docs/ that are made from code are what the code makes now."""

import pytest

from docs.make.commands_page import commands_page
from docs.make.metrics_page import catalogue_markdown
from docs.make.runtime_schema import runtime_schema_text
from docs.make.settings_page import settings_page
from tests.kit.source_tree import CHECKOUT
from tlserve.telemetry.catalogue import catalogue_yaml


@pytest.mark.spec("SET-14")
def test_the_runtime_schema_is_current() -> None:
    """Mend it by `python -m docs.make.runtime_schema > specs/runtime.schema.json`."""
    assert (CHECKOUT / "specs" / "runtime.schema.json").read_text(encoding="utf-8") == runtime_schema_text()


@pytest.mark.spec("TEL-9")
def test_the_metric_catalogue_is_current() -> None:
    """Mend it by `python -m tlserve.telemetry.catalogue > specs/metrics.yaml`."""
    assert (CHECKOUT / "specs" / "metrics.yaml").read_text(encoding="utf-8") == catalogue_yaml()


def test_the_page_of_metrics_is_current() -> None:
    """Mend it by `python -m docs.make.metrics_page > docs/reference/metrics.md`."""
    assert (CHECKOUT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8") == catalogue_markdown()


def test_the_page_of_settings_is_current() -> None:
    """Mend it by `python -m docs.make.settings_page > docs/reference/settings.md`."""
    assert (CHECKOUT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8") == settings_page()


def test_the_page_of_commands_is_current() -> None:
    """Mend it by `python -m docs.make.commands_page > docs/reference/cli.md`."""
    assert (CHECKOUT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8") == commands_page()
