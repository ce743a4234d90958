"""How the extension is built: its name, its types, and what a build in place leaves behind."""

from pathlib import Path

import pytest

from tests.kit.model.native_models import built_native
from tlserve.kernels.native.build import remove_older_builds


def test_a_build_in_place_removes_extensions_that_python_would_prefer(tmp_path):
    for name in ("_native.cpython-311-x86_64-linux-gnu.so", "_native.abi3.so", "other.cpython-311.so"):
        (tmp_path / name).touch()
    remove_older_builds(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_native.abi3.so", "other.cpython-311.so"]


def test_one_extension_serves_every_python_from_3_11_on():
    """Its name says so, and the compiler refuses calls outside of the limited API of 3.11."""
    assert Path(str(built_native().__file__)).name == "_native.abi3.so"


@pytest.mark.parametrize("name", ["Matrix", "Model", "Sampler"])
def test_the_types_of_the_extension_cannot_be_changed(name):
    with pytest.raises(TypeError, match="immutable"):
        getattr(built_native(), name).nbytes = 1
