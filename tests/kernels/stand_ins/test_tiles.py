"""The machine code of the tile products, as the compiler makes it for the package, agrees with numpy to the bit.

The stand-ins replace it by other code. Here a processor with AVX-512 runs it: where it lacks tiles, each of their instructions
raises a signal, whose handler does what the instruction does.
"""

import numpy as np
import pytest

from tests.kernels.stand_ins.build import build, emulated_tiles
from tests.kit.model.native_models import (
    ISAS,
    MXFP4,
    Q4_0,
    Q4_1,
    Q5_1,
    Q8_0,
    QUANTISED,
    SUPER,
    multiply,
    ordered_product,
)
from tlserve.model.decoder.native.probe import random_matrix


@pytest.mark.slow
@pytest.mark.spec("KER-40")
def test_the_machine_code_of_tiles_gives_the_bits_of_numpy(tmp_path):
    module, counts = build(tmp_path, real_tiles=True), {}
    with emulated_tiles(tmp_path) as count:
        for kind in (Q4_0, Q4_1, Q5_1, Q8_0, MXFP4, *SUPER):
            for activations in QUANTISED:
                random = np.random.default_rng(kind)
                matrix = random_matrix(random, kind, 70, 256)
                for rows in (7, 8, 15, 16, 17, 70):
                    x = random.standard_normal((rows, 256)).astype(np.float32)
                    before, expected = count(), ordered_product(matrix, x, activations)
                    ours = multiply(matrix, x, activations=activations, isa="amx", module=module)
                    assert np.array_equal(ours.view(np.int32), expected.view(np.int32)), (kind, activations, rows)
                    counts[rows] = counts.get(rows, 0) + count() - before
    assert counts[7] == 0
    assert "amx" in ISAS or counts[8] > 0


test_the_machine_code_of_tiles_gives_the_bits_of_numpy.__test__ = "avx512vnni" in ISAS  # type: ignore[attr-defined]
