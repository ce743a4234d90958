"""A BERT in GGUF (also RoBERTa and XLM-RoBERTa, which have the same name there) becomes a loaded encoder, or only its front.

The positions that RoBERTa does not use are cut off in such files. Vectors are scaled to length 1, as by llama.cpp's server.
Source: llama.cpp, `models/bert.cpp` and its converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import attrs

from tlserve.errors import ModelRefused
from tlserve.kernels.interface import PooledRows, Pooling
from tlserve.model.decoder.storage import Storage
from tlserve.model.encoder.architectures.berts import bert
from tlserve.model.encoder.architectures.facts import EncoderFacts
from tlserve.model.encoder.build import build_encoder
from tlserve.model.encoder.kinds import GGUF_ENCODER
from tlserve.model.encoder.record import Encoder
from tlserve.model.encoder.weights import read_encoder_weights
from tlserve.model.fields import Fields
from tlserve.model.gguf.shard_names import without_number
from tlserve.model.gguf.tensors import GgufFile
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront

_STORAGE = Storage(
    names={
        "embedding": "token_embd",
        "positions": "position_embd",
        "types": "token_types",
        "embedding_norm": "token_embd_norm",
        "attention.q": "blk.{}.attn_q",
        "attention.k": "blk.{}.attn_k",
        "attention.v": "blk.{}.attn_v",
        "attention.output": "blk.{}.attn_output",
        "attention.after": "blk.{}.attn_output_norm",
        "ffn.up": "blk.{}.ffn_up",
        "ffn.down": "blk.{}.ffn_down",
        "ffn.after": "blk.{}.layer_output_norm",
    }
)
_ROWS = {1: PooledRows.MEAN, 2: PooledRows.FIRST, 3: PooledRows.LAST}


def read_gguf_encoder(file: GgufFile, path: Path, options: LoadOptions) -> LoadedModel:
    """Read an encoder from an open file; raises `ModelRefused`, and `SettingsError` for native kernels that cannot run."""
    encoder, pooling = _record(file, options)
    weights = read_encoder_weights(encoder, file, _STORAGE, file.digest())
    model = build_encoder(encoder, weights, pooling, options)
    front = _front(file, path, encoder, f", {weights.parameters / 1e6:.3g}M parameters")
    return LoadedModel.of(front, model, model.weights_bytes)


def read_gguf_encoder_front(file: GgufFile, path: Path, options: LoadOptions) -> ModelFront:
    """Read all of an encoder's file but the weights; raises `ModelRefused`."""
    return _front(file, path, _record(file, options)[0])


def _record(file: GgufFile, options: LoadOptions) -> tuple[Encoder, Pooling]:
    prefix = f"{GGUF_ENCODER}."
    metadata, shapes = file.header.metadata, file.shapes()
    fields = Fields({k.removeprefix(prefix): v for k, v in metadata.items() if k.startswith(prefix)}, prefix)
    fields.refuse_unless("attention.causal", (False,), "attention to both sides")
    kind = fields.integer("pooling_type", 0, 4, default=1)
    if kind not in _ROWS:
        raise fields.refusal("pooling_type", f"{kind} is not served; served: 1 (mean), 2 (cls), 3 (last)")
    for name in ("token_embd.weight", "position_embd.weight"):
        if len(shapes.get(name, ())) != 2:
            raise ModelRefused(f"the tensor {name} is missing or is not a matrix")
    positions = shapes["position_embd.weight"][0]
    sizes: Mapping[str, object] = {
        "hidden_size": fields.integer("embedding_length", 1, 1 << 16),
        "num_hidden_layers": fields.integer("block_count", 1, 1024),
        "num_attention_heads": fields.integer("attention.head_count", 1, 1024),
        "intermediate_size": fields.integer("feed_forward_length", 1, 1 << 18),
        "layer_norm_eps": fields.positive("attention.layer_norm_epsilon"),
        "vocab_size": shapes["token_embd.weight"][0],
        "max_position_embeddings": positions,
        "type_vocab_size": shapes.get("token_types.weight", (1,))[0],
    }
    longest = min(positions, fields.integer("context_length", 1, 1 << 20, default=positions))
    if options.context_tokens > longest:
        raise ModelRefused(f"context_tokens {options.context_tokens} is more than the model's {longest}")
    encoder = bert(EncoderFacts(Fields(sizes, prefix), options.context_tokens or longest))
    types = encoder.types if "token_types.weight" in shapes else 0
    return attrs.evolve(encoder, architecture=GGUF_ENCODER, types=types), Pooling(rows=_ROWS[kind])


def _front(file: GgufFile, path: Path, encoder: Encoder, size: str = "") -> ModelFront:
    metadata = file.header.metadata
    given = metadata.get("general.name")
    name = given if isinstance(given, str) and given else without_number(path.name)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    return ModelFront(
        metadata={key: value for key, value in metadata.items() if key.startswith("tokenizer.")},
        chat_template=None,
        eos_ids=frozenset(),
        bos_id=bos if isinstance(bos, int) else None,
        context_tokens=encoder.context_tokens,
        name=name,
        description=f"{name} ({GGUF_ENCODER} sentence encoder{size}, {path.name})",
        generates=False,
    )
