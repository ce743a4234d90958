"""Fixtures that every room may use."""

import os
from pathlib import Path

import hypothesis
import pytest

from tlserve.config.paths import find_model

# A loaded machine may take its time over an example; what an example may cost is bounded by the tests themselves.
hypothesis.settings.register_profile("tlserve", deadline=None, print_blob=True)
hypothesis.settings.load_profile("tlserve")


@pytest.fixture(scope="session")
def smol_path() -> Path:
    """Return SmolLM2-135M-Instruct's GGUF in the model cache."""
    path = find_model("smol-135m", os.environ)
    if path is None:
        pytest.fail("the real model is not in the cache: run `tlserve pull smol-135m` (the README's test command does)")
    return path
