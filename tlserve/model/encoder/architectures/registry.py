"""The table of all encoders, and where to find one for a config.json."""

from __future__ import annotations

from tlserve.model.encoder.architectures.berts import BERTS
from tlserve.model.encoder.architectures.facts import EncoderForm
from tlserve.model.encoder.architectures.jina import JINA
from tlserve.model.encoder.architectures.rotated import ROTATED
from tlserve.model.fields import Fields

ENCODERS: tuple[EncoderForm, ...] = (*BERTS, *JINA, *ROTATED)


def encoder_form(config: Fields) -> tuple[EncoderForm, bool]:
    """Return the form of a config and whether it makes scores; raises `ModelRefused`."""
    forms = [form for form in ENCODERS if form.model_type == config.get("model_type")]
    if not forms:
        raise config.refusal("model_type", f"{config.get('model_type')!r:.60} is not an encoder that is served")
    classes = config.get("architectures")
    if classes is None:
        return forms[0], False
    name = classes[0] if isinstance(classes, list) and len(classes) == 1 else None
    for form in forms:
        if name in form.classes or (form.scores and name == form.scores):
            return form, name == form.scores
    known = ", ".join(name for form in forms for name in (*form.classes, form.scores) if name)
    raise config.refusal("architectures", f"{classes!r:.80} is not served; served: {known}")
