"""A model that is split over several files: it loads as the whole one does, and files that do not belong together are refused."""

import re
import struct

import pytest

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.tiny_models import write_tiny_gguf
from tlserve.errors import ModelRefused
from tlserve.model.gguf.shard_names import all_shards_of, first_shard, without_number
from tlserve.model.gguf.tensors import GgufFile
from tlserve.model.load import load_front, load_model


@pytest.fixture
def first(tmp_path):
    (tmp_path / "split").mkdir()
    return write_tiny_gguf(tmp_path / "split" / "tiny.gguf", tensors_in_a_file=8)


@pytest.fixture
def shards(first):
    return sorted(first.parent.iterdir())


def changed(path, name, value, code="H"):
    """Write another number behind the metadata key `name`."""
    data = bytearray(path.read_bytes())
    place = data.index(name.encode()) + len(name) + 4
    struct.pack_into(f"<{code}", data, place, value)
    path.write_bytes(data)


@pytest.mark.spec("MOD-58")
def test_the_first_file_or_the_folder_of_a_split_model_loads_as_the_whole_model(tmp_path, first):
    whole = load_model(write_tiny_gguf(tmp_path / "tiny.gguf"))
    assert len(list(first.parent.iterdir())) > 2
    for path in (first, first.parent):
        split = load_model(path)
        assert (run_whole(split.model, b"abc").logits == run_whole(whole.model, b"abc").logits).all()
        assert split.weights_bytes == whole.weights_bytes
        assert load_front(path).name == whole.name


def test_a_split_model_without_a_name_has_that_of_its_files(first):
    assert without_number(first.name) == "tiny"
    assert without_number("tiny.gguf") == "tiny"


@pytest.mark.spec("MOD-5")
def test_every_byte_of_every_file_is_in_the_digest(shards):
    with GgufFile(shards[0], hashed=True) as file:
        before, size = file.digest(), file.size_bytes()
    assert size == sum(path.stat().st_size for path in shards)
    data = bytearray(shards[-1].read_bytes())
    data[-100] ^= 1
    shards[-1].write_bytes(data)
    with GgufFile(shards[0], hashed=True) as file:
        assert file.digest() != before


def remove(*numbers):
    return lambda shards: [shards[number].unlink() for number in numbers]


def swap(one, other):
    def change(shards):
        first, second = shards[one].read_bytes(), shards[other].read_bytes()
        shards[one].write_bytes(second)
        shards[other].write_bytes(first)

    return change


def change_key(number, *change):
    return lambda shards: changed(shards[number], *change)


WRONG = {
    "a file is missing": (remove(1), r"1 are not in the folder: tiny-00002-of-00003\.gguf"),
    "two files are missing": (remove(1, 2), r"2 are not in the folder: tiny-00002-of-00003\.gguf, tiny-00003"),
    "the first is missing": (remove(0), r"the first file of its model, tiny-00001-of-00003\.gguf, is missing"),
    "the files are mixed up": (
        swap(1, 2),
        r"tiny-00002-of-00003\.gguf: split\.no is 2, but this is the file with number 1",
    ),
    "the first is another one": (swap(0, 1), r"this is file 2 of the 3 of a model: give the first one, tiny-00001"),
    "a file of another model": (change_key(1, "split.count", 4), r"split\.count is 4, but the first file has 3"),
    "more files than names": (change_key(0, "split.count", 4), r"must end in -00001-of-00004\.gguf"),
    "too many files": (change_key(0, "split.count", 60000), "models in at most 1024 files"),
    "the same file twice": (
        lambda shards: same_number_twice(shards),
        r"the tensor '.*' is in tiny-00002.* and in tiny-00003",
    ),
    "more tensors than there are": (change_key(0, "split.tensors.count", 99, "i"), r"split\.tensors\.count is 99"),
    "a file is cut": (lambda shards: shards[2].write_bytes(shards[2].read_bytes()[:-200]), "it is truncated"),
    "a file is empty": (lambda shards: shards[2].write_bytes(b""), r"cannot read tiny-00003-of-00003\.gguf"),
    "a file is another thing": (lambda shards: shards[2].write_bytes(b"GGML" * 9), "does not begin with 'GGUF'"),
}


def same_number_twice(shards):
    shards[2].write_bytes(shards[1].read_bytes())
    changed(shards[2], "split.no", 2)


@pytest.mark.spec("MOD-58")
@pytest.mark.parametrize("name", WRONG)
def test_files_that_do_not_belong_together_are_refused(name, shards):
    change, reason = WRONG[name]
    assert len(shards) == 3
    change(shards)
    with pytest.raises(ModelRefused, match=reason):
        load_model(shards[0].parent)


@pytest.mark.spec("MOD-58")
def test_a_file_that_is_not_the_first_is_refused_with_the_name_of_the_first(shards):
    with pytest.raises(ModelRefused, match=re.escape(f"give the first one, {shards[0].name}")):
        load_model(shards[1])


def test_a_folder_with_files_of_two_models_is_refused(shards):
    write_tiny_gguf(shards[0].with_name("other.gguf"))
    with pytest.raises(ModelRefused, match=r"has 4 \.gguf files; name the one to serve"):
        load_model(shards[0].parent)
    assert load_model(shards[0]).name == "tiny"


def test_names_of_shards_are_those_of_llama_cpp():
    assert all_shards_of("a-b-00002-of-00002.gguf") == ["a-b-00001-of-00002.gguf", "a-b-00002-of-00002.gguf"]
    assert all_shards_of("a-2-of-2.gguf") == ["a-2-of-2.gguf"]
    assert first_shard([]) is None


def test_a_file_opened_without_a_hash_has_no_digest(shards):
    with GgufFile(shards[0]) as file, pytest.raises(ValueError, match="without a hash"):
        file.digest()
