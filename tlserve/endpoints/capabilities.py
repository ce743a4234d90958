"""The capabilities of a served model: true, or the reason why not.

Owns the descriptor of each model in /v1/models. A client reads it before it sends a request, so each value must hold for a
request. Does not know how a model works. The names are those of the capabilities descriptor, version 1, of the reference's fleet
endpoint.
"""

from __future__ import annotations

from typing import Any

from tlserve.chat.served_model import Served
from tlserve.chat.thinking import can_switch_thinking, can_take_effort, can_tell_levels

DESCRIPTOR_VERSION = 1
_TEXT_ONLY = "this server reads and writes text only; image and audio parts are refused"
_NO_AUDIO = "there is no /v1/audio route here"
_VECTORS_ONLY = "this model makes embeddings and no text"
_NO_VECTORS = "this model makes text and no embeddings"


def capabilities(served: Served) -> dict[str, Any]:
    """Return the descriptor of a model."""
    return {
        "descriptor_version": DESCRIPTOR_VERSION,
        "backend": served.backend_kind,
        "workload": {
            "causal_generation": served.generates or _VECTORS_ONLY,
            "embedding": served.embeds or _NO_VECTORS,
            "speech_to_text": _NO_AUDIO,
        },
        "modalities": {
            "image_encode": _TEXT_ONLY,
            "gemma_audio_encode": _TEXT_ONLY,
            "whisper_transcribe": _NO_AUDIO,
            "whisper_translate": _NO_AUDIO,
        },
        "dialect": _dialect(served),
    }


def _dialect(served: Served) -> dict[str, bool | str]:
    answers = {
        "enable_thinking": can_switch_thinking,
        "reasoning_effort": can_take_effort,
        "reasoning_effort_levels": can_tell_levels,
    }
    return {name: ask(served.template) if served.generates else _VECTORS_ONLY for name, ask in answers.items()}
