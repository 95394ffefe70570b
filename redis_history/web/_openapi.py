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
_ANY: Final[dict[str, Any]] = {}
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
#: The successful answers of an endpoint, by the name of its function: the statuses, and the schema of the body.
_ANSWERS: Final[dict[str, tuple[tuple[int, ...], str | None]]] = {
    "status": ((200,), "Status"), "conversations": ((200,), "Conversations"), "openapi": ((200,), "Any"),
    "conversation": ((200, 304), "Conversation"), "update_conversation": ((200,), "Conversation"),
    "delete_conversation": ((204,), None), "messages": ((200, 304), "Messages"), "append": ((200, 201), "Appended"),
    "message": ((200,), "Message"), "delete_message": ((204,), None), "originals": ((200,), "Messages"),
    "expand": ((200,), "Expanded"), "events": ((200,), "Event"), "search": ((200,), "Hits"),
}  # fmt: skip


def document(api: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The document of these endpoints, by path and method."""
    paths = {
        path: {method.lower(): _operation(path, method, endpoint) for method, endpoint in by.items()}
        for path, by in api.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "redis_history", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**_SCHEMAS, "Any": _ANY},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(path: str, method: str, endpoint: Any) -> dict[str, Any]:
    name = endpoint.run.__name__
    statuses, schema = _ANSWERS[name]
    kind = "text/event-stream" if name == "events" else "application/json"
    body = {} if schema is None else {"content": {kind: {"schema": _ref(schema)}}}
    answers = {str(one): {"description": "done", **({} if one == 304 else body)} for one in statuses}
    problem = {"application/problem+json": {"schema": _ref("Problem")}}
    inside = [one[1:-1] for one in path.split("/") if one.startswith("{")]
    parameters = [{"name": one, "in": "path", "required": True, "schema": _PARAMETERS[one]} for one in inside]
    parameters += [{"name": one, "in": "query", "schema": _PARAMETERS[one]} for one in endpoint.parameters]
    operation = {
        "operationId": name if inside or name != "events" else "list_events",
        "parameters": parameters,
        "responses": {**answers, "default": {"description": "an error", "content": problem}},
    }
    if method in ("POST", "PATCH"):
        fields = (*endpoint.fields, *endpoint.as_fields)
        schema_of_body = {
            **_object({one: _FIELDS[one] for one in fields if one in ("text", "title")}),
            "additionalProperties": False,
        }
        schema_of_body["properties"] = {one: _FIELDS[one] for one in fields}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema_of_body}}}
    return operation
