"""The sampling that a model's makers recommend: the fields of generation_config.json.

Says which fields are used, and reports every other one that would change an answer instead of ignoring it silently. Source:
`GenerationConfig` of transformers 5.24, and the bounds of `generation.SamplingParams`; presence and frequency penalties are not
in the former, and some models' files have them all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tlserve.model.fields import Fields
from tlserve.sampling_params import SamplingParams

GENERATION_CONFIG = "generation_config.json"

_BOUNDS: Mapping[str, tuple[float, float, str]] = {
    "temperature": (0, 100, "a number from 0 to 100"),
    "top_k": (0, 1 << 20, "a whole number from 0"),
    "top_p": (1e-6, 1, "a number above 0, at most 1"),
    "min_p": (0, 1, "a number from 0 to 1"),
    "repetition_penalty": (0.01, 100, "a number from 0.01 to 100"),
    "presence_penalty": (-2, 2, "a number from -2 to 2"),
    "frequency_penalty": (-2, 2, "a number from -2 to 2"),
}

_WITHOUT_EFFECT: Mapping[str, object] = {
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
    "penalty_alpha": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "sequence_bias": None,
    "guidance_scale": None,
}
"""Fields that are not served, with the value under which they change nothing; so does null."""


def read_sampling(document: Mapping[str, object]) -> tuple[SamplingParams, tuple[str, ...]]:
    """Return the defaults that a generation_config.json gives, and a sentence for each field that is not served.

    `do_sample` false is temperature 0; a field that is left out keeps the API's default. Raises `ModelRefused`.
    """
    fields = Fields(document, f"{GENERATION_CONFIG}: ")
    given: dict[str, Any] = {name: _number(fields, name) for name in _BOUNDS if fields.has(name)}
    if not fields.flag("do_sample", default=True):
        given["temperature"] = 0.0
    top_k = int(given.pop("top_k", 0))
    notes = [
        f"{GENERATION_CONFIG} asks for {name} {document[name]!r:.40}, which is not served: answers are sampled without it"
        for name, harmless in _WITHOUT_EFFECT.items()
        if document.get(name) not in (None, harmless)
    ]
    return SamplingParams(top_k=top_k, **given), tuple(notes)


def _number(fields: Fields, name: str) -> float:
    """Return the number `name` within its bounds."""
    low, high, said = _BOUNDS[name]
    kinds: tuple[type, ...] = (int,) if name == "top_k" else (int, float)
    value = fields.get(name)
    if not isinstance(value, (int, float)) or type(value) not in kinds or not low <= value <= high:
        raise fields.refusal(name, f"must be {said}, not {value!r:.40}")
    return float(value)
