"""The id under which a model is served, and the folder of pulled models."""

from pathlib import Path

import pytest

from tlserve.config.model_id import served_model_id
from tlserve.config.paths import find_model, model_cache_dir


@pytest.mark.spec("SET-12")
@pytest.mark.parametrize(
    ("model_dir", "model_id"),
    [
        ("artifacts/models/smol-135m/v3", "smol-135m"),
        ("/models/smol-135m/v1.2/", "smol-135m"),
        ("succ/", "succ"),
        ("succ", "succ"),
        ("/m/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1"),
        ("/cache/smol-135m/v1/smol-135m.gguf", "smol-135m"),
        ("/m/tiny/model.gguf", "tiny"),
        ("/m/big-00001-of-00003.gguf", "big"),
        ("/m/my model (1).GGUF", "my-model-1"),
        ("v3", "v3"),
        ("/", "model"),
        ("", "model"),
    ],
)
def test_the_served_id_comes_from_the_path_of_the_model(model_dir: str, model_id: str) -> None:
    assert served_model_id(model_dir) == model_id


@pytest.mark.spec("SET-12")
def test_a_set_model_id_wins() -> None:
    assert served_model_id("succ/", "mine") == "mine"


@pytest.mark.spec("SET-13")
@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"TL_MODEL_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/h"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/h"}, "/b/tlserve/models"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/tlserve/models"),
        ({"HOME": "/h"}, "/h/.cache/tlserve/models"),
    ],
)
def test_the_cache_is_tl_model_cache_then_xdg_then_home(environ: dict[str, str], folder: str) -> None:
    assert model_cache_dir(environ) == Path(folder)


def test_find_model_returns_the_highest_complete_version(tmp_path: Path) -> None:
    for version in ("v2", "v9", "v10"):
        (tmp_path / "m" / version).mkdir(parents=True)
    (tmp_path / "m" / "v2" / "m.gguf").write_bytes(b"old")
    (tmp_path / "m" / "v9" / "m.gguf").write_bytes(b"new")
    (tmp_path / "m" / "v10" / "m.gguf.partial").write_bytes(b"half")
    assert find_model("m", {"TL_MODEL_CACHE": str(tmp_path)}) == tmp_path / "m" / "v9" / "m.gguf"


@pytest.mark.parametrize("name", ["absent", "../m", "m/v2", "", ".", ".hidden", "a\0b", "x" * 300])
def test_find_model_returns_none_for_a_model_that_was_never_pulled(name: str, tmp_path: Path) -> None:
    assert find_model(name, {"TL_MODEL_CACHE": str(tmp_path)}) is None
