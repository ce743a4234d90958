"""Sizes of experts that do not fit each other are refused before any tensor is read."""

import attrs
import pytest

from tests.kit.model.mechanism_records import MECHANISMS
from tlserve.errors import ModelRefused
from tlserve.model.decoder.record import Layer, checked

DECODER = MECHANISMS["experts in groups"]


def with_router(**changes):
    """Return the record with another router in its second layer."""
    attention, experts = DECODER.layers[1].blocks
    mixer = experts.mixers[0]
    changed = attrs.evolve(mixer, router=attrs.evolve(mixer.router, **changes))
    layer = Layer(blocks=(attention, attrs.evolve(experts, mixers=(changed,))))
    return attrs.evolve(DECODER, layers=(DECODER.layers[0], layer))


@pytest.mark.spec("MOD-25")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"count": 0}, "0 experts are not served; served: 1 to 1024"),
        ({"count": 2048}, "2048 experts are not served; served: 1 to 1024"),
        ({"groups": 3}, "8 experts cannot be in 3 groups of which 2 are kept"),
        ({"kept_groups": 5}, "8 experts cannot be in 4 groups of which 5 are kept"),
        ({"chosen": 5}, "5 of 8 experts cannot be chosen"),
        ({"chosen": 0}, "0 of 8 experts cannot be chosen"),
    ],
)
def test_a_router_whose_numbers_do_not_fit_is_refused(changes, reason):
    with pytest.raises(ModelRefused, match=reason):
        checked(with_router(**changes))


@pytest.mark.spec("MOD-25")
def test_more_experts_in_all_layers_than_are_served_are_refused():
    decoder = with_router(count=1024)
    many = attrs.evolve(decoder, layers=decoder.layers[1:] * 33)
    with pytest.raises(ModelRefused, match="33792 experts in all layers are not served; served: up to 32768"):
        checked(many)
