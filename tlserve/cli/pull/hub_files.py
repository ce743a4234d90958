"""The files of a hub's repository that make up a model, and the check of a fetched file.

Owns the choice (pure) and the check of one file. Does not know how files are fetched. Only names that are safe as file names are
chosen, whatever a hub lists; a file without a hash is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath

import attrs

from tlserve.errors import DownloadFailed
from tlserve.model.gguf.shard_names import all_shards_of, first_shard

_CHUNK_BYTES = 1 << 20
MOST_FILES = 1100

_TEXTS = frozenset(
    {
        *("config.json", "generation_config.json", "model.safetensors.index.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.txt"),
        *("chat_template.json", "additional_chat_templates/tool_use.jinja"),
        *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json", "1_Pooling/config.json"),
    }
)
_WHOLE, _SHARD = "model.safetensors", re.compile(r"model-[0-9]{5}-of-[0-9]{5}\.safetensors")
_GGUF = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.gguf")


@attrs.frozen(kw_only=True)
class HubFile:
    """A file of a repository. `sha256` is of its bytes, `git_sha1` of its git blob, in hexadecimal; empty: not known."""

    path: str
    size_bytes: int
    sha256: str = ""
    git_sha1: str = ""

    @property
    def hash(self) -> str:
        """The stronger of the two hashes."""
        return self.sha256 or self.git_sha1


def choose_files(files: Iterable[HubFile], name: str, gguf: str = "") -> tuple[HubFile, ...]:
    """Return the files of the repository `name` to fetch; raises `DownloadFailed` if they are not a model that can be served.

    These are the safetensors and their configuration, or else the one GGUF file; `gguf` names the GGUF file to fetch.
    """
    listed = {file.path: file for file in files}
    chosen = [listed[path] for path in _chosen_paths(listed, name, gguf)]
    if len(chosen) > MOST_FILES:
        raise DownloadFailed(f"{name} is in {len(chosen)} files; at most {MOST_FILES} are fetched")
    for file in chosen:
        if not file.hash or file.size_bytes < 0:
            raise DownloadFailed(f"the hub gives no hash for {file.path} in {name}, so the file cannot be checked")
    return tuple(chosen)


def _chosen_paths(listed: Mapping[str, HubFile], name: str, gguf: str) -> list[str]:
    ggufs = sorted(path for path in listed if _GGUF.fullmatch(path))
    if gguf:
        if gguf not in ggufs:
            raise DownloadFailed(f"{name} has no GGUF file {gguf!r}; it has {_said(ggufs)}")
        return _whole_gguf(listed, gguf, name)
    weights = [_WHOLE] if _WHOLE in listed else sorted(path for path in listed if _SHARD.fullmatch(path))
    if weights:
        return [*sorted(_TEXTS & listed.keys()), *weights]
    if len({first_shard([PurePath(path)]) or path for path in ggufs}) == 1:
        return _whole_gguf(listed, ggufs[0], name)
    if ggufs:
        raise DownloadFailed(f"{name} has {len(ggufs)} GGUF files; choose one with --file: {_said(ggufs)}")
    raise DownloadFailed(f"{name} has neither safetensors nor a GGUF file; other formats are not served")


def _whole_gguf(listed: Mapping[str, HubFile], gguf: str, name: str) -> list[str]:
    """Return the file `gguf`, or all files of a split model if it is one of them."""
    shards = all_shards_of(gguf) if len(all_shards_of(gguf)) <= MOST_FILES else [gguf]
    missing = [shard for shard in shards if shard not in listed]
    if missing:
        raise DownloadFailed(
            f"{gguf} is one of {len(shards)} files of a model, and {name} does not have {_said(missing)}"
        )
    return shards


def _said(names: list[str]) -> str:
    return ", ".join(names[:20]) + (" ..." if len(names) > 20 else "") if names else "none"


def is_expected(path: Path, file: HubFile) -> bool:
    """Say whether the file at `path` is the one that the hub describes."""
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == file.hash
