"""Long texts: the same ids as from the library in one piece, and other threads continue meanwhile."""

import threading
import time

import pytest

from tests.kit.model.tiny_tokenizers import gpt2_metadata
from tlserve.text.library_tokenizer import LONG_CHARACTERS
from tlserve.text.tokenizer import build_tokenizer


@pytest.mark.parametrize("length", [LONG_CHARACTERS - 1, LONG_CHARACTERS, LONG_CHARACTERS + 1, 3 * LONG_CHARACTERS])
def test_a_text_has_the_same_ids_on_both_sides_of_the_limit_for_long_texts(length):
    tokenizer = build_tokenizer(gpt2_metadata())
    text = ("the quick brown fox ä€😀\n" * LONG_CHARACTERS)[:length]
    library = tokenizer._library  # type: ignore[attr-defined]
    assert tokenizer.encode(text) == library.encode(text, add_special_tokens=False).ids


def test_other_threads_run_while_megabytes_are_encoded():
    """The longest pause of this thread is a small part of the encoding time."""
    tokenizer = build_tokenizer(gpt2_metadata())
    encoding = threading.Thread(target=tokenizer.encode, args=("word é漢 " * 30_000,))
    begin = last = time.perf_counter()
    pauses = [0.0]
    encoding.start()
    while encoding.is_alive():
        now = time.perf_counter()
        pauses.append(now - last)
        last = now
    assert max(pauses) < 0.6 * (last - begin)
