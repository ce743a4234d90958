"""The version is written in one place, `tlserve/__init__.py`, and the installed distribution has the same."""

from importlib import metadata

import tlserve


def test_the_distribution_has_the_version_of_the_package() -> None:
    assert metadata.version("tlserve") == tlserve.__version__


def test_the_distribution_has_the_addresses_of_the_project() -> None:
    urls = metadata.metadata("tlserve").get_all("Project-URL") or []
    assert {url.partition(",")[0] for url in urls} == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
