"""Decisions on requests for approval, in the form that the next request to each provider needs.

A denied tool use gets its result in the same message, which says so: models of all providers read it. Frameworks that
resume an interrupted run add it themselves. An opaque request of a provider gets the response of that provider behind
it.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from redis_history.formats._content import parse_arguments
from redis_history.formats._marks import pair_of
from redis_history.formats._notes import foreign_block, opaque, stored_value
from redis_history.values import Message, ToolResultPart, ToolUsePart, UnknownPart
from redis_history.values.approvals import APPROVAL, OPAQUE, RESUMES, approval_in, asks, names_of, request_of
from redis_history.values.pairing import PAIR, pairing


def denial(reason: object) -> str:
    """The text that the model reads about a call that a person denied."""
    return (
        f"The user denied this call: {reason}" if isinstance(reason, str) and reason else "The user denied this call."
    )


def denied(call: ToolUsePart, reason: object) -> ToolResultPart:
    """The result of a call that a person denied."""
    return ToolResultPart(tool_use_id=call.id, content=denial(reason), is_error=True, name=call.name)


def with_decision(message: Message, call_id: str, said: dict[str, Any]) -> Message:
    """The message with a decision on its request for approval of this call, which is open. `said`: `approved`,
    `decision`, which differs for each caller, and maybe `reason` and `by`."""
    at = max(at for at, part in enumerate(message.parts) if asks(part) and call_id in names_of(part))
    part, parts = message.parts[at], list(message.parts)
    if isinstance(part, ToolUsePart):
        request = approval_in(part) or {}
        parts[at] = replace(part, provider_meta={**(part.provider_meta or {}), APPROVAL: {**request, **said}})
        if not said["approved"] and not request.get(RESUMES):
            parts.append(denied(part, said.get("reason")))
    elif isinstance(part, UnknownPart):
        parts.insert(at + 1, _response(part, request_of(part) or "", said))
    return replace(message, parts=tuple(parts))


def _response(request: UnknownPart, call_id: str, said: dict[str, Any]) -> UnknownPart:
    """The response to an opaque request, in the form of its provider."""
    form, _, kind = request.type.partition("/")
    block = foreign_block(form, request) or {}
    reason = {"reason": said["reason"]} if "reason" in said else {}
    response: dict[str, Any]
    if kind == "function_approval_request":  # Microsoft Agent Framework
        response = {**block, "type": "function_approval_response", "id": call_id, "approved": said["approved"]}
    else:
        response = {"type": "mcp_approval_response", "approval_request_id": call_id, "approve": said["approved"]}
        response |= reason
    part = opaque(form, response)
    return replace(part, data={**part.data, PAIR: pair_of(response), APPROVAL: said})


def response_in(message: Message, call_id: str) -> dict[str, Any] | None:
    """The decision on an opaque request in a message, with the keys `approved`, `reason` and `by`; None without one."""
    for part in message.parts:
        if isinstance(part, UnknownPart) and pairing(part).answers[:1] == (OPAQUE + call_id,):
            block = foreign_block(part.type.partition("/")[0], part)
            given = block if isinstance(block, dict) else {}
            said = part.data.get(APPROVAL)
            return {
                "approved": given.get("approve", given.get("approved")),
                "reason": given.get("reason"),
                **(said if isinstance(said, dict) else {}),
            }
    return None


def call_in(request: UnknownPart) -> tuple[str | None, Any]:
    """The name and the arguments of the tool in an opaque request."""
    block = foreign_block(request.type.partition("/")[0], request)
    if not isinstance(block, dict):
        return None, None
    call = block.get("function_call")
    call = call if isinstance(call, dict) else block
    name, arguments = call.get("name"), call.get("arguments")
    if isinstance(arguments, str):
        arguments = parse_arguments(arguments)[0]
    return name if isinstance(name, str) else None, stored_value(arguments)[0]
