"""From a path to a model that is ready to run.

Finds the files and chooses a reader; each kind of model has one `Reader`. Knows nothing of the format of weights, of text, or
of where models are downloaded to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from tlserve.errors import ModelMissing, ModelRefused
from tlserve.kernels.choose import KernelChoice
from tlserve.model.encoder.kinds import is_encoder
from tlserve.model.gguf.shard_names import all_shards_of, first_shard
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront
from tlserve.model.sidecar_files import read_json

__all__ = ["LoadedModel", "ModelFront", "builtin_model_path", "files_bytes", "load_front", "load_model"]


@attrs.frozen
class Reader:
    """How one kind of model is read: whole, or only its front."""

    model: Callable[[Path, LoadOptions], LoadedModel]
    front: Callable[[Path, LoadOptions], ModelFront]


_BUILTIN = Path(__file__).parent / "builtin"


def builtin_model_path(name: str) -> Path | None:
    """Return the directory of the built-in model `name`, or None where there is no such model."""
    names = {path.name for path in _BUILTIN.iterdir() if path.is_dir()}
    return _BUILTIN / name if name in names else None


def load_model(
    path: Path | str, *, context_tokens: int = 0, threads: int = 0, kernels: KernelChoice | None = None
) -> LoadedModel:
    """Load the model at `path`: a .gguf file (the first of a split model), a directory with one, or with a config.json.

    `context_tokens` 0: what the model was trained for; `threads` 0: one per core; `kernels`: which arithmetic to use.
    Raises `ModelMissing` where there is no model, `ModelRefused` with the reason where it cannot be served, and `SettingsError`
    where the requested kernels are missing.
    """
    options = LoadOptions(context_tokens=context_tokens, threads=threads, kernels=kernels or KernelChoice())
    with _named(path):
        reader, found = _find(Path(path))
        return reader.model(found, options)


def load_front(path: Path | str, *, context_tokens: int = 0) -> ModelFront:
    """Read all of the model at `path` but its weights; raises `ModelMissing` and `ModelRefused`."""
    options = LoadOptions(context_tokens=context_tokens, threads=1, kernels=KernelChoice())
    with _named(path):
        reader, found = _find(Path(path))
        return reader.front(found, options)


def files_bytes(path: Path | str) -> int:
    """Return the size of the files with the weights of the model at `path`, 0 if there are none."""
    given = Path(path)
    if given.is_dir():
        files = [*given.glob("*.gguf"), *given.glob("*.safetensors")]
    else:
        files = [given.with_name(name) for name in all_shards_of(given.name)]
    return sum(file.stat().st_size for file in files if file.is_file())


@contextmanager
def _named(path: Path | str) -> Iterator[None]:
    """Begin a refusal with the requested path."""
    try:
        yield
    except ModelRefused as refusal:
        raise ModelRefused(f"{path}: {refusal.message}") from refusal


def _find(path: Path) -> tuple[Reader, Path]:
    """Choose who reads `path`, and which file or directory."""
    if not path.exists():
        raise ModelMissing(
            f"there is no model at {path}; `tlserve pull smol-135m` fetches one, `--model succ` needs none"
        )
    if path.is_file():
        return _gguf_reader(), path
    config = read_json(path / "config.json")
    if config.get("model_type") == "bigram":
        return _bigram_reader(), path
    if any(path.glob("*.gguf")):
        return _gguf_reader(), _one_gguf(path)
    if is_encoder(str(config.get("model_type")), both_sides=config.get("use_bidirectional_attention") is True):
        return _encoder_reader(), path
    if config:
        return _hf_reader(), path
    raise ModelMissing(f"{path} has no model: neither a .gguf file nor a config.json")


def _one_gguf(path: Path) -> Path:
    """Return the one .gguf file of a directory, of a split model the first one."""
    files = sorted(path.glob("*.gguf"))
    first = first_shard(files) if len(files) > 1 else files[0]
    if first is None:
        raise ModelRefused(f"it has {len(files)} .gguf files; name the one to serve")
    if not first.is_file():
        raise ModelRefused(f"the first file of its model, {first.name}, is missing")
    return first


# The readers are imported when they are needed, because numpy and gguf take a tenth of a second.


def _gguf_reader() -> Reader:
    """Return the reader of .gguf files."""
    from tlserve.model.gguf.model import read_gguf_front, read_gguf_model

    return Reader(read_gguf_model, read_gguf_front)


def _hf_reader() -> Reader:
    """Return the reader of Hugging Face directories."""
    from tlserve.model.hugging_face.model import read_hf_front, read_hf_model

    return Reader(read_hf_model, read_hf_front)


def _encoder_reader() -> Reader:
    """Return the reader of encoders."""
    from tlserve.model.encoder.model import read_encoder_front, read_encoder_model

    return Reader(read_encoder_model, read_encoder_front)


def _bigram_reader() -> Reader:
    """Return the reader of bigrams; their table is small, so a front reads it too."""
    from tlserve.model.bigram import read_bigram_model

    return Reader(read_bigram_model, read_bigram_model)
