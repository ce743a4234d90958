"""Bodies of rerank, score, classify and embed -> typed requests.

Owns the tables of fields, and the rules between fields. Does not know models: the endpoints check lengths and labels.
Sources: the public references of Cohere's and Jina's rerank, vLLM's score and classify, and text-embeddings-inference (TEI).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
from msgspec import Meta, Struct

from tlserve.api.chat_request import DEFAULT_RULES, BodyRules, noted_names
from tlserve.api.fields import Table, inert, later, read_fields, served
from tlserve.api.inputs import MAX_INPUTS, EmbeddingsRequest, Input, read_inputs
from tlserve.api.json_body import parse_object
from tlserve.errors import ClientError

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]


class TextObject(Struct, frozen=True):
    """A document as an object."""

    text: str


Texts = str | list[str]
_MANY = f"a list of 1 to {MAX_INPUTS} strings, none of them empty"
_TAKES = f"a string, or {_MANY}"
_MODEL = {"model": served(Text, "the id of a served model; it can be left out if one model is served")}
_TIMEOUT = served(Annotated[float, Meta(gt=0)], "a number of seconds above 0")
_TRUNCATE = served(
    Annotated[int, Meta(ge=-1)], "how many tokens of a pair are read: at least 1, or -1 for as many as the model reads"
)
_COMMON: Table = {
    **_MODEL,
    "truncate_prompt_tokens": _TRUNCATE,
    "use_activation": served(bool, "true, or false for the numbers of the model's head as they are"),
    "timeout": _TIMEOUT,
    "user": inert(str, "a string"),
}

RERANK: Table = {
    **_COMMON,
    "query": served(Text, "a string", required=True),
    "documents": served(
        list[str | TextObject],
        f'a list of 1 to {MAX_INPUTS} strings, or objects such as {{"text": "..."}}, none of them empty',
        required=True,
    ),
    "top_n": served(Positive, "an integer of at least 1: how many of the best are in the answer"),
    "return_documents": served(bool, "true or false"),
    "max_tokens_per_doc": served(Positive, "how many tokens of a document are read"),
    "rank_fields": later(list[str], "[]", []),
}
TEI_RERANK: Table = {
    **_MODEL,
    "query": served(Text, "a string", required=True),
    "texts": served(list[str], _MANY, required=True),
    "raw_scores": served(bool, "true for the numbers of the model's head as they are"),
    "return_text": served(bool, "true or false"),
    "truncate": served(bool, "true or false: read as much of a pair as the model reads"),
    "truncation_direction": later(str, '"right"', "right", "Right"),
}
ANY_RERANK: Table = {
    **TEI_RERANK,
    **RERANK,
    "texts": attrs.evolve(TEI_RERANK["texts"], required=False),
    "documents": attrs.evolve(RERANK["documents"], required=False),
}
"""Both forms, for the page of `/rerank`."""
SCORE: Table = {
    **_COMMON,
    "text_1": served(Texts, _TAKES),
    "text_2": served(Texts, _TAKES),
    "queries": served(Texts, "the same as text_1"),
    "documents": served(Texts, "the same as text_2"),
}
CLASSIFY: Table = {**_COMMON, "input": served(Texts, _TAKES, required=True)}
TEI_EMBED: Table = {
    **_MODEL,
    "inputs": served(Texts, _TAKES, required=True),
    "normalize": later(bool, "true", True),
    "truncate": later(bool, "false", False),
    "truncation_direction": later(str, '"right"', "right", "Right"),
    "prompt_name": served(Text, "the name of one of the model's prompts"),
    "dimensions": served(Positive, "an integer of at least 1"),
}


@attrs.frozen(kw_only=True)
class PairsRequest:
    """Pairs of texts to score. `form` is the shape of the answer; `top`: how many of the best are shown, None: all.

    `longest`: tokens of a pair that are read, -1: as many as the model reads, None: a longer pair is refused. `per_document`:
    tokens of the second text that are read. `raw`: the numbers of the head as they are.
    """

    model: str
    form: Literal["rerank", "texts", "score"]
    pairs: tuple[tuple[Input, Input], ...]
    top: int | None = None
    shows_texts: bool = True
    longest: int | None = None
    per_document: int | None = None
    raw: bool = False
    timeout_s: float | None = None
    ignored: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ClassifyRequest:
    """Texts to classify; the fields are those of `PairsRequest`."""

    model: str
    inputs: tuple[Input, ...]
    longest: int | None = None
    raw: bool = False
    timeout_s: float | None = None
    ignored: tuple[str, ...] = ()


def parse_rerank(body: bytes, rules: BodyRules = DEFAULT_RULES) -> PairsRequest:
    """Parse a body of rerank, in Cohere's and Jina's form, or with `texts` in TEI's; raises ClientError that names the field."""
    members = parse_object(body, max_depth=rules.max_depth)
    if "texts" in members and "documents" not in members:
        return _tei_rerank(members, rules)
    values = read_fields(members, RERANK)
    texts = [each if isinstance(each, str) else each.text for each in values.given["documents"]]
    return PairsRequest(
        form="rerank",
        pairs=_one_to_all(values.given["query"], read_inputs(texts, "documents")),
        top=values.given.get("top_n"),
        shows_texts=values.given.get("return_documents", True),
        per_document=values.given.get("max_tokens_per_doc"),
        ignored=noted_names(values.unknown, rules),
        **_shared(values.given),
    )


