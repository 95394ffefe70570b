"""The OpenAPI document of the HTTP interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_args

from redis_history._version import __version__
from redis_history.values import Role, Status
from redis_history.values.events import ResetReason
from redis_history.values.runs import RunStatus
from redis_history.values.turns import TurnStatus

_TYPES: Final[dict[str, dict[str, Any]]] = {
    "text": {"type": "string"},
    "text?": {"type": ["string", "null"]},
    "count": {"type": "integer", "minimum": 0},
    "count?": {"type": ["integer", "null"]},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "number?": {"type": ["number", "null"]},
    "boolean": {"type": "boolean"},
    "boolean?": {"type": ["boolean", "null"]},
    "any": {},
    "object": {"type": "object"},
    "object?": {"type": ["object", "null"]},
    "flag": {"type": "string", "enum": ["1", "0"]},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000},
    "position": {"type": "string", "description": "`microseconds.sequence`"},
    "day": {"type": "string", "format": "date", "description": "a day in UTC"},
    "group": {"type": "string", "enum": ["day", "agent"]},
    "page": {"type": "string", "description": "`next` of the page before"},
    "cursor": {"type": "string", "description": "a cursor"},
    "owner": {"type": ["string", "integer", "null"]},
    "role": {"type": "string", "enum": list(get_args(Role))},
    "status": {"type": "string", "enum": list(get_args(Status))},
    "run_status": {"type": "string", "enum": list(get_args(RunStatus))},
    "turn_status": {"type": "string", "enum": list(get_args(TurnStatus))},
    "reason": {
        "type": "string",
        "enum": [*get_args(ResetReason), "change_too_large", "cursor_invalid", "summary_gone"],
    },
}


def _schema(kind: str) -> dict[str, Any]:
    """The schema of a type, `[type]` for a list, or `Name` or `Name?` of an object."""
    if kind.startswith("["):
        return {"type": "array", "items": _schema(kind[1:-1])}
    if kind in _TYPES:
        return _TYPES[kind]
    reference = {"$ref": f"#/components/schemas/{kind.rstrip('?')}"}
    return {"oneOf": [reference, {"type": "null"}]} if kind.endswith("?") else reference


def _fields(names: str) -> dict[str, dict[str, Any]]:
    """The schemas of fields by their names: `name` is a text, `name?` may be null, `name:type` has another type."""
    fields = {}
    for field in names.split():
        name, _, kind = field.partition(":")
        fields[name.rstrip("?")] = _schema(kind or ("text?" if name.endswith("?") else "text"))
    return fields


def _object(required: str, optional: str = "", **more: Any) -> dict[str, Any]:
    fields = _fields(required)
    return {"type": "object", "required": [*fields], "properties": fields | _fields(optional), **more}


_APPROVAL: Final = (
    "conversation call message requested_at tool_name? input:any user_id:owner agent_name? approved:boolean? reason? "
    "by?"
)
_SCHEMAS: Final = {
    "Any": {},
    "Problem": _object("type title status:integer detail code"),
    "Status": _object(
        "version namespace address? read_only:boolean capabilities:object summary_prefix sign_in? prices:object"
    ),
    "Rights": _object("rights:[text]"),
    "Image": {"type": "string", "format": "binary"},
    "Conversation": _object(
        "id title? user_id:owner agent_name? auditing_id:owner message_count:count characters:count "
        "estimated_tokens:count usage:Usage? "
        "created_at? updated_at? first_message_at? last_message_at? revision:count metadata:object forked_from:Origin?",
        "cursor last:object? label metadata_cut:count",
    ),
    "Origin": _object("conversation_id revision:count message_id?"),
    "Erased": _object("conversations:count"),
    "Part": _object("type", "cut:count images:[count]", description="a part; of an unknown one, its `data`"),
    "Participant": _object("kind id", "display_name?"),
    "Message": _object(
        "id role:role parts:[Part] position? text is_summary:boolean estimated_tokens:count timestamp? metadata:object "
        "participant:Participant? scope? trace_id? sequence:count? sources:[object] status:status usage:Usage?",
        "metadata_cut:count sources_cut:count reply:Reply",
    ),
    "Usage": _object("input_tokens:count output_tokens:count cached_tokens:count cost:number model?"),
    "Totals": _object("usage:Usage groups:[Group]", "budget:Budget?"),
    "Group": _object("name usage:Usage"),
    "Budget": _object(
        "user_id:owner tokens:count? cost:number? period used:Usage running:count resets_at? exhausted:boolean"
    ),
    "Reply": _object("", "model input_tokens:count output_tokens:count cost:number"),
    "Conversations": _object("conversations:[Conversation] next? total:count?"),
    "Messages": _object("messages:[Message] more:boolean", "cursor? before?"),
    "Appended": _object("revision:count message:Message duplicate:boolean"),
    "Run": _object("run_id agent_name? status:run_status started_at ended_at? stop_reason? waiting:[Waiting]"),
    "Turn": _object(
        "conversation status:turn_status asked_at due_at agent_name? user_id:owner attempt:count error? failed_at? "
        "message_ids:[text] run_id?"
    ),
    "Turns": _object("turns:[Turn]"),
    "Changed": _object("changed:boolean"),
    "Waiting": _object("run_id agent_name? since"),
    "CurrentRun": _object("run:Run?"),
    "Stopping": _object("stopping:boolean"),
    "Expanded": _object("revision:count count:count"),
    "Hit": _object("conversation message:Message score:number archived:boolean highlights:[object]"),
    "Hits": _object("hits:[Hit] total:count incomplete?"),
    "Approval": _object(_APPROVAL, "input_cut:count"),
    "OpenApproval": _object(f"{_APPROVAL} may_decide:boolean", "input_cut:count"),
    "Approvals": _object("approvals:[OpenApproval]"),
    "Decided": _object(f"{_APPROVAL} duplicate:boolean", "input_cut:count"),
    "Event": _object(
        "conversation cursor revision:count",
        "messages:[Message] removed_ids:[text] message:Message ids:[text] summary:Message count:count through "
        "summary_id record:Conversation? reason:reason run:Run turns:[Turn]",
        description="the data of a server-sent event of a conversation",
    ),
}
_PARAMETERS: Final = _fields(
    "conversation message image user call limit:limit cursor:page user_id agent_name forked_from last:flag "
    "before:position since:position until:day by:group first:flag include_archived:flag after:cursor q role:role "
    "participant tool status:turn_status"
)
_BODY: Final = _fields(
    "text id role:role participant:Participant title? run_id? reason? through? pinned:boolean approved:boolean "
    "ask:boolean agent_name?"
)


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
    kind = {"Event": "text/event-stream", "Image": "application/octet-stream"}.get(schema, "application/json")
    done = {"description": "done", **({"content": {kind: {"schema": _schema(schema)}}} if schema else {})}
    statuses = ("201",) if name == "fork" else {"Appended": ("200", "201"), None: ("204",)}.get(schema, ("200",))
    responses = {
        **dict.fromkeys(statuses, done),
        "default": {"description": "an error", "content": {"application/problem+json": {"schema": _schema("Problem")}}},
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
        fields = {one: _BODY[one] for one in (*endpoint.fields, *endpoint.as_fields)}
        required = [one for one in fields if one in ("text", "title", "pinned")]
        body = {"type": "object", "required": required, "properties": fields, "additionalProperties": False}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation
