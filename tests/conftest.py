"""Fixtures and markers for all tests."""

import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tlserve.config.paths import find_model
from tlserve.config.settings import KERNELS
from tlserve.kernels.native import native_isas

# A loaded machine can be slow with an example, so there is no deadline; the tests themselves bound the cost of examples.
hypothesis.settings.register_profile("tlserve", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tlserve")


# The fast tests leave out these folders and the tests that use one of these fixtures. Single slow tests have the marker.
SLOW_FOLDERS = {"bench", "benchmarks", "faults", "fuzz", "parity"}
REAL_MODELS = {"smol_path", "minilm_path"}

# A machine with only Python can also run the suite; everything that a test with curl checks has a test without it.
CURL_IS_THERE = shutil.which("curl") is not None


def pytest_report_header() -> list[str]:
    real = native_isas()
    others = ", ".join(name for name in KERNELS[3:] if name not in real)
    return [
        f"kernels: {', '.join(real) or 'none'} on this processor's instructions; on stand-ins alone: {others}",
        *([] if CURL_IS_THERE else ["curl was not found: tests marked `curl` are left out"]),
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _mark(item)
    left_out = [] if CURL_IS_THERE else [item for item in items if item.get_closest_marker("curl")]
    if left_out:
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def _mark(item: pytest.Item) -> None:
    if item.path.relative_to(Path(__file__).parent).parts[0] in SLOW_FOLDERS:
        item.add_marker("slow")
    if REAL_MODELS.intersection(getattr(item, "fixturenames", ())):
        item.add_marker("real_model")


@pytest.fixture(autouse=True)
def _own_logs() -> Iterator[None]:
    """Restore the loggers after a command ran in this process: it wrote to a stream that is closed with its test."""
    logger = logging.getLogger("tlserve")
    before = (logger.handlers, logger.level, logger.propagate)
    yield
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture(scope="session")
def smol_path() -> Path:
    """Return SmolLM2-135M-Instruct's GGUF in the model cache."""
    return _pulled("smol-135m")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """Return the directory of all-MiniLM-L6-v2, a sentence encoder, in the model cache."""
    return _pulled("minilm")


def _pulled(name: str) -> Path:
    path = find_model(name, os.environ)
    if path is None:
        pytest.fail(f"a real model is not in the cache: run `tlserve pull {name}` (the README's test command does)")
    return path
