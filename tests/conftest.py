"""Fixtures that every room may use."""

import os
from pathlib import Path

import pytest

from tlserve.config.paths import find_model


@pytest.fixture(scope="session")
def smol_path() -> Path:
    """Return SmolLM2-135M-Instruct's GGUF in the model cache."""
    path = find_model("smol-135m", os.environ)
    if path is None:
        pytest.fail("the real model is not in the cache: run `tlserve pull smol-135m` (the README's test command does)")
    return path
