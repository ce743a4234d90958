"""A sentence encoder's own files: the longest text, and how its hidden states become one vector.

Reads modules.json, the config.json of the pooling and of dense layers, the prompts, and sentence_bert_config.json; a value that
is not served is refused by file and value. Without modules.json the vector is the mean, not normalised, as there.
Source: `Transformer`, `Pooling` and `Normalize` of sentence-transformers, whose files have changed little from version 2 to 6.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import attrs

from tlserve.errors import ModelRefused
from tlserve.kernels.interface import PooledActivation, PooledLayer, PooledRows, Pooling
from tlserve.model.fields import Fields
from tlserve.model.hugging_face.weights import open_weights
from tlserve.model.loaded_model import Prompts
from tlserve.model.sidecar_files import read_json, read_text
from tlserve.model.tensor_shapes import check_shapes

MODULES, SENTENCE_CONFIG, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
_MAX_MODULES_BYTES = 1 << 16
_SERVED = re.compile(r"Transformer Pooling( Dense)*( Normalize)?")
_FOLDER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_MODES = {
    "pooling_mode_mean_tokens": PooledRows.MEAN,
    "pooling_mode_cls_token": PooledRows.FIRST,
    "pooling_mode_lasttoken": PooledRows.LAST,
}
_NAMES = {
    "mean": "pooling_mode_mean_tokens",
    "cls": "pooling_mode_cls_token",
    "lasttoken": "pooling_mode_lasttoken",
}
_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": PooledActivation.IDENTITY,
    "torch.nn.modules.activation.Tanh": PooledActivation.TANH,
    "torch.nn.modules.activation.GELU": PooledActivation.GELU,
}
MAX_TOKEN_ID = 1 << 24
MAX_PROMPTS, MAX_PROMPT_CHARACTERS = 256, 4096


@attrs.frozen(kw_only=True)
class SentenceFiles:
    """`longest`: tokens of a text, with those around it; 0: not given. `dense`: the folders of the layers after the pooling.

    `exist`: there is a modules.json.
    """

    pooling: Pooling
    longest: int
    prompts: Prompts
    dense: tuple[str, ...] = ()
    exist: bool = True


def read_sentence_files(directory: Path) -> SentenceFiles:
    """Read the files that exist; raises `ModelRefused`."""
    pooling, dense = _pooling(directory)
    return SentenceFiles(
        pooling=pooling,
        longest=longest_text(directory),
        prompts=_prompts(Fields(read_json(directory / PROMPTS), f"{PROMPTS}: ")),
        dense=dense,
        exist=(directory / MODULES).is_file(),
    )


def longest_text(directory: Path) -> int:
    """Return how many tokens a text can have, 0 where no file says it; raises `ModelRefused`."""
    config = Fields(read_json(directory / SENTENCE_CONFIG), f"{SENTENCE_CONFIG}: ")
    config.refuse_unless("do_lower_case", (False,), "false (tokenizer.json says how a text is split)")
    return config.integer("max_seq_length", 1, 1 << 20, default=0)


def _prompts(config: Fields) -> Prompts:
    texts = config.get("prompts")
    texts = {} if texts is None else texts
    if not isinstance(texts, Mapping) or len(texts) > MAX_PROMPTS:
        raise config.refusal("prompts", f"must be an object of at most {MAX_PROMPTS} texts")
    if not all(isinstance(text, str) and len(text) <= MAX_PROMPT_CHARACTERS for text in texts.values()):
        raise config.refusal("prompts", f"must have texts of at most {MAX_PROMPT_CHARACTERS} characters")
    default = config.get("default_prompt_name")
    if default is not None and (not isinstance(default, str) or default not in texts):
        raise config.refusal("default_prompt_name", f"{default!r:.60} is not one of prompts")
    return Prompts(texts={str(name): text for name, text in texts.items()}, default=default)


def _pooling(directory: Path) -> tuple[Pooling, tuple[str, ...]]:
    """Return the pooling without its layers, and the folders of these."""
    modules = _modules(directory / MODULES)
    if not modules:
        return Pooling(normalised=False), ()
    kinds = module_kinds(directory)
    if not _SERVED.fullmatch(" ".join(kinds)):
        raise ModelRefused(
            f"{MODULES} has {', '.join(kinds)}; served: Transformer, Pooling, and Dense and Normalize or not"
        )
    folders = [_folder(module) for module, kind in zip(modules, kinds, strict=True) if kind in ("Pooling", "Dense")]
    rows = _rows(read_json(directory / folders[0] / "config.json"), folders[0])
    return Pooling(rows=rows, normalised=kinds[-1] == "Normalize"), tuple(folders[1:])


def _folder(module: Mapping[str, object]) -> str:
    folder = module.get("path")
    if not isinstance(folder, str) or not _FOLDER.fullmatch(folder):
        raise ModelRefused(f"{MODULES}: the path {folder!r:.60} of a module is not a folder next to it")
    return folder


def _modules(path: Path) -> list[Mapping[str, object]]:
    """Return the modules in their order, or none without such a file."""
    if not path.is_file():
        return []
    try:
        modules = json.loads(read_text(path, _MAX_MODULES_BYTES))
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{MODULES} cannot be read: {str(error)[:200]}") from error
    if not isinstance(modules, list) or not modules or not all(isinstance(module, dict) for module in modules):
        raise ModelRefused(f"{MODULES} must be a list of objects")
    return modules


def _rows(config: Mapping[str, object], folder: str) -> PooledRows:
    """Return which rows are pooled: a flag for each mode, or (since version 5) the mode's name."""
    fields = Fields(config, f"{folder}/config.json: ")
    modes = {name for name in config if name.startswith("pooling_mode_") and fields.flag(name, default=False)}
    if isinstance(named := config.get("pooling_mode"), str):
        modes = {_NAMES.get(named, named)}
    fields.refuse_unless("include_prompt", (True,), "true (a prompt is pooled as its text)")
    if len(modes) != 1 or not modes <= _MODES.keys():
        raise fields.refusal(
            "pooling_mode", f"{', '.join(sorted(modes))!r:.100} is not served; served: mean, cls, lasttoken"
        )
    return _MODES[modes.pop()]


