"""Several models in one server: what a [[models]] table takes from [engine], and the check that their ids differ.

Owns both rules. Knows nothing of files: `tlserve.config.load` passes in the values that were given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.config.declared import evolved
from tlserve.config.model_id import served_model_id
from tlserve.config.settings import OWN_KEYS, SERVER_KEYS, EngineSettings, Settings


def additional_model(engine: EngineSettings, given: Mapping[str, Any]) -> EngineSettings:
    """Return the settings of another model: `given`, and else those of [engine] except its name and sizes."""
    inherited = {
        field.name: getattr(engine, field.name)
        for field in attrs.fields(EngineSettings)
        if field.name not in OWN_KEYS | SERVER_KEYS
    }
    model: EngineSettings = evolved(EngineSettings(**inherited), given)
    return model


def served_names(model: EngineSettings) -> tuple[str, ...]:
    """Return every id that a request can use for the model."""
    return (served_model_id(model.model_dir, model.model_id), *model.model_aliases)


def model_refusals(settings: Settings) -> list[str]:
    """Return what is wrong with the models together: a missing model_dir, or one id for two models."""
    missing = [
        f"models[{index}].model_dir is missing: name a model"
        for index, model in enumerate(settings.models)
        if not model.model_dir
    ]
    counts = Counter(name for model in settings.served if model.model_dir for name in set(served_names(model)))
    twice = [
        f"{count} models have the id {name!r}: give one of them another model_id"
        for name, count in counts.items()
        if count > 1
    ]
    return missing + twice
