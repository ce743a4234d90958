"""The files of specs/ and docs/ that are made from code are what the code makes now."""

import pytest

from tests.kit.source_tree import CHECKOUT
from tlserve.cli.reference import commands_page
from tlserve.config.reference import settings_page
from tlserve.config.schema import runtime_schema_text
from tlserve.telemetry.catalogue import catalogue_yaml
from tlserve.telemetry.catalogue_page import catalogue_markdown


@pytest.mark.spec("SET-14")
def test_the_runtime_schema_is_current() -> None:
    """Mend it by `python -m tlserve.config.schema > specs/runtime.schema.json`."""
    assert (CHECKOUT / "specs" / "runtime.schema.json").read_text(encoding="utf-8") == runtime_schema_text()


@pytest.mark.spec("TEL-9")
def test_the_metric_catalogue_is_current() -> None:
    """Mend it by `python -m tlserve.telemetry.catalogue > specs/metrics.yaml`."""
    assert (CHECKOUT / "specs" / "metrics.yaml").read_text(encoding="utf-8") == catalogue_yaml()


def test_the_page_of_metrics_is_current() -> None:
    """Mend it by `python -m tlserve.telemetry.catalogue_page > docs/reference/metrics.md`."""
    assert (CHECKOUT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8") == catalogue_markdown()


def test_the_page_of_settings_is_current() -> None:
    """Mend it by `python -m tlserve.config.reference > docs/reference/settings.md`."""
    assert (CHECKOUT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8") == settings_page()


def test_the_page_of_commands_is_current() -> None:
    """Mend it by `python -m tlserve.cli.reference > docs/reference/cli.md`."""
    assert (CHECKOUT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8") == commands_page()