def with_dense_layers(directory: Path, files: SentenceFiles, hidden: int) -> tuple[Pooling, str]:
    """Return the pooling with its layers, which take vectors of `hidden` numbers, and a hash of their files."""
    layers, digest = list[PooledLayer](), hashlib.blake2b(digest_size=16)
    for folder in files.dense:
        config = Fields(read_json(directory / folder / "config.json"), f"{folder}/config.json: ")
        config.refuse_unless("use_residual", (False,), "false")
        path = config.get("activation_function") or "torch.nn.modules.activation.Tanh"
        if path not in _ACTIVATIONS:
            raise config.refusal(
                "activation_function", f"{path!r:.80} is not served; served: {', '.join(_ACTIVATIONS)}"
            )
        outputs = config.integer("out_features", 1, 1 << 16)
        expected: dict[str, tuple[int, ...]] = {"linear.weight": (outputs, hidden)}
        if config.flag("bias", default=True):
            expected["linear.bias"] = (outputs,)
        with ExitStack() as stack:
            weights = open_weights(directory / folder, stack)
            check_shapes(expected, weights.shapes())
            arrays = {name: weights.rows(name, 0, outputs) for name in expected}
            digest.update(weights.digest().encode())
        layers.append(
            PooledLayer(
                name=folder,
                weight=arrays["linear.weight"],
                bias=arrays.get("linear.bias"),
                activation=_ACTIVATIONS[str(path)],
            )
        )
        hidden = outputs
    return attrs.evolve(files.pooling, layers=tuple(layers)), digest.hexdigest() if layers else ""


def module_kinds(directory: Path) -> list[str]:
    """Return the kind of every module in its order."""
    return [str(module.get("type")).rpartition(".")[2] for module in _modules(directory / MODULES)]


def read_logit_score(directory: Path) -> tuple[int, ...]:
    """Return the tokens whose logits a reranker compares: for yes, and for no if there is one; raises `ModelRefused`."""
    folder = _folder(_modules(directory / MODULES)[1])
    config = Fields(read_json(directory / folder / "config.json"), f"{folder}/config.json: ")
    first = config.integer("true_token_id", 0, MAX_TOKEN_ID)
    has_second = config.has("false_token_id")
    return (first, config.integer("false_token_id", 0, MAX_TOKEN_ID)) if has_second else (first,)
