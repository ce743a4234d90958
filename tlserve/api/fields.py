"""Fields of a request body, and reading the members of an object by a table of fields.

A field is served, or known and answered 422 (unless its value asks for nothing), or accepted without effect. Members without a
field are ignored, and reported; also those inside a value. Owns the reading and the messages of its refusals; the tables are in
`tlserve.openai.field_tables`. Does not know what a value is for.

Rules: `null` means the default for every optional field. A wrong type or value is 400, a known field with a value that is not
served is 422; both name the field.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import quote

import attrs
import msgspec

from tlserve.api.json_body import Members
from tlserve.errors import ClientError, Refusal

IGNORED_HEADER_BYTES = 512
_NAME_BYTES = 64
_SHOWN_BYTES = 40
_NULL = b"null"
_ONE_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ONE_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class FieldKind(enum.Enum):
    """What this server does with a field of the public API."""

    SERVED = "served"
    LATER = "later"
    INERT = "inert"


def _never(_value: Any) -> bool:
    return False


@attrs.frozen
class Field:
    """One public field: its type, a text with the values it takes, and (LATER) the values that ask for nothing.

    `shape` is the type that `decode` decodes; its JSON schema is the field's, unless `schema` is given. `quick` is a narrower
    type that is tried first and can be the result instead: for values that are large and mostly plain.
    """

    kind: FieldKind
    shape: Any
    takes: str
    required: bool = False
    is_noop: Callable[[Any], bool] = _never
    noops: tuple[Any, ...] = ()
    schema: Mapping[str, Any] | None = None
    quick: Any = None
    decode: Callable[[msgspec.Raw], Any] = attrs.field(
        init=False, default=attrs.Factory(lambda self: _decoder(self.shape, self.quick), takes_self=True)
    )


def _decoder(shape: Any, quick: Any) -> Callable[[msgspec.Raw], Any]:
    exact = msgspec.json.Decoder(shape).decode
    if quick is None:
        return exact
    narrow = msgspec.json.Decoder(quick).decode

    def decode(raw: msgspec.Raw) -> Any:
        try:
            return narrow(raw)
        except msgspec.ValidationError:
            return exact(raw)

    return decode


Table = Mapping[str, Field]


def served(
    shape: Any, takes: str, *, required: bool = False, schema: Mapping[str, Any] | None = None, quick: Any = None
) -> Field:
    """Declare a field that has its effect."""
    return Field(FieldKind.SERVED, shape, takes, required, schema=schema, quick=quick)


def later(
    shape: Any,
    takes: str,
    *noop: Any,
    when: Callable[[Any], bool] | None = None,
    schema: Mapping[str, Any] | None = None,
) -> Field:
    """Declare a field that is answered 422, except for the values `noop` (or those for which `when` is true)."""
    return Field(FieldKind.LATER, shape, takes, is_noop=when or noop.__contains__, noops=noop, schema=schema)


def inert(shape: Any, takes: str) -> Field:
    """Declare a field that is accepted and has no effect here."""
    return Field(FieldKind.INERT, shape, takes)


@attrs.frozen
class Values:
    """The served fields that were given (never null), and the names without a field, with their paths."""

    given: Mapping[str, Any]
    unknown: tuple[str, ...]


def read_fields(members: Members, table: Table, *, where: str = "") -> Values:
    """Decode `members` by `table`; `where` is put before the names in errors ("messages[0].").

    Raises ClientError naming the field for a wrong, missing or unserved one (`Refusal`).
    """
    present = {name: raw for name, raw in members.items() if name not in table or bytes(raw) != _NULL}
    for name, field in table.items():
        if field.required and name not in present:
            raise ClientError(f"{where}{name} is missing; send {field.takes}", param=where + name)
    given = {
        name: value
        for name, raw in present.items()
        if name in table and (value := _read(raw, table[name], where + name)) is not None
    }
    unknown = [where + name for name in present if name not in table]
    unknown += _unknown_inside(present, given, table, where)
    return Values(given, tuple(unknown))


def _unknown_inside(present: Members, given: Mapping[str, Any], table: Table, where: str) -> Iterator[str]:
    """Yield the paths of the unknown members inside the values of `given`."""
    for name, value in given.items():
        if _has_members(value) and table[name].quick is None:
            try:
                yield from unknown_members(present[name], value, where + name)
            except msgspec.DecodeError as fault:
                raise _refusal(fault, present[name], table[name], where + name) from None


def _has_members(value: Any) -> bool:
    return isinstance(value, msgspec.Struct) or (isinstance(value, list) and any(map(_has_members, value)))


def unknown_members(sent: Any, read: Any, path: str) -> Iterator[str]:
    """Yield the path of each member of `sent` for which its decoded form `read` has no field; `[]` stands for every index.

    `sent` is raw, of which only the levels with fields are decoded, or decoded without types.
    """
    if isinstance(sent, msgspec.Raw) and isinstance(read, msgspec.Struct | list):
        sent = (_ONE_OBJECT if isinstance(read, msgspec.Struct) else _ONE_LIST).decode(sent)
    if isinstance(read, msgspec.Struct):
        known = _attributes(type(read))
        for name, member in sent.items():
            if name not in known:
                yield f"{path}.{name}"
            elif (attribute := known[name]) is not None:
                yield from unknown_members(member, getattr(read, attribute), f"{path}.{name}")
    elif isinstance(read, list):
        for own, item in zip(sent, read, strict=True):
            yield from unknown_members(own, item, f"{path}[]")


@cache
def _attributes(kind: type[msgspec.Struct]) -> Mapping[str, str | None]:
    """Return the attribute of each member of a struct; its tag has none."""
    tag = kind.__struct_config__.tag_field
    return {
        **dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)),
        **({tag: None} if tag else {}),
    }


def _read(raw: msgspec.Raw, field: Field, param: str) -> Any:
    try:
        value = field.decode(raw)
    except msgspec.DecodeError as fault:
        raise _refusal(fault, raw, field, param) from None
    if field.kind is FieldKind.LATER and not field.is_noop(value):
        raise Refusal(f"{param} is not served with this value; {_remedy(field)}", param=param)
    return value if field.kind is FieldKind.SERVED else None


def _remedy(field: Field) -> str:
    return f"leave it out, or send {field.takes}" if field.takes else "leave it out"


def _refusal(fault: msgspec.DecodeError, raw: msgspec.Raw, field: Field, param: str) -> ClientError:
    """Return the error of a wrong value; its message names the place inside the field `param`."""
    words, _, path = str(fault).partition(" - at `$")
    place = param + path.rstrip("`")
    said = f"is {shown}" if not path and (shown := _show(raw)) else f"is wrong: {words[:1].lower()}{words[1:]}"
    return ClientError(f"{place} {said}; send {field.takes or 'another value'}", param=param)


def _show(raw: msgspec.Raw) -> str:
    """Return a scalar as the client wrote it, or "" if it is long or not a scalar."""
    text = bytes(raw)
    plain = len(text) <= _SHOWN_BYTES and text[:1] not in (b"[", b"{") and text.isascii()
    return text.decode() if plain else ""


def ignored_header(names: Sequence[str]) -> str:
    """Return the value of `X-TL-Ignored`: percent-encoded names, whole ones only, at most 512 ASCII bytes."""
    pieces = [_header_name(name) for name in names[:IGNORED_HEADER_BYTES]]
    for kept in range(len(pieces), -1, -1):
        more = [f"+{len(names) - kept} more"] if kept < len(names) else []
        value = ", ".join(pieces[:kept] + more)
        if len(value) <= IGNORED_HEADER_BYTES:
            return value
    return ""


def _header_name(name: str) -> str:
    """Return `name` in characters that are safe in a header, cut between characters, never inside an escape."""
    whole = quote(name, safe="[]._-", errors="replace") or '""'
    if len(whole) <= _NAME_BYTES:
        return whole
    cut = ""
    for character in name:
        piece = quote(character, safe="[]._-", errors="replace")
        if len(cut) + len(piece) > _NAME_BYTES - 1:
            break
        cut += piece
    return cut + "~"
