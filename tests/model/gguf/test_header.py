"""The bounded GGUF reader: it reads the same as the gguf package, and quickly refuses damaged or hostile files."""

import contextlib
import struct
import time
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.model.tiny_models import write_tiny_gguf
from tlserve.errors import ModelRefused
from tlserve.model.gguf.header import read_header


def string(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def head(tensors=0, keys=0, version=3, magic=b"GGUF"):
    return magic + struct.pack("<IQQ", version, tensors, keys)


def key(name, kind, value):
    return string(name) + struct.pack("<I", kind) + value


def tensor(name="t", dims=(32,), kind=0, offset=0, n_dims=None):
    count = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", count, *dims, kind, offset)


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


@pytest.mark.spec("MOD-16")
def test_metadata_and_directory_are_what_the_gguf_package_reads(tmp_path):
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_uint8, 200),
        (writer.add_int8, -3),
        (writer.add_uint16, 60000),
        (writer.add_int16, -300),
        (writer.add_uint32, 1 << 31),
        (writer.add_int32, -(1 << 30)),
        (writer.add_float32, 0.5),
        (writer.add_uint64, 1 << 40),
        (writer.add_int64, -(1 << 40)),
        (writer.add_float64, 1e-300),
        (writer.add_bool, True),
        (writer.add_string, "grüße 漢字"),
    ):
        add(f"x.{add.__name__}", value)
    writer.add_array("x.strings", ["a", "", "ü", "b" * 300])
    writer.add_array("x.integers", [1, -2, 3])
    writer.add_array("x.floats", [0.5, -1.5])
    writer.add_array("x.bools", [True, False])
    writer.add_tensor("first", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("second", np.arange(7, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = read_header(path.read_bytes()), gguf.GGUFReader(path)
    expected = {n: f.contents() for n, f in theirs.fields.items() if not n.startswith("GGUF.")}
    plain = {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in ours.metadata.items()}
    assert plain == expected
    assert all(
        type(a) is type(b)
        for k in plain
        if isinstance(plain[k], list)
        for a, b in zip(plain[k], expected[k], strict=True)
    )
    for info in theirs.tensors:
        mine = ours.tensors[info.name]
        assert (mine.shape[::-1], mine.kind, mine.start) == (
            tuple(info.shape.tolist()),
            int(info.tensor_type),
            info.data_offset,
        )


@pytest.mark.slow
@pytest.mark.real_model
def test_the_real_header_is_what_the_gguf_package_reads_in_a_fraction_of_the_time(smol_path):
    import mmap

    started = time.perf_counter()
    theirs = gguf.GGUFReader(smol_path)
    between = time.perf_counter()
    with smol_path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        ours = read_header(data)
    assert (time.perf_counter() - between) * 5 < between - started
    assert ours.metadata["tokenizer.ggml.tokens"] == theirs.fields["tokenizer.ggml.tokens"].contents()
    assert ours.metadata["tokenizer.ggml.merges"] == theirs.fields["tokenizer.ggml.merges"].contents()
    assert [info.start for info in ours.tensors.values()] == [info.data_offset for info in theirs.tensors]


REFUSED = {
    "empty": (b"", "begin with 'GGUF'"),
    "another format": (b"PK\x03\x04" + bytes(40), "begin with 'GGUF'"),
    "version 1": (head(version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "more tensors than bytes": (head(tensors=60_000), "needs"),
    "absurdly many tensors": (head(tensors=1 << 60), "claims"),
    "absurdly many keys": (head(keys=1 << 62), "claims"),
    "no keys behind the count": (head(keys=1), "needs"),
    "a key longer than the file": (head(keys=1) + struct.pack("<Q", 200) + bytes(10), "needs"),
    "a key of 2**63 bytes": (head(keys=1) + struct.pack("<Q", 1 << 63) + bytes(10), "claims"),
    "a key that is not UTF-8": (head(keys=1) + key(b"\xff\xfe", 4, bytes(4)), "not UTF-8"),
    "a value type unknown": (head(keys=1) + key("k", 13, bytes(8)), "unknown GGUF value type 13"),
    "a string of 2**40 bytes": (head(keys=1) + key("k", 8, struct.pack("<Q", 1 << 40)), "claims"),
    "a key twice": (head(keys=2) + 2 * key("k", 4, bytes(4)), "occurs twice"),
    "an array of arrays": (head(keys=1) + key("k", 9, struct.pack("<IQ", 9, 1) + bytes(40)), "arrays of the GGUF"),
    "an array of 2**61 numbers": (head(keys=1) + key("k", 9, struct.pack("<IQ", 10, 1 << 61)), "claims"),
    "an array longer than the file": (head(keys=1) + key("k", 9, struct.pack("<IQ", 4, 4_000_000)), "needs"),
    "strings longer than the file": (
        head(keys=1) + key("k", 9, struct.pack("<IQ", 8, 2) + struct.pack("<QQ", 1 << 50, 0)),
        "entry 0 of 2",
    ),
    "strings that end early": (
        head(keys=1) + key("k", 9, struct.pack("<IQ", 8, 2) + string("abcdefghijk")),
        "entry 1 of 2",
    ),
    "a string in an array that is not UTF-8": (
        head(keys=1) + key("k", 9, struct.pack("<IQ", 8, 1) + string(b"\xc3")),
        "not UTF-8",
    ),
    "five dimensions": (head(tensors=1) + tensor(dims=(1,) * 5) + bytes(8), "5 dimensions"),
    "an empty key": (head(keys=1) + key("", 0, b"\0"), "key is empty"),
    "2**31 dimensions": (head(tensors=1) + tensor(n_dims=1 << 31), "dimensions"),
    "a tensor twice": (head(tensors=2) + tensor() + tensor() + bytes(256), "occurs twice"),
    "data that is not aligned": (head(tensors=1) + tensor(offset=7) + bytes(256), "not aligned"),
    "an alignment of zero": (head(keys=1) + key("general.alignment", 4, bytes(4)), "power of two"),
    "an alignment of three": (head(keys=1) + key("general.alignment", 4, struct.pack("<I", 3)), "power of two"),
    "an alignment that is a text": (head(keys=1) + key("general.alignment", 8, string("x")), "power of two"),
}


@pytest.mark.spec("MOD-15")
@pytest.mark.parametrize("name", REFUSED)
def test_hostile_header_is_refused_with_its_reason_in_little_memory(name):
    data, reason = REFUSED[name]
    tracemalloc.start()
    try:
        with pytest.raises(ModelRefused, match=reason):
            read_header(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def arrays(kind, item, lengths):
    """Return a file whose metadata are arrays of `lengths` items of one type."""
    bodies = (key(f"tokenizer.x{i}", 9, struct.pack("<IQ", kind, n) + item * n) for i, n in enumerate(lengths))
    return head(keys=len(lengths)) + b"".join(bodies)


def peak_bytes(action):
    """Return the most memory that `action` takes from Python and numpy."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.spec("MOD-15")
@pytest.mark.parametrize("kind", [1, 5, 6, 12])
def test_arrays_of_numbers_take_no_more_memory_than_the_file(kind):
    item = bytes(range(1, 1 + {1: 1, 5: 4, 6: 4, 12: 8}[kind]))
    data = arrays(kind, item, [250_000] * 8)
    assert peak_bytes(lambda: read_header(data)) < len(data) + (1 << 18)


@pytest.mark.spec("MOD-15")
def test_a_file_with_millions_of_strings_is_refused_before_they_are_made():
    data = arrays(8, struct.pack("<Q", 0), [1 << 20, 1 << 20, 1])

    def read():
        with pytest.raises(ModelRefused, match=r"tokenizer.x2.*more than 2097152 strings"):
            read_header(data)

    assert peak_bytes(read) < len(data) + (1 << 20)


def test_an_array_of_numbers_may_be_empty_and_at_the_end_of_the_file():
    assert len(read_header(arrays(5, b"", [0])).metadata["tokenizer.x0"]) == 0


@pytest.mark.spec("MOD-15")
def test_every_truncation_of_a_header_is_refused(tiny_bytes):
    end = read_header_end(tiny_bytes)
    for size in range(end):
        with pytest.raises(ModelRefused):
            read_header(tiny_bytes[:size])
    read_header(tiny_bytes[:end])


def read_header_end(data):
    """Return the size of the header: where the last directory entry ends."""
    last = max(data.rfind(name.encode()) + len(name) for name in read_header(data).tensors)
    (dimensions,) = struct.unpack_from("<I", data, last)
    return last + 4 + 8 * dimensions + 4 + 8


@pytest.mark.spec("MOD-15")
@given(flips=st.lists(st.tuples(st.integers(0, 1 << 11), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_header_is_read_or_refused_and_nothing_else(tiny_bytes, flips):
    damaged = bytearray(tiny_bytes)
    for place, value in flips:
        damaged[place % len(damaged)] = value
    with contextlib.suppress(ModelRefused):
        read_header(bytes(damaged))
