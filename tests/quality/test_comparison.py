"""The figures of a comparison, against the same figures by their definitions in float64."""

import math

import numpy as np
import pytest

from tests.kit.engine.step_batches import run_whole
from tests.kit.model.naive_llama import log_softmax
from tests.kit.model.native_models import block_shape, ordered, stored
from tlserve.model.decoder.numerics import Numerics
from tlserve.quality import comparison
from tlserve.quality.comparison import compare, pieces_of

SHAPE = block_shape(context_tokens=64)
TENSORS = stored(SHAPE)
TOKENS = tuple(np.random.default_rng(3).integers(0, 256, 90).tolist())


@pytest.fixture(scope="module")
def models():
    return [
        ordered(SHAPE, TENSORS, Numerics(*numerics)) for numerics in (("f32", "f32"), ("int8", "f16"), ("int12", "f16"))
    ]


def by_definition(truth, model, pieces):
    """Return mean divergence, 99th percentile, agreement and perplexity, position by position."""
    divergences, agrees, losses = [], [], []
    for piece in pieces:
        for place, (a, b) in enumerate(
            zip(run_whole(truth, piece).logits, run_whole(model, piece).logits, strict=True)
        ):
            p, q = log_softmax(a.astype(np.float64)), log_softmax(b.astype(np.float64))
            divergences.append(sum(math.exp(x) * (x - y) for x, y in zip(p, q, strict=True)))
            agrees.append(p.argmax() == q.argmax())
            if place + 1 < len(piece):
                losses.append(-q[piece[place + 1]])
    return np.mean(divergences), np.quantile(divergences, 0.99), np.mean(agrees), math.exp(np.mean(losses))


@pytest.mark.spec("CLI-30")
@pytest.mark.parametrize("step_values", [1, 7 * 256, 1 << 22])
def test_the_figures_are_those_of_their_definitions_in_any_step_size(models, monkeypatch, step_values):
    monkeypatch.setattr(comparison, "_STEP_VALUES", step_values)
    truth, *others = models
    pieces = pieces_of(TOKENS, SHAPE.context_tokens)
    for model, found in zip(models, compare(truth, others, pieces), strict=True):
        got = (found.kl, found.kl_p99, found.agreement, found.perplexity)
        assert got == pytest.approx(by_definition(truth, model, pieces), rel=1e-6, abs=1e-12)
        assert found.positions == len(TOKENS)


@pytest.mark.spec("CLI-30")
def test_a_model_agrees_with_itself_and_twelve_bits_are_nearer_than_eight(models):
    truth, *others = models
    own, int8, int12 = compare(truth, others, pieces_of(TOKENS, SHAPE.context_tokens))
    assert (own.kl, own.kl_p99, own.agreement) == (0, 0, 1)
    assert 0 < int12.kl < int8.kl / 10


def test_pieces_are_as_long_as_the_context_allows_and_hold_every_token():
    assert pieces_of(range(5), 1000) == ((0, 1, 2, 3, 4),)
    assert [len(piece) for piece in pieces_of(range(1100), 4096)] == [512, 512, 76]
    assert [len(piece) for piece in pieces_of(range(100), 40)] == [40, 40, 20]


def test_a_piece_of_one_token_has_no_loss_and_so_no_perplexity(models):
    (own,) = compare(models[0], [], [(7,)])
    assert own.positions == 1
    assert math.isnan(own.perplexity)
