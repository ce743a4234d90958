"""The head of a model that makes scores: its layers as a pooling, its labels, and how its numbers become scores.

Reads config.json and the tensors of the head. Source: the `...ForSequenceClassification` classes of transformers 5.24, and
`CrossEncoder` of sentence-transformers 6.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from tlserve.errors import ModelRefused
from tlserve.kernels.interface import PooledActivation, PooledLayer, PooledRows, Pooling
from tlserve.model.decoder.weights import TensorSource
from tlserve.model.encoder.architectures.facts import EncoderForm
from tlserve.model.fields import Fields
from tlserve.model.loaded_model import Scores

MAX_LABELS = 1 << 12
_PATHS = {
    "torch.nn.modules.linear.Identity": "identity",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
}


def read_scores(config: Fields) -> Scores:
    """Return the labels of a config.json and what makes scores of their numbers; raises `ModelRefused`."""
    names = config.get("id2label")
    count = config.integer(
        "num_labels", 1, MAX_LABELS, default=len(names) if isinstance(names, Mapping) and names else 2
    )
    names = names if isinstance(names, Mapping) and names else {str(i): f"LABEL_{i}" for i in range(count)}
    labels = tuple(names.get(str(i)) for i in range(len(names)))
    if len(labels) > MAX_LABELS or not all(isinstance(label, str) for label in labels):
        raise config.refusal("id2label", f"must name labels 0, 1, and so on, at most {MAX_LABELS}")
    return Scores(labels=tuple(map(str, labels)), activation=_activation(config, len(labels)))


def _activation(config: Fields, labels: int) -> str:
    """Return the activation that sentence-transformers' fields name, else what the problem is trained with."""
    own = config.get("sentence_transformers")
    path = own.get("activation_fn") if isinstance(own, Mapping) else None
    path = path or config.get("sbert_ce_default_activation_function")
    if path is not None:
        if path not in _PATHS:
            known = ", ".join(_PATHS)
            raise config.refusal("sentence_transformers.activation_fn", f"{path!r:.80} is not served; served: {known}")
        return _PATHS[str(path)]
    config.refuse_unless(
        "problem_type", ("single_label_classification", "multi_label_classification"), "classification"
    )
    return "sigmoid" if labels == 1 or config.get("problem_type") == "multi_label_classification" else "softmax"


def head_names(form: EncoderForm, prefix: str) -> frozenset[str]:
    """Return the names that tensors of the head can have."""
    stems = [part.stem.format(prefix) for part in form.head] + [part.norm for part in form.head if part.norm]
    return frozenset(f"{stem}.{kind}" for stem in stems for kind in ("weight", "bias"))


def read_head(
    config: Fields, form: EncoderForm, source: TensorSource, prefix: str, hidden: int, labels: int
) -> Pooling:
    """Read the layers of the head; raises `ModelRefused`."""
    layers = list[PooledLayer]()
    for part in form.head:
        last = part is form.head[-1]
        layer = read_layer(source, part.stem.format(prefix), hidden, labels if last else hidden)
        norm = read_vector(source, f"{part.norm}.weight", hidden) if part.norm else None
        layers.append(
            attrs.evolve(
                layer,
                activation=PooledActivation(part.activation),
                norm_weight=norm,
                norm_epsilon=config.positive("norm_eps", 1e-5) if part.norm else 0.0,
            )
        )
    config.refuse_unless("classifier_pooling", ("cls", "mean"), "cls, mean")
    config.refuse_unless("classifier_activation", ("gelu",), "gelu")
    mean = config.get("classifier_pooling") == "mean"
    return Pooling(rows=PooledRows.MEAN if mean else PooledRows.FIRST, layers=tuple(layers), normalised=False)


def read_layer(source: TensorSource, stem: str, inputs: int, outputs: int) -> PooledLayer:
    """Read a product and its bias, if it has one."""
    found = source.shapes()
    name = f"{stem}.weight"
    if found.get(name) != (outputs, inputs):
        shape = list(found[name]) if name in found else "none"
        raise ModelRefused(f"the tensor {name} has the shape {shape}, not {[outputs, inputs]}")
    bias = read_vector(source, f"{stem}.bias", outputs) if f"{stem}.bias" in found else None
    return PooledLayer(name=stem, weight=np.array(source.rows(name, 0, outputs)), bias=bias)


def read_vector(source: TensorSource, name: str, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Read a vector of `size` numbers."""
    if source.shapes().get(name) != (size,):
        raise ModelRefused(f"the tensor {name} is missing or does not have {size} numbers")
    return np.array(source.rows(name, 0, size))


def least_dimensions(config: Fields, hidden: int) -> int | None:
    """Return the shortest vectors that a config says the model was trained for, None where it does not say it."""
    sizes = config.get("matryoshka_dimensions")
    if sizes is None:
        return None
    if not isinstance(sizes, list) or not sizes or not all(type(n) is int and 0 < n <= hidden for n in sizes):
        raise config.refusal("matryoshka_dimensions", f"must be a list of numbers from 1 to {hidden}")
    least: int = min(sizes)
    return least
