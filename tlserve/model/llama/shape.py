"""The sizes and constants of a llama, and what mistral, qwen2, qwen3 and smollm3 add to it.

Knows no weights and no files: `hyperparameters` and `hugging_face.config` read a shape from them.
"""

from __future__ import annotations

import attrs

from tlserve.model.llama.rope_scaling import RopeScaling


@attrs.frozen(kw_only=True)
class LlamaShape:
    """The sizes and constants of a llama, and what its kin add to it.

    `rotated`: how many components of a head turn with the position. `qkv_bias`, `output_bias`: the products before and after
    attention add a vector. `qk_norm`: queries and keys are normed head by head before they turn. `windows`: for each layer how
    many keys a row sees, see `window`; empty: all. `unrotated_layers`: numbers of the layers in which nothing turns.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    rotated: int
    vocabulary: int
    context_tokens: int
    rope_base: float
    rope_linear_factor: float = 1.0
    epsilon: float
    architecture: str = "llama"
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    rope_scaling: RopeScaling | None = None
    windows: tuple[int, ...] = ()
    unrotated_layers: tuple[int, ...] = ()

    def window(self, layer: int) -> int:
        """Return how many keys, its own the last of them, a row of `layer` sees; 0: all."""
        return self.windows[layer] if self.windows else 0
