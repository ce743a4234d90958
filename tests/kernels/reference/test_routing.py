"""Which experts are chosen, against the definition in plain Python, and for numbers that are not finite."""

import numpy as np
import pytest

from tlserve.kernels.reference.routing import Routing, route

USUAL = {"chosen": 3, "sigmoid": False, "groups": 1, "kept_groups": 1, "divided": True, "scale": np.float32(1)}


def routing(**changes):
    return Routing(**({"choice_bias": None, "own_scales": None} | USUAL | changes))


def defined(logits, how):
    """Return the experts and weights of one row by the definition, in float64."""
    scores = 1 / (1 + np.exp(-logits)) if how.sigmoid else np.exp(logits - logits.max())
    scores = scores if how.sigmoid else scores / scores.sum()
    ranks = dict(enumerate(scores + (0 if how.choice_bias is None else how.choice_bias)))
    size = len(logits) // how.groups
    best = {g: sum(sorted(ranks[e] for e in range(g * size, (g + 1) * size))[-2:]) for g in range(how.groups)}
    kept = sorted(best, key=lambda g: (-best[g], g))[: how.kept_groups]
    chosen = sorted(sorted((e for e in ranks if e // size in kept), key=lambda e: (-ranks[e], e))[: how.chosen])
    weights = scores[chosen]
    own = 1 if how.own_scales is None else how.own_scales[chosen]
    return chosen, weights / (weights.sum() if how.divided else 1) * float(how.scale) * own


@pytest.mark.spec("KER-41")
@pytest.mark.parametrize(
    "how",
    [
        routing(),
        routing(divided=False, scale=np.float32(2.5)),
        routing(sigmoid=True, groups=4, kept_groups=2, choice_bias=np.linspace(0.5, -0.5, 12, dtype=np.float32)),
        routing(groups=12, kept_groups=3),
        routing(own_scales=np.linspace(0.5, 2, 12, dtype=np.float32)),
    ],
)
def test_experts_and_weights_are_those_of_the_definition(how):
    logits = np.random.default_rng(0).standard_normal((50, 12)).astype(np.float32)
    chosen, weights = route(logits.copy(), how)
    for row, experts, shares in zip(logits.astype(np.float64), chosen, weights, strict=True):
        expected, expected_shares = defined(row, how)
        assert experts.tolist() == expected
        assert np.abs(shares - expected_shares).max() < 1e-6


@pytest.mark.spec("KER-41")
def test_of_equal_experts_and_groups_the_lower_numbers_are_chosen():
    logits = np.zeros((1, 12), np.float32)
    assert route(logits, routing())[0].tolist() == [[0, 1, 2]]
    assert route(logits, routing(groups=6, kept_groups=2))[0].tolist() == [[0, 1, 2]]


@pytest.mark.spec("KER-41")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_numbers_that_are_not_finite_choose_experts_that_exist(value):
    logits = np.zeros((1, 12), np.float32)
    logits[0, 5] = value
    with np.errstate(all="ignore"):
        for how in (routing(), routing(sigmoid=True, groups=4, kept_groups=2)):
            chosen = route(logits.copy(), how)[0][0]
            assert len(set(chosen.tolist())) == 3
            assert chosen.min() >= 0
            assert chosen.max() < 12
