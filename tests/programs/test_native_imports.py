"""What a model on the native kernels imports."""

import subprocess
import sys

from tests.kit.model.tiny_models import write_tiny_gguf


def test_a_model_on_native_kernels_is_loaded_without_the_gguf_package(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    load = f"""
import sys
from pathlib import Path
from tlserve.kernels.choose import choose_kernels
from tlserve.model.load import load_model
loaded = load_model(Path({str(path)!r}), kernels=choose_kernels("native", activations="auto", kv_precision="f16"))
print(loaded.model.spec.kernels, "gguf" in sys.modules, sep="|")
"""
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True)
    kernels, imported = done.stdout.strip().split("|")
    assert kernels.startswith("native")
    assert imported == "False"
