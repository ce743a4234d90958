"""The samplers of llama.cpp as fields of a request: its API has them, and the options of Ollama's API have some.

Owns the table of the fields, and what they mean together: the order in `samplers`, and that mirostat leaves nothing to others.
Does not know the other fields of sampling and the tokens of words.

Sources: the page of llama.cpp's server and its `common/sampling.cpp`; Ollama's page of the parameters of a model file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import attrs
from msgspec import Meta

from tlserve.api.fields import Table, served
from tlserve.errors import ClientError, Refusal
from tlserve.sampling_params import FILTERS, SamplingParams

ALL_TOKENS = 2**31 - 1
MAX_BREAKERS = 16
MAX_BREAKER_CHARACTERS = 40
_DEFAULT_BREAKERS = ("\n", ":", '"', "*")

_Unit = Annotated[float, Meta(ge=0, le=1)]
_Hundred = Annotated[float, Meta(ge=0, le=100)]
_LastN = Annotated[int, Meta(ge=-1, le=ALL_TOKENS)]
_Breakers = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=MAX_BREAKER_CHARACTERS)]], Meta(max_length=MAX_BREAKERS)
]

REPEAT_LAST_N = served(
    _LastN, "how many of the latest tokens the penalties look at, prompt and answer; -1 for all, 0 for none"
)
TYPICAL_P = served(Annotated[float, Meta(gt=0, le=1)], "a number above 0, at most 1; 1 is off")
MIROSTAT: Table = {
    "mirostat": served(Annotated[int, Meta(ge=0, le=2)], "0 for off, or the version, 1 or 2"),
    "mirostat_tau": served(_Hundred, "a number from 0 to 100"),
    "mirostat_eta": served(_Hundred, "a number from 0 to 100"),
}

SAMPLERS: Table = {
    "top_n_sigma": served(Annotated[float, Meta(ge=-1, le=100)], "a number above 0; 0 or -1 is off"),
    "dynatemp_range": served(_Hundred, "a number from 0 to 100; 0 is off"),
    "dynatemp_exponent": served(_Hundred, "a number from 0 to 100"),
    "typical_p": TYPICAL_P,
    "xtc_probability": served(_Unit, "a number from 0 to 1; 0 is off"),
    "xtc_threshold": served(_Unit, "a number from 0 to 1; above 0.5 is off"),
    "min_keep": served(Annotated[int, Meta(ge=0, le=ALL_TOKENS)], "how many tokens the filters leave at least"),
    "samplers": served(
        Annotated[str, Meta(max_length=32)] | Annotated[list[str], Meta(max_length=32)],
        "a list of names of samplers in their order, or a string of their letters",
    ),
    **MIROSTAT,
    "repeat_last_n": REPEAT_LAST_N,
    "dry_multiplier": served(_Hundred, "a number from 0 to 100; 0 is off"),
    "dry_base": served(Annotated[float, Meta(ge=1, le=100)], "a number from 1 to 100"),
    "dry_allowed_length": served(Annotated[int, Meta(ge=1, le=ALL_TOKENS)], "an integer of at least 1"),
    "dry_penalty_last_n": served(_LastN, "how many of the latest tokens are searched; -1 for all, 0 is off"),
    "dry_sequence_breakers": served(
        _Breakers, f"a list of at most {MAX_BREAKERS} strings of 1 to {MAX_BREAKER_CHARACTERS} characters"
    ),
}

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "penalty_last_n")
_PLAIN = (
    *(
        "top_n_sigma",
        "dynatemp_range",
        "dynatemp_exponent",
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
        "min_keep",
    ),
    *("mirostat", "mirostat_tau", "mirostat_eta"),
)
_NEUTRAL = {field.name: field.default for field in attrs.fields(SamplingParams)}
_LEFT_OUT_BY_MIROSTAT = tuple(
    name
    for name in _NEUTRAL
    if name not in ("logit_bias", "temperature", "dry", "mirostat", "mirostat_tau", "mirostat_eta", "dynatemp_exponent")
)


@attrs.frozen(kw_only=True)
class DryOptions:
    """DRY as a request has it: `breakers` are words, `last_n` None: all tokens."""

    multiplier: float
    base: float
    allowed_length: int
    last_n: int | None
    breakers: tuple[str, ...]


@attrs.frozen
class Samplers:
    """Values of `SamplingParams`, DRY, and the fields of the request that have no effect because of others."""

    sampling: Mapping[str, Any]
    dry: DryOptions | None = None
    unused: tuple[str, ...] = ()


def read_samplers(given: Mapping[str, Any], sampling: Mapping[str, Any]) -> Samplers:
    """Return what `given` asks for on top of `sampling`, the values of the usual fields.

    Raises ClientError for an order that is wrong, and Refusal for one that is not served.
    """
    values = {**sampling, **{name: given[name] for name in _PLAIN if name in given}}
    if "top_n_sigma" in values:
        values["top_n_sigma"] = max(0.0, values["top_n_sigma"])
    if "repeat_last_n" in given:
        values["penalty_last_n"] = ALL_TOKENS if given["repeat_last_n"] < 0 else given["repeat_last_n"]
    dry = _dry(given)
    if given.get("mirostat"):
        return _with_mirostat(values, dry, "samplers" in given)
    if "samplers" not in given:
        return Samplers(values, dry)
    names = _order(given["samplers"])
    values["samplers"] = tuple(name for name in names if name in FILTERS)
    if "penalties" not in names:
        values |= {name: _NEUTRAL[name] for name in _PENALTIES}
    return Samplers(values, dry if "dry" in names else None)


def _dry(given: Mapping[str, Any]) -> DryOptions | None:
    last_n = given.get("dry_penalty_last_n", -1)
    if not given.get("dry_multiplier") or last_n == 0:
        return None
    return DryOptions(
        multiplier=given["dry_multiplier"],
        base=given.get("dry_base", 1.75),
        allowed_length=given.get("dry_allowed_length", 2),
        last_n=None if last_n < 0 else last_n,
        breakers=tuple(given.get("dry_sequence_breakers", _DEFAULT_BREAKERS)),
    )


def _with_mirostat(values: dict[str, Any], dry: DryOptions | None, ordered: bool) -> Samplers:
    """Return mirostat without the filters and penalties, as in llama.cpp, and the names of those that were sent."""
    unused = [name for name in _LEFT_OUT_BY_MIROSTAT if values.get(name, _NEUTRAL[name]) != _NEUTRAL[name]]
    named = ["repeat_last_n" if name == "penalty_last_n" else name for name in unused]
    named += ["dry_multiplier"] * (dry is not None) + ["samplers"] * ordered
    return Samplers({**values, **{name: _NEUTRAL[name] for name in _LEFT_OUT_BY_MIROSTAT}}, None, tuple(named))


# --- the order -----------------------------------------------------------------------------------------------------------

_LETTERS = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typical_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
}
_NAMES = {
    **{name: name for name in (*FILTERS, "penalties", "dry")},
    "typ_p": "typical_p",
    "typ": "typical_p",
    "typical": "typical_p",
    "temp": "temperature",
    "nucleus": "top_p",
}
_JOINED = {name.replace("_", ""): name for name in _NAMES}


def _order(sent: str | Sequence[str]) -> list[str]:
    """Return the names of the samplers in their order."""
    names = [_named(name, letters=isinstance(sent, str)) for name in sent]
    if len(set(names)) < len(names):
        raise ClientError("samplers has a name twice; send each once", param="samplers")
    edits = [name for name in names if name in ("penalties", "dry")]
    if names[: len(edits)] != edits or edits == ["dry", "penalties"]:
        raise Refusal(
            "samplers has penalties or dry behind other samplers, which is not served; put penalties first, then dry",
            param="samplers",
        )
    return names


def _named(name: str, *, letters: bool) -> str:
    """Return the name of a sampler that has several spellings."""
    plain = name.lower().replace("-", "").replace("_", "")
    found = _LETTERS.get(name) if letters else _NAMES.get(_JOINED.get(plain, ""))
    if found is None:
        raise Refusal(
            f"samplers has {name[:40]!r}, which is not served; send some of penalties, dry, {', '.join(FILTERS)}",
            param="samplers",
        )
    return found
