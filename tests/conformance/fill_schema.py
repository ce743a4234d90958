"""The real SmolLM2 fills a nested schema at temperature 1: how many answers are valid.

    python -m tests.conformance.fill_schema --count 200

Each answer is validated by the package `jsonschema`. Text is bounded, and there are enough tokens: only the model's choices are
random, and the masks limit them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import jsonschema
import openai

from tlserve.testing import serve_in_thread

SIDE_BY_SIDE = 10
MAX_TOKENS = 700
LINE = {
    "type": "object",
    "properties": {
        "article": {"type": "string", "minLength": 2, "maxLength": 16},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "price": {"type": "number", "minimum": 0, "maximum": 1000, "multipleOf": 0.25},
        "colours": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["article", "count", "price"],
    "additionalProperties": False,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "customer": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,11}( [A-Z][a-z]{1,11})?$"},
                "email": {"anyOf": [{"type": "null"}, {"type": "string", "format": "email", "maxLength": 30}]},
                "born": {"type": "string", "format": "date"},
            },
            "required": ["name", "email"],
            "additionalProperties": False,
        },
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}, "minItems": 1, "maxItems": 3},
        "paid": {"type": "boolean"},
        "note": {"type": "string", "maxLength": 60},
    },
    "required": ["customer", "lines", "paid"],
    "additionalProperties": False,
    "$defs": {"line": LINE},
}
ASKED = "Invent an order in a shop, and answer with it as JSON."
FORMAT = {"type": "json_schema", "json_schema": {"name": "order", "strict": True, "schema": SCHEMA}}


def answers(client: openai.OpenAI, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield the content and the finish of `count` answers."""
    for first in range(0, count, SIDE_BY_SIDE):
        completion = client.chat.completions.create(
            model="smol-135m",
            messages=[{"role": "user", "content": ASKED}],
            response_format=FORMAT,
            temperature=1,
            seed=seed + first,
            n=min(SIDE_BY_SIDE, count - first),
            max_tokens=MAX_TOKENS,
        )
        yield from ((choice.message.content, choice.finish_reason) for choice in completion.choices)


def fault(text: str, finish: str) -> str:
    """Return the fault of an answer, or ""."""
    if finish != "stop":
        return f"it ended by {finish}"
    judge = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    try:
        return "; ".join(error.message for error in judge.iter_errors(json.loads(text)))
    except json.JSONDecodeError as error:
        return str(error)


def main() -> None:
    """Print how many answers are valid, and each that is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    valid = 0
    with serve_in_thread("smol-135m") as server, openai.OpenAI(base_url=server.base_url, api_key="x") as client:
        for text, finish in answers(client, arguments.count, arguments.seed):
            wrong = fault(text, finish)
            valid += not wrong
            if wrong:
                print(f"{wrong}: {text}")
    print(f"{valid} of {arguments.count} answers are valid")


if __name__ == "__main__":
    main()
