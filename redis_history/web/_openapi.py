"""The OpenAPI document of the HTTP interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from redis_history._version import __version__
from redis_history.events import ResetReason
from redis_history.model import Role, Status

_TEXT: Final = {"type": "string"}
_MAYBE: Final = {"type": ["string", "null"]}
_COUNT: Final = {"type": "integer", "minimum": 0}
_FLAG: Final = {"type": "string", "enum": ["1", "0"]}
_ROLE: Final = {"type": "string", "enum": list(get_args(Role))}
_STATUS: Final = {"type": "string", "enum": list(get_args(Status))}
_POSITION: Final = {"type": "string", "description": "`microseconds.sequence`"}


def _list(of: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _object(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": [*required], "properties": {**required, **optional}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_OWNER: Final = {"type": ["string", "integer", "null"]}
_PARTICIPANT: Final = _object({"kind": _TEXT, "id": _TEXT}, display_name=_MAYBE)
_CONVERSATION: Final = {
    "id": _TEXT, "title": _MAYBE, "user_id": _OWNER, "agent_name": _MAYBE, "auditing_id": _OWNER,
    "message_count": _COUNT, "characters": _COUNT, "tokens": _COUNT,
    "created_at": _MAYBE, "updated_at": _MAYBE, "first_message_at": _MAYBE, "last_message_at": _MAYBE,
    "revision": _COUNT, "metadata": {"type": "object"},
}  # fmt: skip
_SCHEMAS: Final = {
    "Any": {},
    "Problem": _object({"type": _TEXT, "title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT, "code": _TEXT}),
    "Status": _object({
        "version": _TEXT, "namespace": _TEXT, "address": _MAYBE, "read_only": {"type": "boolean"},
        "capabilities": {"type": "object"}, "summary_prefix": _TEXT,
    }),
    "Conversation": _object(
        _CONVERSATION, cursor=_TEXT, last={"type": ["object", "null"]}, label=_TEXT, metadata_cut=_COUNT
    ),
    "Part": {**_object({"type": _TEXT}, cut=_COUNT), "description": "a part; of an unknown one, its `data`"},
    "Message": _object({
        "id": _TEXT, "role": _ROLE, "parts": _list(_ref("Part")), "position": _MAYBE, "text": _TEXT,
        "is_summary": {"type": "boolean"}, "tokens": _COUNT, "timestamp": _MAYBE, "metadata": {"type": "object"},
        "participant": {"oneOf": [_PARTICIPANT, {"type": "null"}]}, "scope": _MAYBE, "trace_id": _MAYBE,
        "sequence": {"type": ["integer", "null"]}, "sources": _list({"type": "object"}), "status": _STATUS,
    }, metadata_cut=_COUNT, sources_cut=_COUNT, reply=_ref("Reply")),
    "Reply": _object({}, model=_TEXT, input_tokens=_COUNT, output_tokens=_COUNT, cost={"type": "number"}),
    "Conversations": _object({
        "conversations": _list(_ref("Conversation")), "next": _MAYBE, "total": {"type": ["integer", "null"]},
    }),
    "Messages": _object(
        {"messages": _list(_ref("Message")), "more": {"type": "boolean"}}, cursor=_MAYBE, before=_MAYBE
    ),
    "Appended": _object({"revision": _COUNT, "message": _ref("Message"), "duplicate": {"type": "boolean"}}),
    "Expanded": _object({"revision": _COUNT, "count": _COUNT}),
    "Hits": _object({"hits": _list(_object({
        "conversation": _TEXT, "message": _ref("Message"), "score": {"type": "number"}, "archived": {"type": "boolean"},
        "highlights": _list({"type": "object"}),
    })), "total": _COUNT}),
    "Event": {**_object(
        {"conversation": _TEXT, "cursor": _TEXT, "revision": _COUNT},
        messages=_list(_ref("Message")), removed_ids=_list(_TEXT), message=_ref("Message"),
        ids=_list(_TEXT), summary=_ref("Message"), count=_COUNT, through=_TEXT, summary_id=_TEXT,
        record={"oneOf": [_ref("Conversation"), {"type": "null"}]},
        reason={
            "type": "string",
            "enum": [*get_args(ResetReason), "change_too_large", "cursor_invalid", "summary_gone"],
        },
    ), "description": "the data of a server-sent event of a conversation"},
}  # fmt: skip
_PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "conversation": _TEXT, "message": _TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
    "cursor": {**_TEXT, "description": "`next` of the page before"}, "user_id": _TEXT, "agent_name": _TEXT,
    "last": _FLAG, "before": _POSITION, "since": _POSITION, "first": _FLAG, "include_archived": _FLAG,
    "after": {**_TEXT, "description": "a cursor"}, "q": _TEXT, "role": _ROLE, "participant": _TEXT, "tool": _TEXT,
}  # fmt: skip
_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "text": _TEXT, "id": _TEXT, "role": _ROLE, "participant": _PARTICIPANT, "title": _MAYBE,
}  # fmt: skip


def document(api: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The document of these endpoints, by path and method."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "redis_history", "version": __version__},
        "paths": {
            path: {method.lower(): _operation(path, method, endpoint) for method, endpoint in endpoints.items()}
            for path, endpoints in api.items()
        },
        "components": {"schemas": _SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation(path: str, method: str, endpoint: Any) -> dict[str, Any]:
    name, schema = endpoint.run.__name__, endpoint.answer
    ids = [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
    kind = "text/event-stream" if schema == "Event" else "application/json"
    done = {"description": "done", **({"content": {kind: {"schema": _ref(schema)}}} if schema else {})}
    statuses = {"Appended": ("200", "201"), None: ("204",)}.get(schema, ("200",))
    responses = {
        **dict.fromkeys(statuses, done),
        "default": {"description": "an error", "content": {"application/problem+json": {"schema": _ref("Problem")}}},
    }
    if name in ("conversation", "messages"):  # their answers have an ETag
        responses["304"] = {"description": "done"}
    operation = {
        "operationId": name if ids or name != "events" else "list_events",
        "parameters": [
            *({"name": one, "in": "path", "required": True, "schema": _PARAMETERS[one]} for one in ids),
            *({"name": one, "in": "query", "schema": _PARAMETERS[one]} for one in endpoint.parameters),
        ],
        "responses": responses,
    }
    if method in ("POST", "PATCH"):
        fields = {one: _FIELDS[one] for one in (*endpoint.fields, *endpoint.as_fields)}
        required = [one for one in fields if one in ("text", "title")]
        body = {"type": "object", "required": required, "properties": fields, "additionalProperties": False}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
