"""An encoder in GGUF becomes a loaded model, or only its front; with a head it makes scores.

`encoder_forms` has the architectures. The positions that RoBERTa does not use are cut off in such files. Vectors are scaled to
length 1, as by llama.cpp's server. Source: llama.cpp, `src/models` and its converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from tlserve.errors import ModelRefused
from tlserve.kernels.interface import PooledActivation, PooledLayer, PooledRows, Pooling
from tlserve.model.encoder.architectures.facts import EncoderFacts
from tlserve.model.encoder.build import build_encoder
from tlserve.model.encoder.heads import MAX_LABELS, read_layer, read_vector
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.weights import read_encoder_weights
from tlserve.model.fields import Fields
from tlserve.model.gguf.encoder_forms import GGUF_ENCODERS, GgufEncoder, HeadForm
from tlserve.model.gguf.shard_names import without_number
from tlserve.model.gguf.tensors import GgufFile
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront, Scores

_ROWS = {1: PooledRows.MEAN, 2: PooledRows.FIRST, 3: PooledRows.LAST}
_RANK = 4
_OUTPUT = "cls.output"
_HEAD = ("cls", "cls.norm", _OUTPUT)
_DENSE = ("dense_2", "dense_3")


@attrs.frozen(kw_only=True, eq=False)
class _ReadHeader:
    """What a file says before its weights are read. `scores`: None where it makes vectors."""

    name: str
    form: GgufEncoder
    fields: Fields
    encoder: Encoder
    scores: Scores | None


def read_gguf_encoder(file: GgufFile, path: Path, options: LoadOptions) -> LoadedModel:
    """Read an encoder from an open file; raises `ModelRefused`, and `SettingsError` for native kernels that cannot run."""
    found = _describe(file, options)
    storage = found.form.storage_of(file.shapes())
    pooling = _pooling(file, found)
    parts = _HEAD if found.scores else _DENSE
    others = frozenset(f"{part}.{kind}" for part in parts for kind in ("weight", "bias"))
    weights = read_encoder_weights(found.encoder, file, storage, file.digest(), others & file.shapes().keys())
    model = build_encoder(found.encoder, weights, pooling, options)
    front = _front(file, path, found, f", {weights.parameters / 1e6:.3g}M parameters")
    return LoadedModel.of(front, model, model.weights_bytes)


def read_gguf_encoder_front(file: GgufFile, path: Path, options: LoadOptions) -> ModelFront:
    """Read all of an encoder's file but the weights; raises `ModelRefused`."""
    return _front(file, path, _describe(file, options))


