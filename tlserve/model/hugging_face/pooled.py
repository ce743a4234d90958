"""A decoder's directory that makes vectors or scores: what its files say, and the decoder with that pooling.

Knows sentence-transformers' files, heads of `...ForSequenceClassification` classes, and rerankers that answer "yes" or "no": the
module LogitScore, or vLLM's field `classifier_from_token`. Sources: sentence-transformers 6; the model cards of Qwen3-Embedding
and Qwen3-Reranker.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs
import numpy as np

from tlserve.errors import ModelRefused
from tlserve.kernels.interface import KvStore, Model, ModelSpec, PooledLayer, PooledRows, Pooling, StepBatch, StepOutput
from tlserve.model.architectures.registry import HF
from tlserve.model.decoder.weights import TensorSource
from tlserve.model.encoder.heads import read_layer, read_scores
from tlserve.model.encoder.sentence_files import (
    MODULES,
    SentenceFiles,
    module_kinds,
    read_logit_score,
    read_sentence_files,
    with_dense_layers,
)
from tlserve.model.fields import Fields
from tlserve.model.loaded_model import Scores

_QWEN_AROUND = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n',
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: ",
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
"""What Qwen3-Reranker reads around a pair, as its model card says."""


@attrs.frozen(kw_only=True)
class PooledUse:
    """What a decoder is used for: vectors (`files`), or `scores` of a head or of the tokens `answers` (yes, and no)."""

    files: SentenceFiles | None = None
    scores: Scores | None = None
    answers: tuple[int, ...] = ()


def read_pooled_use(
    path: Path, document: Mapping[str, object], find_ids: Callable[[], Mapping[str, int]]
) -> PooledUse | None:
    """Return what the files of a decoder say, None for one that continues texts. `find_ids` reads the ids of tokens."""
    config = Fields(document, "config.json: ")
    named = config.get("classifier_from_token")
    classes = config.get("architectures")
    if isinstance(classes, list) and len(classes) == 1 and str(classes[0]).endswith("ForSequenceClassification"):
        scores = read_scores(config)
        return PooledUse(scores=_with_around(scores, document))
    if named is not None:
        ids = find_ids()
        if not isinstance(named, list) or len(named) != 2 or not all(isinstance(n, str) and n in ids for n in named):
            raise config.refusal("classifier_from_token", f'{named!r:.60} must be two tokens, such as ["no", "yes"]')
        return _answering(document, (ids[named[1]], ids[named[0]]))
    if not (path / MODULES).is_file():
        return None
    if module_kinds(path) == ["Transformer", "LogitScore"]:
        return _answering(document, read_logit_score(path))
    return PooledUse(files=read_sentence_files(path))


def _answering(document: Mapping[str, object], answers: tuple[int, ...]) -> PooledUse:
    scores = _with_around(Scores(labels=("yes",), activation="sigmoid"), document)
    if scores.around is None:
        kind = document.get("model_type")
        raise ModelRefused(f"config.json: a reranker of the model_type {kind!r:.60} is not served; served: qwen3")
    return PooledUse(scores=scores, answers=answers)


def _with_around(scores: Scores, document: Mapping[str, object]) -> Scores:
    is_pair = document.get("model_type") == "qwen3" and len(scores.labels) == 1
    return attrs.evolve(scores, around=_QWEN_AROUND) if is_pair else scores


def as_decoder(document: Mapping[str, object]) -> Mapping[str, object]:
    """Return the config with the class of the decoder that continues texts; other classes of its kind have the same layers."""
    kind = document.get("model_type")
    if not isinstance(kind, str) or kind not in HF:
        return document
    name = HF[kind][1].model_class
    base = name.removesuffix("ForCausalLM")
    known = ([f"{base}Model"], [f"{base}ForSequenceClassification"])
    return {**document, "architectures": [name]} if document.get("architectures") in known else document


def read_pooling(path: Path, use: PooledUse, source: TensorSource, hidden: int) -> tuple[Pooling, str]:
    """Return the pooling, and a hash of the files of its layers that are not among the decoder's."""
    if use.files is not None:
        return with_dense_layers(path, use.files, hidden)
    assert use.scores is not None
    if not use.answers:
        layer = read_layer(source, "score", hidden, len(use.scores.labels))
        return Pooling(rows=PooledRows.LAST, layers=(layer,), normalised=False), ""
    head = "lm_head.weight" if "lm_head.weight" in source.shapes() else "model.embed_tokens.weight"
    if max(use.answers) >= source.shapes()[head][0]:
        raise ModelRefused(f"the tokens {use.answers} of a reranker are not all in its vocabulary")
    rows = [np.array(source.rows(head, token, token + 1), np.float32) for token in use.answers]
    weight = rows[0] if len(rows) == 1 else rows[0] - rows[1]
    layer = PooledLayer(name=f"{head} {use.answers}", weight=weight)
    return Pooling(rows=PooledRows.LAST, layers=(layer,), normalised=False), ""


@attrs.frozen(eq=False)
class WithPrefix:
    """A `TensorSource` whose names begin with "model.", as those of the decoders that continue texts."""

    inner: TensorSource

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""
        return {f"model.{name}": shape for name, shape in self.inner.shapes().items()}

    def rows(self, name: str, start: int, end: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return rows of a tensor."""
        return self.inner.rows(name.removeprefix("model."), start, end)

    def stored(self, name: str) -> tuple[int, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
        """Return the type and the rows of a tensor."""
        return self.inner.stored(name.removeprefix("model."))


@attrs.frozen(eq=False)
class WithoutNames:
    """A `TensorSource` without some of its tensors, which are read elsewhere."""

    inner: TensorSource
    names: frozenset[str]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every other tensor."""
        return {name: shape for name, shape in self.inner.shapes().items() if name not in self.names}

    def rows(self, name: str, start: int, end: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Return rows of a tensor."""
        return self.inner.rows(name, start, end)

    def stored(self, name: str) -> tuple[int, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
        """Return the type and the rows of a tensor."""
        return self.inner.stored(name)


class PooledModel:
    """A `kernels.interface.Model` with another pooling; its numerics name that too."""

    def __init__(self, inner: Model, pooling: Pooling, identity: str) -> None:
        self._inner = inner
        decides = "\0".join((inner.spec.numerics, str(pooling), identity))
        numerics = hashlib.blake2b(decides.encode(), digest_size=8).hexdigest()
        self._spec = attrs.evolve(inner.spec, pooling=pooling, numerics=numerics)

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Reserve memory for `blocks` blocks."""
        return self._inner.new_kv_store(blocks, block_size)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        """Run all rows of `batch`; see `kernels.interface.Model.forward`."""
        return self._inner.forward(batch, kv)
