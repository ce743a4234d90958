"""What the machine refuses, in real processes: one line that says what, and an exit code; never a traceback."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.cli.hub_stand_in import HubStandIn, Repository, open_hub_stand_in
from tests.kit.cli.processes import server_process
from tests.kit.model.tiny_models import tiny_shape, write_tiny_gguf

COMMIT = "1" * 40
MEGABYTE = 1 << 20


def closed(*descriptors: int) -> tuple[str, ...]:
    """Return the start of a process whose descriptors are closed."""
    close = f"import os, sys; [os.close(each) for each in {descriptors}]"
    return ("-c", f"{close}; os.execv(sys.executable, [sys.executable, '-m', 'tlserve', *sys.argv[1:]])")


def limited(kind: int, limit: int, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `tlserve ARGUMENTS` with a limit of the system, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "tlserve", *arguments],
        env={**os.environ, **variables},
        preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.spec("CLI-32")
@pytest.mark.parametrize("descriptors", [(1,), (0, 1)])
def test_a_server_with_a_closed_output_drains_at_sigterm(descriptors: tuple[int, ...]) -> None:
    with server_process("--model", "succ", start=closed(*descriptors)) as server:
        assert server.health_address
        server.send_signal(signal.SIGTERM)
        assert server.wait_exit() == 0
    assert not [line for line in server.lines if "Traceback" in line or "Error" in line]


@pytest.mark.slow
@pytest.mark.spec("CLI-32")
def test_memory_that_cannot_be_had_is_one_line(tmp_path: Path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", shape=tiny_shape(context_tokens=1 << 20))
    done = limited(
        resource.RLIMIT_AS,
        1 << 30,
        *("--model", str(model), "--port", "0", "--health-port", "0"),
        TL_ENGINE__KV_MEMORY_BYTES=str(1 << 36),
    )
    assert done.returncode == 10
    assert "tlserve: there is not enough memory" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.fixture
def hub() -> Iterator[HubStandIn]:
    with open_hub_stand_in() as hub:
        files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": bytes(4 * MEGABYTE)}
        hub.repositories["org/tiny"] = [Repository(COMMIT, files, lfs=frozenset({"model.safetensors"}))]
        yield hub


@pytest.mark.slow
@pytest.mark.spec("CLI-32")
def test_a_disk_that_fills_during_a_pull_is_one_line_and_the_next_pull_works(hub: HubStandIn, tmp_path: Path) -> None:
    variables = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TL_MODEL_CACHE": str(tmp_path / "cache"),
        "NO_PROXY": "127.0.0.1",
    }
    full = limited(resource.RLIMIT_FSIZE, MEGABYTE, "pull", "org/tiny", **variables)
    assert full.returncode in (8, 10)
    assert full.stderr.splitlines()[-1].startswith("tlserve: ")
    assert "File too large" in full.stderr.splitlines()[-1]
    assert "Traceback" not in full.stderr
    assert "Exception" not in full.stderr
    again = limited(resource.RLIMIT_FSIZE, 64 * MEGABYTE, "pull", "org/tiny", **variables)
    assert (again.returncode, "Traceback" in again.stderr) == (0, False)