def _describe(file: GgufFile, options: LoadOptions) -> _ReadHeader:
    metadata, shapes = file.header.metadata, file.shapes()
    name = str(metadata["general.architecture"])
    form, prefix = GGUF_ENCODERS[name], f"{name}."
    fields = Fields({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, prefix)
    fields.refuse_unless("attention.causal", (False,), "attention to both sides")
    for tensor in ("token_embd.weight", *(("position_embd.weight",) if name == "bert" else ())):
        if len(shapes.get(tensor, ())) != 2:
            raise ModelRefused(f"the tensor {tensor} is missing or is not a matrix")
    encoder = _encoder(form, fields, shapes, options.context_tokens)
    types = encoder.types if "token_types.weight" in shapes else 0
    encoder = attrs.evolve(encoder, architecture=name, types=types)
    scores = _scores(file, fields, form.head) if f"{_OUTPUT}.weight" in shapes else None
    return _ReadHeader(name=name, form=form, fields=fields, encoder=encoder, scores=scores)


def _encoder(form: GgufEncoder, fields: Fields, shapes: Mapping[str, tuple[int, ...]], context_tokens: int) -> Encoder:
    own = form.config(fields, shapes)
    positions = own.get("max_position_embeddings")
    context = fields.integer("context_length", 1, 1 << 20, default=positions)
    longest = min(positions or context, context)
    if context_tokens > longest:
        raise ModelRefused(f"context_tokens {context_tokens} is more than the model's {longest}")
    sizes: dict[str, object] = {
        "hidden_size": fields.integer("embedding_length", 1, 1 << 16),
        "num_hidden_layers": fields.integer("block_count", 1, 1024),
        "num_attention_heads": fields.integer("attention.head_count", 1, 1024),
        "intermediate_size": fields.integer("feed_forward_length", 1, 1 << 18),
        "layer_norm_eps": fields.positive(form.epsilon),
        "vocab_size": shapes["token_embd.weight"][0],
        "max_position_embeddings": context,
        "type_vocab_size": shapes.get("token_types.weight", (1,))[0],
    }
    return form.describe(EncoderFacts(Fields(sizes | own, fields.prefix), context_tokens or longest))


def _pooling(file: GgufFile, found: _ReadHeader) -> Pooling:
    """Return how hidden states become a vector, or the numbers of the head."""
    fields = found.fields
    if found.scores is not None:
        assert found.form.head is not None
        return _head(file, found, found.form.head, len(found.scores.labels))
    kind = fields.integer("pooling_type", 0, 4, default=1)
    if kind not in _ROWS:
        raise fields.refusal("pooling_type", f"{kind} is not served; served: 1 (mean), 2 (cls), 3 (last)")
    layers, size = list[PooledLayer](), found.encoder.hidden
    for part in _DENSE:
        shape = file.shapes().get(f"{part}.weight")
        if shape is not None:
            layers.append(read_layer(file, part, size, shape[0]))
            size = shape[0]
    return Pooling(rows=_ROWS[kind], layers=tuple(layers))


def _scores(file: GgufFile, fields: Fields, head: HeadForm | None) -> Scores:
    """Return the labels of a head and the tokens around two texts; refuses a head that the file does not have whole."""
    shapes = file.shapes()
    if head is None or "cls.weight" not in shapes:
        raise ModelRefused(
            "the tensor cls.weight is missing: without the first layer of its head this model would make other scores; "
            "serve it from its Hugging Face directory"
        )
    fields.refuse_unless("pooling_type", (_RANK,), "4 (rank) for a model with a head")
    count = shapes[f"{_OUTPUT}.weight"][0]
    names = fields.get("classifier.output_labels") or [f"LABEL_{i}" for i in range(count)]
    if not isinstance(names, list) or len(names) != count or count > MAX_LABELS:
        raise fields.refusal("classifier.output_labels", f"must name {count} labels, at most {MAX_LABELS}")
    begin, end = (_token(file, *kinds) for kinds in (("bos", "cls"), ("eos", "seperator", "sep")))
    return Scores(
        labels=tuple(map(str, names)),
        activation="sigmoid" if count == 1 else "softmax",
        pair=((begin,), (end,) * head.between, (end,)),
    )


def _token(file: GgufFile, *kinds: str) -> int:
    """Return the first of these tokens that the file names."""
    for kind in kinds:
        token = file.header.metadata.get(f"tokenizer.ggml.{kind}_token_id")
        if isinstance(token, int):
            return token
    raise ModelRefused(f"tokenizer.ggml.{kinds[0]}_token_id is missing, which a model that scores texts needs")


def _head(file: GgufFile, found: _ReadHeader, head: HeadForm, labels: int) -> Pooling:
    hidden = found.encoder.hidden
    first = attrs.evolve(
        read_layer(file, "cls", hidden, hidden),
        activation=PooledActivation(head.activation),
        norm_weight=read_vector(file, "cls.norm.weight", hidden) if head.norm else None,
        norm_epsilon=found.fields.positive(found.form.epsilon) if head.norm else 0.0,
    )
    rows = found.fields.integer("classifier.pooling_type", 1, 2, default=head.rows)
    return Pooling(rows=_ROWS[rows], layers=(first, read_layer(file, _OUTPUT, hidden, labels)), normalised=False)


def _front(file: GgufFile, path: Path, found: _ReadHeader, size: str = "") -> ModelFront:
    metadata = file.header.metadata
    given = metadata.get("general.name")
    name = given if isinstance(given, str) and given else without_number(path.name)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    what = "sentence encoder" if found.scores is None else f"scores of {len(found.scores.labels)} labels"
    return ModelFront(
        metadata={key: value for key, value in metadata.items() if key.startswith("tokenizer.")},
        chat_template=None,
        eos_ids=frozenset(),
        bos_id=bos if isinstance(bos, int) else None,
        context_tokens=found.encoder.context_tokens,
        name=name,
        description=f"{name} ({found.name} {what}{size}, {path.name})",
        generates=False,
        scores=found.scores,
    )
