"""The log-probabilities of a prompt, in entries with their places."""

import pytest

from tests.kit.model.tiny_tokenizers import gpt2_metadata
from tlserve.chat.logprob_entries import LogprobEntry, TokenChoice
from tlserve.chat.prompt_entries import PromptEntries
from tlserve.generation import PromptLogprobs, PromptToken, TokenLogprob
from tlserve.text.tokenizer import build_tokenizer

TINY = build_tokenizer(gpt2_metadata())
START = TINY.special_tokens["<|im_start|>"]


def told(ids, start=1):
    """Return the logprobs of a backend for `ids` from `start` on."""
    tokens = [
        PromptToken(token, -float(i), (TokenLogprob(0, -0.5), TokenLogprob(token, -float(i))))
        for i, token in enumerate(ids)
    ]
    return PromptLogprobs(start, tuple(tokens[start:]))


def test_the_first_token_has_no_logprob_and_the_others_come_in_pieces():
    ids = TINY.encode("abé")
    entries = PromptEntries(TINY, ids)
    for start in range(1, len(ids)):
        entries.feed(PromptLogprobs(start, told(ids).tokens[start - 1 : start]))
    whole = PromptEntries(TINY, ids)
    whole.feed(told(ids))
    assert entries.entries(2) == whole.entries(2)
    first, *others = entries.entries(1)
    assert first == LogprobEntry(TokenChoice(ids[0], TINY.token_spelling(ids[0]), None))
    assert [entry.chosen.logprob for entry in others] == [-float(i) for i in range(1, len(ids))]
    assert [entry.top for entry in others] == [(TokenChoice(0, b"<|endoftext|>", -0.5),)] * len(others)


@pytest.mark.parametrize("text", ["the 漢é", "a<|im_start|>b"])
def test_the_places_are_right_with_and_without_spelled_control_tokens(text):
    ids = TINY.encode_with_specials(text)
    entries = PromptEntries(TINY, [START, *ids])
    entries.feed(told([START, *ids]))
    placed = entries.entries_in(text, 0)
    for entry, after in zip(placed, [*placed[1:], None], strict=True):
        end = len(text) if after is None else after.offset
        piece = entry.chosen.bytes.decode(errors="ignore")
        assert text[entry.offset : end] in (piece, "", text[entry.offset : entry.offset + 1])
    assert [placed[0].offset, placed[1].offset] == [0, 0]


def test_pieces_out_of_order_or_missing_are_the_backends_fault():
    ids = TINY.encode("abc")
    entries = PromptEntries(TINY, ids)
    with pytest.raises(RuntimeError, match="from 2, not 1"):
        entries.feed(told(ids, 2))
    with pytest.raises(RuntimeError, match="gave 1 of"):
        entries.entries_in("abc", 0)
