"""The stand-in of a hub, and the golden checkpoints as directories and as GGUF."""

import hashlib
import json
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.kit.cli.hub_stand_in import Repository, git_sha1, open_hub_stand_in
from tests.kit.model.golden_kin import kin_cases, write_kin
from tests.kit.model.kin_gguf import checkpoint, write_kin_gguf
from tests.kit.model.safetensors_bytes import entry, safetensors_bytes
from tlserve.model.gguf.tensors import GgufFile

COMMIT = "a" * 40


def ask(url: str, **headers: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        return answer.status, answer.read()


def test_a_repository_is_listed_and_its_files_served_from_any_offset() -> None:
    with open_hub_stand_in() as hub:
        hub.repositories["org/x"] = [Repository(COMMIT, {"a": b"hello", "b": b""}, lfs=frozenset({"a"}))]
        document = json.loads(ask(f"{hub.url}/api/models/org/x")[1])
        assert document["sha"] == COMMIT
        assert document["siblings"][0]["lfs"]["sha256"] == hashlib.sha256(b"hello").hexdigest()
        assert document["siblings"][1]["blobId"] == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # git's empty file
        assert ask(f"{hub.url}/org/x/resolve/{COMMIT}/a") == (200, b"hello")
        assert ask(f"{hub.url}/org/x/resolve/main/a", Range="bytes=2-") == (206, b"llo")
        assert hub.files_asked() == ["a", "a"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{hub.url}/api/models/org/y")


def test_git_names_a_file_by_its_size_and_content() -> None:
    assert git_sha1(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_a_golden_checkpoint_has_the_same_numbers_in_both_forms(tmp_path: Path) -> None:
    case = kin_cases()["qwen2"]
    tensors = checkpoint(case)
    assert (write_kin(tmp_path / "m", case) / "config.json").is_file()
    with GgufFile(write_kin_gguf(tmp_path / "m.gguf", case)) as file:
        assert len(file.shapes()) == len(tensors)
        rows = file.rows("blk.1.attn_k.weight", 0, 16)
    assert np.array_equal(rows, tensors["model.layers.1.self_attn.k_proj.weight"])


def test_handmade_safetensors_begin_with_the_length_of_their_header() -> None:
    assert safetensors_bytes({}, b"x")[:10] == b"\x02" + bytes(7) + b"{}"
    assert safetensors_bytes(b"", size=5)[:8] == b"\x05" + bytes(7)
    assert entry()["shape"] == (2,)
