"""Answers of rerank, score and classify as JSON.

Owns the shape of every document. Does not know how a score came about.
Sources: as in `tlserve.scoring.requests`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

encode = msgspec.json.encode


def rerank_document(
    *, request_id: str, model: str, ranked: Sequence[tuple[int, float]], texts: Sequence[str] | None, tokens: int
) -> bytes:
    """Return the results, the best one first, in the shape that Cohere's, Jina's and vLLM's clients read.

    `ranked`: place and score. `texts`: of every place, None: not shown.
    """
    results = [
        {"index": place, "relevance_score": score} | ({} if texts is None else {"document": {"text": texts[place]}})
        for place, score in ranked
    ]
    return encode(
        {
            "id": f"rerank-{request_id}",
            "model": model,
            "results": results,
            "usage": _usage(tokens),
            "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": tokens}},
        }
    )


def texts_document(ranked: Sequence[tuple[int, float]], texts: Sequence[str] | None) -> bytes:
    """Return the results in TEI's shape."""
    shown = [
        {"index": place, "score": score} | ({} if texts is None else {"text": texts[place]}) for place, score in ranked
    ]
    return encode(shown)


def score_document(*, request_id: str, model: str, created: int, scores: Sequence[float], tokens: int) -> bytes:
    """Return the score of every pair, in order."""
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return _list(f"score-{request_id}", model, created, data, tokens)


def classify_document(
    *,
    request_id: str,
    model: str,
    created: int,
    labels: Sequence[str],
    scores: Sequence[Sequence[float]],
    tokens: int,
) -> bytes:
    """Return the scores of all labels for every text, in order, and the label with the highest one."""
    data = [
        {"index": index, "label": labels[own.index(max(own))], "probs": own, "num_classes": len(own)}
        for index, own in enumerate(map(list, scores))
    ]
    return _list(f"classify-{request_id}", model, created, data, tokens)


def _list(name: str, model: str, created: int, data: Sequence[object], tokens: int) -> bytes:
    head = {"id": name, "object": "list", "created": created, "model": model}
    return encode({**head, "data": data, "usage": _usage(tokens)})


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}
