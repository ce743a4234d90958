"""What a mixture of experts computes, in numpy: a router, the experts that it chooses for each row, and a shared one.

Every array is float32 and has a row for each token of the step. An expert computes the rows that chose it, together; the bits of
a row do not depend on the others. Results are added in ascending order of the experts, the shared one last.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.elementwise import sigmoid
from tlserve.kernels.reference.routing import Routing, route
from tlserve.model.decoder.mixers import FeedForwardMixer, Step
from tlserve.model.decoder.parts import Parts
from tlserve.model.decoder.record import ExpertRouter, Experts, FeedForward, Score

F32 = NDArray[np.float32]


@attrs.frozen(eq=False)
class ExpertsMixer:
    """`record.Experts` with its weights."""

    record: Experts
    prefix: str
    parts: Parts

    def run(self, x: F32, step: Step) -> F32:
        """Return the sum of the experts of normed rows, each times its weight. (T, F) -> (T, F)."""
        logits = self.parts.biased(x, f"{self.prefix}.router")[0]
        chosen, weights = route(logits, routing(self.record.router, self.parts.vector(f"{self.prefix}.choice")))
        total = np.zeros_like(x)
        for number in np.unique(chosen):
            rows, places = np.nonzero(chosen == number)
            total[rows] += weights[rows, places, None] * self._feed(
                self.record.expert, f"experts.{number}", x[rows], step
            )
        if self.record.shared is not None:
            shared = self._feed(self.record.shared, "shared", x, step)
            if self.record.shared_gate:
                shared *= sigmoid(self.parts.linear(x, f"{self.prefix}.shared_gate")[0])
            total += shared
        return total

    def output_bias(self) -> F32 | None:
        """Return what is added to the result: nothing, the experts have their own."""
        return None

    def _feed(self, record: FeedForward, name: str, x: F32, step: Step) -> F32:
        mixer = FeedForwardMixer(record, f"{self.prefix}.{name}", self.parts)
        result, bias = mixer.run(x, step), mixer.output_bias()
        if bias is not None:
            result += bias
        return result


def routing(router: ExpertRouter, choice_bias: F32 | None) -> Routing:
    """Return a router as the kernels take it."""
    return Routing(
        chosen=router.chosen,
        sigmoid=router.score is Score.SIGMOID,
        groups=router.groups,
        kept_groups=router.kept_groups,
        divided=router.divided,
        scale=np.float32(router.scale),
        choice_bias=choice_bias,
    )
