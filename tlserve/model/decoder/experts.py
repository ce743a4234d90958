"""What a mixture of experts computes, in numpy: a router, the experts that it chooses for each row, and a shared one.

Every array is float32 and has a row for each token of the step. An expert computes the rows that chose it, together; the bits of
a row do not depend on the others. Results are added in ascending order of the experts, the shared one last.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.elementwise import rms_norm, sigmoid
from tlserve.kernels.reference.routing import Routing, route
from tlserve.model.decoder.mixers import FeedForwardMixer, Step, apply_norm
from tlserve.model.decoder.parts import Parts
from tlserve.model.decoder.record import ExpertRouter, Experts, FeedForward, Score

F32 = NDArray[np.float32]


@attrs.frozen(eq=False)
class ExpertsMixer:
    """`record.Experts` with its weights."""

    record: Experts
    prefix: str
    parts: Parts

    def run(self, x: F32, step: Step, residual: F32) -> F32:
        """Return the sum of the experts of normed rows, each times its weight. (T, F) -> (T, F).

        `residual`: the rows before the norm of the block, for mixtures with norms of their own.
        """
        norms, routed, taken = self.record.norms, x, x
        if norms is not None:
            weight = self.parts.vector(f"{self.prefix}.router_norm")
            assert weight is not None
            routed = rms_norm(residual, router_weight(weight), np.float32(norms.router.epsilon))
            taken = apply_norm(residual, norms.pre, f"{self.prefix}.experts_pre", self.parts)
        total = self._sum_of_chosen(routed, taken, step)
        if norms is not None:
            total = apply_norm(total, norms.post, f"{self.prefix}.experts_post", self.parts)
        return total if self.record.shared is None else total + self._shared(self.record.shared, x, step)

    def _sum_of_chosen(self, routed: F32, taken: F32, step: Step) -> F32:
        """Return the weighted sum of the experts of `taken` that `routed` chooses, (T, F) each."""
        logits = self.parts.biased(routed, f"{self.prefix}.router")[0]
        router = self.record.router
        own_scales = self.parts.vector(f"{self.prefix}.own_scales") if router.own_scales else None
        how = routing(router, self.parts.vector(f"{self.prefix}.choice"), own_scales)
        chosen, weights = route(logits, how)
        total = np.zeros_like(taken)
        for number in np.unique(chosen):
            rows, places = np.nonzero(chosen == number)
            total[rows] += weights[rows, places, None] * self._feed(
                self.record.expert, f"experts.{number}", taken[rows], step
            )
        return total

    def _shared(self, expert: FeedForward, x: F32, step: Step) -> F32:
        """Return what the shared expert adds, gated or normed."""
        shared = self._feed(expert, "shared", x, step)
        if self.record.shared_gate:
            shared *= sigmoid(self.parts.linear(x, f"{self.prefix}.shared_gate")[0])
        if self.record.norms is not None:
            shared = apply_norm(shared, self.record.norms.shared, f"{self.prefix}.shared_post", self.parts)
        return shared

    def output_bias(self) -> F32 | None:
        """Return what is added to the result: nothing, the experts have their own."""
        return None

    def _feed(self, record: FeedForward, name: str, x: F32, step: Step) -> F32:
        mixer = FeedForwardMixer(record, f"{self.prefix}.{name}", self.parts)
        result, bias = mixer.run(x, step), mixer.output_bias()
        if bias is not None:
            result += bias
        return result


def router_weight(weight: F32) -> F32:
    """Return the weight of a router's norm, times hidden**-0.5. (F,)."""
    return weight * np.float32(len(weight) ** -0.5)


def routing(router: ExpertRouter, choice_bias: F32 | None, own_scales: F32 | None) -> Routing:
    """Return a router as the kernels take it."""
    return Routing(
        chosen=router.chosen,
        sigmoid=router.score is Score.SIGMOID,
        groups=router.groups,
        kept_groups=router.kept_groups,
        divided=router.divided,
        scale=np.float32(router.scale),
        choice_bias=choice_bias,
        own_scales=own_scales,
    )
