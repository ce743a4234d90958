"""The events of a step, each of one request.

Owns the engine's own kinds of event; the others are those of `tlserve.generation`.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ServerFault
from tlserve.generation import GenerationEvent


@attrs.frozen(eq=False)
class EmbeddingReady:
    """A finished embedding: `vector` is (hidden_size,) float32, with L2 norm 1 unless the model's files say otherwise."""

    vector: NDArray[np.float32]


@attrs.frozen
class Failed:
    """The request ended because of a fault in the server; other requests are not affected."""

    error: ServerFault


@attrs.frozen
class EngineEvent:
    """An event, `what`, of the request that `add_request` or `add_embedding` returned `key` for.

    The first event of a request is `PrefillStarted`, except for `Progress`. The last is a `TokenEvent` with `finish`,
    `EmbeddingReady` or `Failed`.
    """

    key: int
    what: GenerationEvent | EmbeddingReady | Failed
