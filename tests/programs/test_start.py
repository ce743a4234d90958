"""What a server imports before it answers its first chat: the time of a start depends on it, on any processor."""

import subprocess
import sys

import pytest

from tlserve.endpoints.api import ROUTES, load_endpoint

LOADED = """
import sys
import tlserve.cli.serve, tlserve.programs.server, tlserve.programs.residency.models, tlserve.model.gguf.model
from tlserve.endpoints.api import USUAL_ENDPOINT, load_endpoint
load_endpoint(USUAL_ENDPOINT)
print(*sorted(sys.modules))
"""
LATER = (
    "tlserve.anthropic",
    "tlserve.ollama",
    "tlserve.scoring",
    "tlserve.fleet",
    "tlserve.responses.events",
    "tlserve.responses.requests",
    "tlserve.model.encoder.build",
    "tlserve.model.hugging_face.model",
    "tlserve.telemetry.metrics",
    "prometheus_client",
    "gguf",
    "llguidance",
    "rich",
    "ray",
)


@pytest.mark.spec("CLI-34")
def test_the_first_chat_needs_no_module_of_other_endpoints_and_models() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "tlserve.endpoints.routes.chat_completions" in loaded
    assert [name for name in loaded for later in LATER if f"{name}.".startswith(f"{later}.")] == []


@pytest.mark.spec("CLI-34")
@pytest.mark.parametrize("name", sorted(set(ROUTES.values())))
def test_every_route_names_an_endpoint(name: str) -> None:
    endpoint = load_endpoint(name)
    assert endpoint.__module__ == f"tlserve.endpoints.routes.{name.partition(':')[0]}"
    assert endpoint.__name__ == name.partition(":")[2]
