"""The store of a model that keeps nothing between steps: it counts blocks and holds no memory."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class NoKvStore:
    """A `kernels.interface.KvStore` without a place to write to."""

    blocks: int
    block_size: int
