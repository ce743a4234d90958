"""How the layers of a model differ: the window of each, and which of them have no rotation.

Each architecture has one reader for config.json and one for GGUF. Those for config.json read `sliding_window` and its related
fields, and `no_rope_layers`. Source: the `configuration_*` files of transformers 5.24; llama.cpp's `src/models`.
"""

from __future__ import annotations

from collections.abc import Iterable

from tlserve.model.architectures.facts import Windows
from tlserve.model.fields import Fields

_WINDOW = 4096  # where the field is missing


def no_windows(config: Fields, layers: int, unrotated: tuple[int, ...]) -> Windows:  # noqa: ARG001 - every reader's
    """Refuse a window: the architecture has none (llama)."""
    config.refuse_unless("sliding_window", (), "null")
    return (0,) * layers


def uniform_windows(config: Fields, layers: int, unrotated: tuple[int, ...]) -> Windows:  # noqa: ARG001 - every reader's
    """Return one window for all layers; null means none (mistral)."""
    config.refuse_unless("layer_types", (), "one window for all layers")
    window = _window(config, _WINDOW)
    return (window,) * layers


def optional_window(config: Fields, layers: int, unrotated: tuple[int, ...]) -> Windows:  # noqa: ARG001 - every reader's
    """Return one window for all layers; null and no field mean none (phi3, starcoder2)."""
    config.refuse_unless("layer_types", (), "one window for all layers")
    return (_window(config, 0),) * layers


def late_windows(config: Fields, layers: int, unrotated: tuple[int, ...]) -> Windows:  # noqa: ARG001 - every reader's
    """Return windows from layer `max_window_layers` on, if windows are switched on (qwen2, qwen3)."""
    first = config.integer("max_window_layers", 0, 1 << 20, default=28)
    return _chosen_windows(config, _WINDOW, layers, range(first, layers))


def unrotated_windows(config: Fields, layers: int, unrotated: tuple[int, ...]) -> Windows:
    """Return windows for the layers without rotation, if windows are switched on (smollm3)."""
    return _chosen_windows(config, 0, layers, unrotated)


def _chosen_windows(config: Fields, left_out: int, layers: int, by_default: Iterable[int]) -> Windows:
    """Return the windows of the layers that `layer_types` names, else of `by_default`; none unless `use_sliding_window`."""
    window = _window(config, left_out) if config.flag("use_sliding_window", default=False) else 0
    chosen = _named_layers(config, layers) if config.has("layer_types") else frozenset(by_default)
    if chosen and not window and config.has("layer_types"):
        raise config.refusal(
            "layer_types", "names sliding_attention, but use_sliding_window or sliding_window is not set"
        )
    return tuple(window if layer in chosen else 0 for layer in range(layers))


def _named_layers(config: Fields, layers: int) -> frozenset[int]:
    """Return the layers that `layer_types` calls sliding_attention."""
    kinds = config.get("layer_types")
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in known for kind in kinds):
        raise config.refusal("layer_types", f"must be one of {', '.join(known)} for each of {layers} layers")
    return frozenset(layer for layer, kind in enumerate(kinds) if kind == "sliding_attention")


def _window(config: Fields, left_out: int) -> int:
    """Return `sliding_window`: 0 for null, `left_out` where there is no such field."""
    return config.integer("sliding_window", 1, 1 << 30, default=0 if "sliding_window" in config.values else left_out)


def unrotated_layers(config: Fields, layers: int) -> tuple[int, ...]:
    """Return the layers without rotation; despite the name of the field, a 1 in it means that heads are rotated."""
    turns = config.get("no_rope_layers")
    if turns is None:
        every = config.integer("no_rope_layer_interval", 1, 1 << 20, default=4)
        return tuple(range(every - 1, layers, every))
    if not isinstance(turns, list) or len(turns) < layers or not all(turn in (0, 1) for turn in turns):
        raise config.refusal("no_rope_layers", f"must hold 0 or 1 for each of {layers} layers")
    return tuple(layer for layer in range(layers) if not turns[layer])


def local_windows(config: Fields, layers: int, period: int, left_out: int) -> tuple[Windows, tuple[bool, ...]]:
    """Return the windows, and which layers have one: `layer_types`, else all but every `sliding_window_pattern`-th layer.

    `period` and `left_out` apply where a field is missing; null means no window.
    """
    window = _window(config, left_out)
    if config.has("layer_types"):
        local = _named_layers(config, layers)
    else:
        every = config.integer("sliding_window_pattern", 1, 1 << 20, default=period)
        local = frozenset(layer for layer in range(layers) if (layer + 1) % every)
    local = local if window else frozenset()
    return tuple(window if i in local else 0 for i in range(layers)), tuple(i in local for i in range(layers))


# --- GGUF ------------------------------------------------------------------------------------------------------------


def gguf_no_windows(fields: Fields, layers: int, unrotated: tuple[int, ...]) -> Windows:  # noqa: ARG001 - every reader's
    """Refuse a window: llama.cpp does not read one for the architecture."""
    if fields.get("attention.sliding_window") not in (None, 0):
        raise fields.refusal("attention.sliding_window", "is not served for this architecture")
    return (0,) * layers


def gguf_one_window(fields: Fields, layers: int, unrotated: tuple[int, ...]) -> Windows:  # noqa: ARG001 - every reader's
    """Return one window for all layers."""
    return (fields.integer("attention.sliding_window", 0, 1 << 30, default=0),) * layers


def gguf_local_windows(fields: Fields, layers: int, period: int) -> tuple[Windows, tuple[bool, ...]]:
    """Return the windows, and which layers have one: the pattern of the file, else all but every `period`-th layer."""
    window = fields.integer("attention.sliding_window", 0, 1 << 30, default=0)
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        if len(pattern) != layers or not all(type(flag) in (bool, int) for flag in pattern):
            raise fields.refusal(
                "attention.sliding_window_pattern", f"must be true or false for each of {layers} layers"
            )
        local = [bool(flag) for flag in pattern]
    else:
        every = fields.integer("attention.sliding_window_pattern", 1, 1 << 20, default=period)
        local = [bool((layer + 1) % every) for layer in range(layers)]
    has = tuple(flag and bool(window) for flag in local)
    return tuple(window if flag else 0 for flag in has), has
