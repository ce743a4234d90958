"""Schemas, patterns and grammars that cost much to compile for their size, drawn from a seed: what an attacker would send.

Each kind is a known way to make a compiler work: products of repetitions, long optional lists, counted properties, large factors,
alternatives that overlap, deep references, long enumerations, wide character classes.
"""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]


def _object(count: int, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": {f"p{index}": {"type": "string"} for index in range(count)},
        "additionalProperties": False,
        **more,
    }


def _optional(chance: random.Random) -> Schema:
    return _object(chance.randrange(100, 5000))


def _counted(chance: random.Random) -> Schema:
    count = chance.randrange(50, 800)
    return _object(count, minProperties=1)


def _multiple(chance: random.Random) -> Schema:
    return {"type": "integer", "multipleOf": chance.randrange(1000, 10_000_000)}


def _repeated(chance: random.Random) -> Schema:
    depth, count = chance.randrange(2, 5), chance.randrange(20, 1000)
    pattern = "a"
    for _ in range(depth):
        pattern = f"({pattern}{{1,{count}}})"
    return {"type": "string", "pattern": f"^{pattern}$"}


def _ambiguous(chance: random.Random) -> Schema:
    count = chance.randrange(5, 400)
    tail = "".join(f"[{chr(97 + chance.randrange(26))}x]" for _ in range(count))
    return {"type": "string", "pattern": f"^[a-z]*x{tail}$"}


def _lengths(chance: random.Random) -> Schema:
    return {
        "type": "string",
        "minLength": chance.randrange(1, 50_000),
        "maxLength": chance.randrange(50_000, 1_000_000),
    }


def _items(chance: random.Random) -> Schema:
    inner: Schema = {"type": "integer"}
    for _ in range(chance.randrange(1, 12)):
        inner = {"type": "array", "items": inner, "minItems": chance.randrange(2, 60), "maxItems": 100}
    return inner


def _alternatives(chance: random.Random) -> Schema:
    count = chance.randrange(10, 1500)
    return {"anyOf": [_object(3, required=[f"p{chance.randrange(3)}"], title=str(index)) for index in range(count)]}


def _references(chance: random.Random) -> Schema:
    count = chance.randrange(10, 3000)
    chain = {f"d{index}": {"anyOf": [{"$ref": f"#/$defs/d{index + 1}"}, {"const": index}]} for index in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{count}": {"const": "end"}}}


def _choices(chance: random.Random) -> Schema:
    length = chance.randrange(10, 200)
    return {"enum": ["".join(chance.choices("ab", k=length)) for _ in range(chance.randrange(100, 1500))]}


def _all_of(chance: random.Random) -> Schema:
    patterns = [f"^.*{chance.choice('abc')}.{{{chance.randrange(2, 60)}}}$" for _ in range(chance.randrange(2, 8))]
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


def _doubled(chance: random.Random) -> Schema:
    """Two references to the next definition in each: 2^n objects if they are written out."""
    count = chance.randrange(8, 60)
    both = {
        f"d{index}": _object(
            0, properties={"a": {"$ref": f"#/$defs/d{index + 1}"}, "b": {"$ref": f"#/$defs/d{index + 1}"}}
        )
        for index in range(count)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**both, f"d{count}": {"type": "null"}}}


KINDS: tuple[Callable[[random.Random], Schema], ...] = (
    _optional,
    _counted,
    _multiple,
    _repeated,
    _ambiguous,
    _lengths,
    _items,
    _alternatives,
    _references,
    _choices,
    _all_of,
    _doubled,
)


def hostile_schemas(count: int, seed: int = 0) -> list[tuple[str, Schema]]:
    """Return `count` schemas with the names of their kinds, every kind in turn; the same for the same seed."""
    chance = random.Random(seed)
    kinds = (KINDS[index % len(KINDS)] for index in range(count))
    return [(kind.__name__.strip("_"), kind(chance)) for kind in kinds]
