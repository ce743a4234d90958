"""From a path to a model that is ready to run.

Owns the finding of files and the choice of a reader; each kind of model directory is one reader in `_READERS`. Refuses to know
the format of weights, where models are downloaded to, and text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tlserve.errors import ModelMissing, ModelRefused
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load_options import LoadOptions
from tlserve.model.loaded_model import LoadedModel
from tlserve.model.sidecar_files import read_json

__all__ = ["LoadedModel", "builtin_model_path", "load_model"]

Reader = Callable[[Path, LoadOptions], LoadedModel]

_BUILTIN = Path(__file__).parent / "builtin"


def builtin_model_path(name: str) -> Path | None:
    """Return the directory of the built-in model `name`, or None where there is none of that name."""
    names = {path.name for path in _BUILTIN.iterdir() if path.is_dir()}
    return _BUILTIN / name if name in names else None


def load_model(
    path: Path | str, *, context_tokens: int = 0, threads: int = 0, kernels: KernelChoice | None = None
) -> LoadedModel:
    """Load the model at `path`: a .gguf file, a directory with one, or a directory with a config.json.

    `context_tokens` 0: what the model was trained for; `threads` 0: one per core; `kernels`: which arithmetic is wished
    for. Raises `ModelMissing` where nothing is there, `ModelRefused` with the reason where it cannot be served, and
    `SettingsError` where kernels were demanded that are not there.
    """
    path = Path(path)
    options = LoadOptions(context_tokens=context_tokens, threads=threads, kernels=kernels or KernelChoice())
    if not path.exists():
        raise ModelMissing(
            f"there is no model at {path}; `tlserve pull smol-135m` fetches one, `--model succ` needs none"
        )
    try:
        return _reader(path)(path, options)
    except ModelRefused as refusal:
        raise ModelRefused(f"{path}: {refusal.message}") from refusal


def _reader(path: Path) -> Reader:
    """Choose who reads `path`."""
    if path.is_file():
        return _read_gguf
    config = read_json(path / "config.json")
    if config.get("model_type") == "bigram":
        return _read_bigram
    if any(path.glob("*.gguf")):
        return _read_gguf_directory
    if config.get("model_type") == "bert":
        return _read_bert
    if config:
        return _read_hf
    raise ModelMissing(f"{path} holds no model: neither a .gguf file nor a config.json")


def _read_gguf_directory(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the one .gguf file of a directory."""
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise ModelRefused(f"it holds {len(files)} .gguf files; name the one to serve")
    return _read_gguf(files[0], options)


def _read_gguf(path: Path, options: LoadOptions) -> LoadedModel:
    """Read a .gguf file; what does it is imported here, because numpy and gguf take a tenth of a second."""
    from tlserve.model.gguf_model import read_gguf_model

    return read_gguf_model(path, options)


def _read_hf(path: Path, options: LoadOptions) -> LoadedModel:
    """Read a Hugging Face directory."""
    from tlserve.model.hf_model import read_hf_model

    return read_hf_model(path, options)


def _read_bert(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory of a BERT sentence encoder."""
    from tlserve.model.bert_model import read_bert_model

    return read_bert_model(path, options)


def _read_bigram(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory of a bigram."""
    from tlserve.model.bigram import read_bigram_model

    return read_bigram_model(path, options.context_tokens)
