"""The architectures that are served, `docs/reference/models.md`.

Owns the text around the table; the rows are the descriptions.
"""

from __future__ import annotations

from tlserve.model.architectures.forms import Architecture
from tlserve.model.architectures.registry import ARCHITECTURES
from tlserve.model.encoder.architectures.facts import EncoderForm
from tlserve.model.encoder.architectures.registry import ENCODERS

IN_NUMPY: frozenset[str] = frozenset()
"""Those with a mechanism that the native kernels do not have; a test compares them with what the kernels accept."""

_HEAD = """\
# Models

The architectures that are served. `python -m docs.make` makes this page from `tlserve/model/architectures/`. A file of another
architecture is refused, by name and with the list of these. [Encoders](#encoders) have their own table.

*config.json* is the field `model_type` of a Hugging Face directory, *GGUF* the field `general.architecture` of a file. *Kernels*:
`native` runs in C. `numpy` runs in the reference, with the same exactness, and ten to a hundred times slower. A warning in the
log says so when such a model is loaded, and names the mechanism that the native kernels do not have.

Where transformers and llama.cpp compute different things, tlserve follows transformers. Each row is compared with transformers
on tiny random checkpoints (`tests/parity/test_described.py`, `tests/parity/test_kin.py`): log-probabilities in float32 differ by
less than 0.0001, and each mechanism of an architecture, switched off, changes them. Mixtures of experts and Gemma 4 are also
compared with llama.cpp on the same weights, converted by its own program: the difference is below 0.0001 but where the last
column says so.

| config.json | GGUF | kernels | known models | what differs |
|---|---|---|---|---|
"""

_ENCODERS = """
## Encoders

They make vectors for [embeddings](../how-to/embed-texts.md), or, with a head, scores of texts. Numpy computes them. Hidden
states, and the numbers of heads, are compared with transformers on tiny random checkpoints (`tests/parity/test_encoders.py`): in
float32 they differ by less than 0.0001, their cosine is at least 0.99999, and each mechanism, switched off, changes them. Vectors
of texts are compared with sentence-transformers (`tests/programs/test_sentence_files.py`).

From GGUF they are served with mean, first or last token, and compared with llama.cpp on the same weights. Heads for scores are
served from GGUF where the file has the whole head: those of RoBERTa, XLM-RoBERTa and ModernBERT. The converter leaves out the
first layer of BERT's head, so that cross-encoders of that kind are refused from GGUF.

Decoders of the first table make vectors too, natively: with modules.json (Qwen3-Embedding), with a head (a class such as
`Qwen3ForSequenceClassification`), or as a reranker that answers yes or no (Qwen3-Reranker, see [rerank
texts](../how-to/rerank-texts.md)).

| config.json | class | class with a head | GGUF | known models | what differs |
|---|---|---|---|---|---|
"""


def models_page() -> str:
    """Return the page."""
    return _HEAD + "".join(map(_row, ARCHITECTURES)) + _ENCODERS + "".join(map(_encoder_row, ENCODERS))


def _encoder_row(form: EncoderForm) -> str:
    scores = f"`{form.scores}`" if form.scores else ""
    gguf = f"`{form.gguf}`" if form.gguf else ""
    return f"| `{form.model_type}` | `{form.classes[0]}` | {scores} | {gguf} | {form.models} | {form.note} |\n"


def _row(architecture: Architecture) -> str:
    name = architecture.hf.model_type if architecture.hf else ""
    gguf = f"`{architecture.gguf.name}`" if architecture.gguf else ""
    kernels = "numpy" if name in IN_NUMPY else "native"
    return f"| `{name}` | {gguf} | {kernels} | {architecture.models} | {architecture.note} |\n"
