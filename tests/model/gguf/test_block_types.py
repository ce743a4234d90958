"""Weights of every type that GGUF has: the numbers that llama.cpp's own code makes of the same blocks, to the bit."""

import base64
import json
import struct

import numpy as np
import pytest

from tests.kit.model.golden_kin import KIN
from tlserve.errors import ModelRefused
from tlserve.kernels.reference.blocks import KINDS, as_floats, unpack
from tlserve.model.gguf.block_types import REMOVED
from tlserve.model.gguf.tensors import GgufFile

CASES = json.loads((KIN.parent / "blocks.json").read_text())


def write_file(path, kind, values, data):
    """Write a file with one matrix of two rows."""
    name = struct.pack("<Q", 1) + b"w"
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + name + struct.pack("<IQQIQ", 2, values, 2, kind, 0)
    path.write_bytes(header + bytes(-len(header) % 32) + data)
    return path


@pytest.mark.spec("MOD-55")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_rows_have_the_bits_that_llama_cpp_makes_of_the_blocks(tmp_path, case):
    blocks, numbers = (base64.b64decode(case[part]) for part in ("blocks", "numbers"))
    expected = np.frombuffer(numbers, np.uint32).reshape(2, -1)
    with GgufFile(write_file(tmp_path / "w.gguf", case["kind"], expected.shape[1], blocks)) as file:
        assert (file.rows("w", 0, 2).view(np.uint32) == expected).all()
        assert (file.rows("w", 1, 2).view(np.uint32) == expected[1:]).all()
        kind, raw = file.stored("w")
        assert (kind, raw.shape) == (case["kind"], (2, len(blocks) // 2))


@pytest.mark.parametrize("case", [case for case in CASES if case["kind"] in KINDS], ids=lambda case: case["name"])
def test_the_kernels_read_their_types_as_llama_cpp_does(case):
    blocks, numbers = (base64.b64decode(case[part]) for part in ("blocks", "numbers"))
    rows = np.frombuffer(blocks, np.uint8).reshape(2, -1)
    assert np.array_equal(as_floats(unpack(case["kind"], rows)).values.ravel(), np.frombuffer(numbers, np.float32))


@pytest.mark.parametrize("kind", [*REMOVED, 9, 15, 24, 27, 28, 43, 99])
def test_a_type_that_cannot_be_read_is_refused_by_tensor_and_type(tmp_path, kind):
    names = {9: "Q8_1", 15: "Q8_K", 24: "I8", 27: "I64", 28: "F64", 43: "unknown type 43", 99: "unknown type 99"}
    path = write_file(tmp_path / "w.gguf", kind, 256, bytes(4096))
    with pytest.raises(ModelRefused, match=f"'w'.*{(REMOVED | names)[kind]}"):
        GgufFile(path)
