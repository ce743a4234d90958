"""The naive BERT follows its formulas, and public readers accept the directory."""

from pathlib import Path

import numpy as np
import safetensors.numpy
from tokenizers import Tokenizer

from tests.kit.model.tiny_bert import CLS, SEP, naive_hidden, naive_vector, tiny_bert_tensors, write_tiny_bert


def test_every_row_of_the_naive_forward_sees_the_whole_sequence() -> None:
    tensors = tiny_bert_tensors()
    before, after = naive_hidden(tensors, [CLS, 20, 21, SEP]), naive_hidden(tensors, [CLS, 20, 22, SEP])
    assert (np.abs(before - after).max(axis=1) > 1e-3).all()


def test_the_last_norm_of_the_naive_forward_gives_each_row_its_mean_and_variance() -> None:
    tensors = tiny_bert_tensors()
    last = "encoder.layer.1.output.LayerNorm"
    tensors |= {f"{last}.weight": np.full(32, 2, np.float32), f"{last}.bias": np.full(32, 3, np.float32)}
    hidden = naive_hidden(tensors, range(5, 25))
    np.testing.assert_allclose(hidden.mean(axis=1), 3, atol=1e-9)
    np.testing.assert_allclose(hidden.std(axis=1), 2, rtol=1e-9)


def test_the_naive_vector_has_length_one() -> None:
    assert abs(np.linalg.norm(naive_vector(tiny_bert_tensors(), [CLS, 9, SEP])) - 1) < 1e-12


def test_the_written_files_are_read_by_the_public_packages(tmp_path: Path) -> None:
    write_tiny_bert(tmp_path)
    stored, drawn = safetensors.numpy.load_file(tmp_path / "model.safetensors"), tiny_bert_tensors()
    assert stored.keys() == drawn.keys()
    assert all((stored[name] == drawn[name]).all() for name in drawn)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("The cat").tokens == [
        "[CLS]",
        "the",
        "cat",
        "[SEP]",
    ]
