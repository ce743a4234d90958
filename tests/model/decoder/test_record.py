"""Sizes that do not fit each other are refused before any tensor is read."""

import attrs
import pytest

from tests.kit.model.mechanism_records import MECHANISMS
from tlserve.errors import ModelRefused
from tlserve.model.decoder.record import Layer, checked

DECODER = MECHANISMS["experts in groups"]
SHARED = MECHANISMS["keys of other layers, inputs of layers"]


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


@pytest.mark.spec("MOD-25")
@pytest.mark.parametrize("changes", [{"kv_from": 3}, {"kv_from": 1}, {"head_size": 8}])
def test_keys_of_another_layer_that_has_none_or_others_are_refused(changes):
    *before, last = SHARED.layers[:4]
    attention = attrs.evolve(last.blocks[0].mixers[0], **changes)
    layer = Layer(blocks=(attrs.evolve(last.blocks[0], mixers=(attention,)), *last.blocks[1:]))
    with pytest.raises(ModelRefused, match="cannot use the keys of another one"):
        checked(attrs.evolve(SHARED, layers=(*before, layer)))


@pytest.mark.spec("MOD-25")
def test_more_inputs_of_layers_than_are_served_are_refused():
    wide = attrs.evolve(SHARED, layer_inputs=attrs.evolve(SHARED.layer_inputs, width=1 << 18))
    with pytest.raises(ModelRefused, match="1310720 inputs of all layers are not served; served: up to 1048576"):
        checked(wide)
