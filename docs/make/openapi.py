"""The OpenAPI 3.1 document of the API, `specs/openapi-subset.v1.yaml`, made from the tables of `operations`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from docs.make.answer_schemas import ANSWERS
from docs.make.body_schemas import body_schema, part_schemas
from docs.make.json_schemas import Schema, event_of, ref
from docs.make.operations import ANSWER_HEADERS, BODIES, HEADERS, OPERATIONS, QUERIES, RETRIED, STATUSES, Operation
from docs.make.yaml_text import yaml_text
from tlserve import __version__


def openapi_document() -> dict[str, Any]:
    """Return the whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, pattern), operation in OPERATIONS.items():
        paths.setdefault(pattern.replace("+}", "}"), {})[method.lower()] = _operation(pattern, operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tlserve",
            "version": __version__,
            "description": "The parts of public HTTP APIs of language models that tlserve serves.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8000"}],
        "security": [{}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"apiKey": {"type": "http", "scheme": "bearer"}},
            "parameters": {name: _header_parameter(name) for name in HEADERS},
            "headers": {name: _answer_header(name) for name in ANSWER_HEADERS},
            "responses": {
                _error_name(kind, status): _error(kind, status)
                for kind in sorted({operation.error for operation in OPERATIONS.values()})
                for status in STATUSES
                if status >= 400
            },
            "schemas": {**{name: body_schema(table) for name, table in BODIES.items()}, **part_schemas(), **ANSWERS},
        },
    }


def openapi_text() -> str:
    """Return the document as the text of its file."""
    return yaml_text(openapi_document())


def _operation(pattern: str, operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"summary": operation.summary, "parameters": _parameters(pattern, operation)}
    if operation.body is not None:
        content = {"application/json": {"schema": ref(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    errors = {
        str(status): _ref("responses", _error_name(operation.error, status))
        for status in sorted(operation.statuses)
        if status >= 400
    }
    return {**described, "responses": {"200": _answer(operation), **errors}}


def _parameters(pattern: str, operation: Operation) -> list[Mapping[str, Any]]:
    path = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    queries = [_query_parameter(name) for name in operation.query]
    headers = [_ref("parameters", name) for name in operation.headers]
    return [*([path] if "{id" in pattern else []), *queries, *headers]


def _query_parameter(name: str) -> Mapping[str, Any]:
    query = QUERIES[name]
    return {"name": name, "in": "query", "description": query.about, "schema": query.schema}


def _header_parameter(name: str) -> Mapping[str, Any]:
    header = HEADERS[name]
    return {"name": name, "in": "header", "description": header.about, "schema": header.schema}


def _answer(operation: Operation) -> Schema:
    content: dict[str, Any] = {"application/json": {"schema": ref(operation.answer)}}
    if operation.chunk is not None:  # before OpenAPI 3.2, the schema of a stream is that of each event
        is_events = operation.media_type == "text/event-stream"
        schema = event_of(operation.chunk, operation.error) if is_events else {"type": "string"}
        content[operation.media_type] = {"schema": schema}
    names = ["X-Request-Id"]
    names += ["X-TL-Ignored"] if operation.body is not None else []
    names += ["X-TL-Seed"] if operation.chunk is not None else []
    return {"description": STATUSES[200], "headers": _header_refs(names), "content": content}


def _error(kind: str, status: int) -> Schema:
    names = ["X-Request-Id", *(["Retry-After"] if status in RETRIED else [])]
    content = {"application/json": {"schema": ref(kind)}}
    return {"description": STATUSES[status], "headers": _header_refs(names), "content": content}


def _error_name(kind: str, status: int) -> str:
    return f"{kind}{status}"


def _header_refs(names: Iterable[str]) -> Mapping[str, Schema]:
    return {name: _ref("headers", name) for name in names}


def _answer_header(name: str) -> Schema:
    kind = "integer" if name in ("Retry-After", "X-TL-Seed") else "string"
    required = {"required": True} if name in ("X-Request-Id", "Retry-After") else {}
    return {"description": ANSWER_HEADERS[name], **required, "schema": {"type": kind}}


def _ref(kind: str, name: str) -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}
