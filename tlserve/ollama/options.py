"""`options` of Ollama's API -> the options of a generation.

Owns the table of options. Those that describe how a model is loaded have no effect, because this server's settings decide it; a
value that asks for another answer than this server gives is refused by name.

Source: Ollama's pages of its API and of the parameters of a model file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Raw

from tlserve.api.fields import Table, inert, later, read_fields, served
from tlserve.api.options import GenerationOptions
from tlserve.api.sampler_fields import MIROSTAT, REPEAT_LAST_N, TYPICAL_P, read_samplers
from tlserve.text.stop_strings import MAX_STOP_CHARS, MAX_STOPS

_Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
_INT64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_PENALTY = Annotated[float, Meta(ge=-2, le=2)]
_UNIT = Annotated[float, Meta(ge=0, le=1)]

OPTIONS: Table = {
    "temperature": served(Annotated[float, Meta(ge=0, le=2)], "a number from 0 to 2"),
    "top_k": served(Annotated[int, Meta(ge=0, le=2**31 - 1)], "an integer of at least 1, or 0 for all"),
    "top_p": served(Annotated[float, Meta(gt=0, le=1)], "a number above 0, at most 1"),
    "min_p": served(_UNIT, "a number from 0 to 1"),
    "seed": served(_INT64, "a 64-bit integer"),
    "stop": served(
        _Stop | Annotated[list[_Stop], Meta(max_length=MAX_STOPS)],
        f"a string, or at most {MAX_STOPS} strings, none of them empty",
    ),
    "num_predict": served(Annotated[int, Meta(ge=-2)], "an integer of at least 1, or -1 or -2 for as many as fit"),
    "repeat_penalty": served(Annotated[float, Meta(ge=0.01, le=100)], "a number from 0.01 to 100; 1 is off"),
    "presence_penalty": served(_PENALTY, "a number from -2 to 2"),
    "frequency_penalty": served(_PENALTY, "a number from -2 to 2"),
    "repeat_last_n": REPEAT_LAST_N,
    "typical_p": TYPICAL_P,
    "tfs_z": later(int | float, "1", 1),
    **MIROSTAT,
    "penalize_newline": later(bool, "true", True),
    **{
        name: inert(bool | int | float, "a number or a switch of loading a model")
        for name in (
            *("num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "use_mmap"),
            *("use_mlock", "f16_kv", "vocab_only", "draft_num_predict"),
        )
    },
    "num_ctx": served(
        Annotated[int, Meta(ge=1)], "the number of tokens of prompt and answer, at most the model's context"
    ),
}
_SENT_AS = {"repetition_penalty": "repeat_penalty"}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")


def read_ollama_options(given: Mapping[str, Raw]) -> tuple[GenerationOptions, tuple[str, ...]]:
    """Return the options, without a format and a stream, and the names that the table does not have."""
    values = read_fields(given, OPTIONS, where="options.")
    named = values.given
    sampling: dict[str, Any] = {name: named[name] for name in _SAMPLING if name in named}
    if "repeat_penalty" in named:
        sampling["repetition_penalty"] = named["repeat_penalty"]
    samplers = read_samplers(named, sampling)
    stop = named.get("stop", ())
    limit = named.get("num_predict", -1)
    options = GenerationOptions(
        sampling=samplers.sampling,
        seed=named.get("seed"),
        max_tokens=limit if limit > 0 else None,
        max_tokens_field="options.num_predict",
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
    )
    context = ("options.num_ctx",) if "num_ctx" in named else ()
    unused = tuple(f"options.{_SENT_AS.get(name, name)}" for name in samplers.unused)
    return options, (*values.unknown, *context, *unused)
