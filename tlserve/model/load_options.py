"""How a model is to be loaded: what a reader of files is told beside the path."""

from __future__ import annotations

import attrs

from tlserve.kernels.choose import KernelChoice


@attrs.frozen(kw_only=True)
class LoadOptions:
    """`context_tokens` 0: what the model was trained for; `threads` 0: one per core; `kernels`: the wished arithmetic."""

    context_tokens: int = 0
    threads: int = 0
    kernels: KernelChoice = attrs.field(factory=KernelChoice)
