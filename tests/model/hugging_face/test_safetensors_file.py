"""The bounded safetensors reader: it reads the same as the safetensors package, and refuses damaged or hostile files."""

import contextlib
import os
import tracemalloc

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.model.golden_kin import KIN
from tests.kit.model.safetensors_bytes import entry, safetensors_bytes
from tlserve.errors import ModelRefused
from tlserve.model.hugging_face.safetensors_file import MAX_HEADER_BYTES, SafetensorsFile, read_header

GOOD = safetensors_bytes({"a": entry(), "b": entry("F16", (1, 2), (8, 12))}, bytes(12))


@pytest.mark.spec("MOD-27")
@pytest.mark.parametrize("path", sorted(KIN.rglob("*.safetensors")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_tensors_are_what_the_safetensors_package_reads(path):
    with SafetensorsFile(path) as ours, safetensors.safe_open(path, "numpy") as theirs:
        assert set(ours.tensors) == set(theirs.keys())
        for name, info in ours.tensors.items():
            part = theirs.get_slice(name)
            assert (info.kind, list(info.shape)) == (part.get_dtype(), part.get_shape())
            if info.kind != "BF16":  # numpy has no such type; its bits are compared below
                truth = theirs.get_tensor(name)
                assert np.array_equal(ours.rows(name, 0, len(truth)), truth.astype(np.float32))
                assert np.array_equal(ours.rows(name, 3, 9), truth[3:9].astype(np.float32))


@pytest.mark.spec("MOD-27")
def test_bf16_is_the_upper_half_of_float32(tmp_path):
    numbers = np.array([0, -0.0, 1, -2.5, 3e38, 1e-40, np.inf, -np.inf, np.nan], np.float32)
    halves = (numbers.view(np.uint32) >> 16).astype("<u2")
    (tmp_path / "x").write_bytes(safetensors_bytes({"t": entry("BF16", (9,), (0, 18))}, halves.tobytes()))
    with SafetensorsFile(tmp_path / "x") as file:
        read = file.rows("t", 0, 9)
    assert np.array_equal(read.view(np.uint32), numbers.view(np.uint32) & 0xFFFF0000)


def test_rows_are_copies_that_outlive_the_file(tmp_path):
    safetensors.numpy.save_file({"t": np.arange(12, dtype=np.float32).reshape(3, 4)}, tmp_path / "x")
    with SafetensorsFile(tmp_path / "x") as file:
        rows = file.rows("t", 1, 3)
    assert rows.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.parametrize("kind", ["I64", "F64", "BOOL"])
def test_tensors_of_other_types_are_allowed_but_their_rows_are_refused(tmp_path, kind):
    size = {"I64": 8, "F64": 8, "BOOL": 1}[kind]
    (tmp_path / "x").write_bytes(safetensors_bytes({"ids": entry(kind, (2,), (0, 2 * size))}, bytes(2 * size)))
    with SafetensorsFile(tmp_path / "x") as file, pytest.raises(ModelRefused, match=f"type {kind}; served: F32"):
        file.rows("ids", 0, 2)


@pytest.mark.parametrize(("shape", "size"), [((), 4), ((0, 3), 0)])
def test_a_single_number_and_an_empty_tensor_have_no_rows(tmp_path, shape, size):
    (tmp_path / "x").write_bytes(safetensors_bytes({"t": entry("F32", shape, (0, size))}, bytes(size)))
    with SafetensorsFile(tmp_path / "x") as file, pytest.raises(ModelRefused, match="single number or empty"):
        file.rows("t", 0, 1)


REFUSED = {
    "empty": (b"", "it has 0 bytes"),
    "seven bytes": (bytes(7), "it has 7 bytes"),
    "a header longer than the file": (safetensors_bytes({}, size=100), "claims 100 bytes"),
    "a header of 2**63 bytes": (safetensors_bytes({}, size=1 << 63), "truncated or its header is wrong"),
    "a header past the cap": (safetensors_bytes({}, bytes(64), size=MAX_HEADER_BYTES + 1), "at most"),
    "no JSON": (safetensors_bytes(b"{"), "cannot be read"),
    "not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "cannot be read"),
    "deep JSON": (safetensors_bytes(b"[" * 200_000), "cannot be read"),
    "a list": (safetensors_bytes([]), "not a JSON object"),
    "a tensor twice": (safetensors_bytes(b'{"a": {"dtype": "F32"}, "a": {"dtype": "F32"}}'), "occurs twice"),
    "a key of an entry twice": (safetensors_bytes(b'{"a": {"dtype": "F32", "dtype": "F16"}}'), "occurs twice"),
    "an entry that is a number": (safetensors_bytes({"a": 3}), "not described by an object"),
    "no type": (safetensors_bytes({"a": {"shape": [1], "data_offsets": [0, 4]}}), "unknown type"),
    "an unknown type": (safetensors_bytes({"a": entry("F24")}), "unknown type 'F24'"),
    "a type that is a list": (safetensors_bytes({"a": entry(["F32"])}), "unknown type"),
    "no shape": (safetensors_bytes({"a": {"dtype": "F32", "data_offsets": [0, 4]}}), "usable shape"),
    "a negative size": (safetensors_bytes({"a": entry(shape=[-1])}), "usable shape"),
    "a size that is true": (safetensors_bytes({"a": entry(shape=[True])}), "usable shape"),
    "a size of 2**60": (safetensors_bytes({"a": entry(shape=[1 << 60])}), "usable shape"),
    "nine dimensions": (safetensors_bytes({"a": entry(shape=[1] * 9)}), "usable shape"),
    "offsets backwards": (safetensors_bytes({"a": entry(offsets=[8, 0])}, bytes(8)), "usable data_offsets"),
    "one offset": (safetensors_bytes({"a": entry(offsets=[0])}), "usable data_offsets"),
    "offsets that are fractions": (safetensors_bytes({"a": entry(offsets=[0.0, 8.0])}, bytes(8)), "data_offsets"),
    "more bytes than the shape": (safetensors_bytes({"a": entry(offsets=[0, 12])}, bytes(12)), "need 8"),
    "a product past 2**64": (safetensors_bytes({"a": entry(shape=[1 << 40, 1 << 40])}, bytes(8)), "takes 8 bytes"),
    "data past the end": (safetensors_bytes({"a": entry()}, bytes(4)), "end at byte"),
    "bytes that no tensor has": (safetensors_bytes({"a": entry()}, bytes(9)), "end at byte"),
    "data that overlaps": (
        safetensors_bytes({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        "'b' overlaps another",
    ),
    "two names for the same data": (safetensors_bytes({"a": entry(), "b": entry()}, bytes(8)), "overlaps another"),
    "a hole": (safetensors_bytes({"a": entry(offsets=[4, 12])}, bytes(12)), "leaves a hole"),
}


@pytest.mark.spec("MOD-49")
@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_header_is_refused_with_its_reason_in_little_memory(name):
    data, reason = REFUSED[name]
    tracemalloc.start()
    try:
        with pytest.raises(ModelRefused, match=reason):
            read_header(data, "x.safetensors")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_the_safetensors_package_also_refuses_all_but_duplicates():
    for name, (data, _) in REFUSED.items():
        with contextlib.suppress(safetensors.SafetensorError):
            safetensors.deserialize(data)
            assert "key of an entry" in name or "a tensor twice" in name, f"only we refuse {name}"


@pytest.mark.spec("MOD-49")
def test_every_truncation_is_refused():
    read_header(GOOD, "x")
    for size in range(len(GOOD)):
        with pytest.raises(ModelRefused):
            read_header(GOOD[:size], "x")


@pytest.mark.spec("MOD-49")
@given(flips=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_header_is_refused_or_stays_inside_the_file(flips):
    damaged = bytearray(GOOD)
    for place, value in flips:
        damaged[place] = value
    with contextlib.suppress(ModelRefused):
        tensors = read_header(bytes(damaged), "x")
        assert all(8 <= info.start <= info.end <= len(damaged) for info in tensors.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)
ENTRY = st.fixed_dictionaries(
    {"dtype": st.sampled_from(["F32", "I8"]) | JSON, "shape": st.lists(st.integers(0, 3)) | JSON, "data_offsets": JSON}
)


@given(header=st.dictionaries(st.text(max_size=4), ENTRY | JSON, max_size=4) | JSON, data=st.binary(max_size=24))
def test_any_json_for_a_header_is_read_or_refused_and_nothing_else(header, data):
    with contextlib.suppress(ModelRefused):
        read_header(safetensors_bytes(header, data), "x")


def test_a_file_that_cannot_be_opened_is_refused(tmp_path):
    (tmp_path / "empty").touch()
    for name in ("empty", "nowhere", os.curdir):
        with pytest.raises(ModelRefused, match="cannot read"):
            SafetensorsFile(tmp_path / name)


def test_the_metadata_of_a_file_is_not_a_tensor():
    assert read_header(safetensors_bytes({"__metadata__": {"format": "pt"}}), "x") == {}
