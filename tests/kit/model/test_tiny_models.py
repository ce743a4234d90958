"""The small models: seeded, of the stated sizes, and the same in memory and on disk."""

from pathlib import Path

import numpy as np

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.tiny_models import succ_model, tiny_llama, tiny_shape, tiny_tensors, write_tiny_gguf
from tlserve.kernels.choose import KernelChoice
from tlserve.model.load import load_model


def test_succ_model_continues_each_byte_with_the_next() -> None:
    logits = run_whole(succ_model(), range(256)).logits
    assert logits.argmax(axis=1).tolist() == [*range(1, 256), 0]


def test_tiny_llama_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    first, again, other = (run_whole(tiny_llama(seed), range(20)).logits for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_tiny_llama_does_not_always_give_the_same_token() -> None:
    assert len(set(run_whole(tiny_llama(), range(64)).logits.argmax(axis=1).tolist())) > 8


def test_tiny_gguf_on_disk_gives_the_bits_of_the_model_in_memory(tmp_path: Path) -> None:
    reference = KernelChoice(kernels="reference", activations="f32", kv_precision="f32")
    loaded = load_model(write_tiny_gguf(tmp_path / "tiny.gguf", seed=3), threads=1, kernels=reference).model
    assert np.array_equal(run_whole(loaded, range(30)).logits, run_whole(tiny_llama(3), range(30)).logits)


def test_tiny_tensors_without_an_output_matrix_are_tied() -> None:
    assert "output.weight" not in tiny_tensors(tiny_shape(), tied=True)
