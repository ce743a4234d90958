"""Files of random blocks have the requested types."""

from pathlib import Path

from tests.kit.model.native_models import Q4_K, Q5_0, Q6_K, Q8_0
from tests.kit.model.stored_gguf import one_kind, q4_k_m, write_stored_gguf
from tests.kit.model.tiny_models import tiny_shape
from tlserve.model.gguf.tensors import GgufFile


def test_the_types_of_q4_k_m_are_those_that_llama_cpp_chooses() -> None:
    kind = q4_k_m(24)
    assert [index for index in range(24) if kind(f"blk.{index}.ffn_down.weight", 4864) == Q6_K] == [
        *(0, 1, 2, 5, 8, 11, 14, 17, 20, 21, 22, 23)
    ]
    assert kind("blk.3.attn_v.weight", 1024) == Q4_K
    assert kind("blk.5.attn_v.weight", 896) == Q8_0
    assert kind("blk.5.attn_q.weight", 896) == Q5_0


def test_a_file_of_one_kind_has_it_in_all_matrices(tmp_path: Path) -> None:
    path = write_stored_gguf(
        tmp_path / "one.gguf", tiny_shape(hidden=256, intermediate=512, head_size=64, rotated=64), one_kind(Q4_K, Q6_K)
    )
    with GgufFile(path) as file:
        kinds = {name: file.stored(name)[0] for name, shape in file.shapes().items() if len(shape) == 2}
    assert kinds.pop("token_embd.weight") == Q6_K
    assert set(kinds.values()) == {Q4_K}
