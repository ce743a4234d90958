"""What a step reports: one `EngineEvent` per thing that happened to one request.

Owns the engine's own kinds of event beside those of `tlserve.generation`. Refuses to know who listens.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ServerFault
from tlserve.generation import GenerationEvent


@attrs.frozen(eq=False)
class EmbeddingReady:
    """A finished embedding: `vector` is (hidden_size,) float32, with L2 norm 1 unless the model's own files want none."""

    vector: NDArray[np.float32]


@attrs.frozen
class Failed:
    """The request ended because something here is broken; the other requests are untouched."""

    error: ServerFault


@attrs.frozen
class EngineEvent:
    """`what` happened to the request that `add_request` or `add_embedding` gave `key`.

    The first event of a request is `PrefillStarted`, but for `Progress`. The last is a `TokenEvent` with `finish`,
    `EmbeddingReady` or `Failed`.
    """

    key: int
    what: GenerationEvent | EmbeddingReady | Failed