def _tei_rerank(members: Mapping[str, Any], rules: BodyRules) -> PairsRequest:
    values = read_fields(members, TEI_RERANK)
    return PairsRequest(
        model=values.given.get("model", ""),
        form="texts",
        pairs=_one_to_all(values.given["query"], read_inputs(values.given["texts"], "texts")),
        shows_texts=values.given.get("return_text", False),
        longest=-1 if values.given.get("truncate") else None,
        raw=values.given.get("raw_scores", False),
        ignored=noted_names(values.unknown, rules),
    )


def parse_score(body: bytes, rules: BodyRules = DEFAULT_RULES) -> PairsRequest:
    """Parse a body of score: one text and others, or as many as others; raises ClientError that names the field."""
    values = read_fields(parse_object(body, max_depth=rules.max_depth), SCORE)
    first, second = _named(values.given, "text_1", "queries"), _named(values.given, "text_2", "documents")
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise ClientError(
            f"{len(second)} texts for {len(first)} first ones; send as many, or one first text",
            param=second[0].place.partition("[")[0],
        )
    return PairsRequest(
        form="score",
        pairs=tuple(zip(first, second, strict=True)),
        ignored=noted_names(values.unknown, rules),
        **_shared(values.given),
    )


def parse_classify(body: bytes, rules: BodyRules = DEFAULT_RULES) -> ClassifyRequest:
    """Parse a body of classify; raises ClientError that names the field."""
    values = read_fields(parse_object(body, max_depth=rules.max_depth), CLASSIFY)
    return ClassifyRequest(
        inputs=read_inputs(values.given["input"], "input"),
        ignored=noted_names(values.unknown, rules),
        **_shared(values.given),
    )


def parse_tei_embed(body: bytes, rules: BodyRules = DEFAULT_RULES) -> EmbeddingsRequest:
    """Parse a body of TEI's embed; raises ClientError that names the field."""
    values = read_fields(parse_object(body, max_depth=rules.max_depth), TEI_EMBED)
    return EmbeddingsRequest(
        model=values.given.get("model", ""),
        inputs=read_inputs(values.given["inputs"], "inputs"),
        dimensions=values.given.get("dimensions"),
        prompt_name=values.given.get("prompt_name", ""),
        ignored=noted_names(values.unknown, rules),
    )


def _shared(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("truncate_prompt_tokens") == 0:
        raise ClientError("truncate_prompt_tokens is 0; send at least 1, or -1", param="truncate_prompt_tokens")
    return {
        "model": given.get("model", ""),
        "longest": given.get("truncate_prompt_tokens"),
        "raw": not given.get("use_activation", True),
        "timeout_s": given.get("timeout"),
    }


def _one_to_all(query: str, texts: Sequence[Input]) -> tuple[tuple[Input, Input], ...]:
    return tuple((Input(query, "query"), text) for text in texts)


def _named(given: Mapping[str, Any], *names: str) -> tuple[Input, ...]:
    """Return the texts under the one of two names that was sent."""
    sent = [name for name in names if name in given]
    if not sent:
        raise ClientError(f"{names[0]} is missing; send {_TAKES}", param=names[0])
    if len(sent) > 1:
        raise ClientError(f"{sent[0]} and {sent[1]} are two names of one field; send one of them", param=sent[1])
    return read_inputs(given[sent[0]], sent[0])
