"""Requests for approval: calls of tools that wait for the consent of a person, and the decisions. Pure.

A tool use asks if its `provider_meta` has the key "approval" without a decision:

    {"approval": {"id": …}}                                         it asks; `id` is optional, some front ends need it
    {"approval": {"id": …, "approved": true, "reason": …, "by": …}} it was decided
    {"approval": {"resumes": true}}                                 the framework that asks adds the result of a denial

Opaque requests of a provider, such as `mcp_approval_request`, open a pair whose id begins with "approval/", and a
response of the provider answers it: see redis_history.formats.approvals, which also writes decisions.

A request is *open* from the change that stores it, unless its message is a live reply: then from the end of the reply.
It is closed by a decision, by a result of the call, and by the removal of its message. No compaction takes a call that
lacks a result. Forks, imports and restored messages have the open requests that their messages have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from redis_history.values.message import Position
from redis_history.values.pairing import pairing
from redis_history.values.parts import Part, ToolUsePart, UnknownPart

__all__ = ["Approval"]

#: The key of `provider_meta` of a tool use that asks for approval.
APPROVAL: Final = "approval"
#: The key that says that the framework that asks adds the result of a denied call itself.
RESUMES: Final = "resumes"
#: How the ids of the pairs of opaque requests begin.
OPAQUE: Final = "approval/"


class Approval(Struct, frozen=True, kw_only=True):
    """A request for approval of a tool call in `conversation_id`, and the decision.

    `call_id` is the id of the call, or of an opaque request such as `mcp_approval_request`; `message_id` is the message
    with it, and `requested_at` the time of that message. `tool_name` and `input` are those of the call, `user_id` and
    `agent_name` those of the conversation. `approved` is None while the request is open. `reason` is for the model,
    `by` says who decided. `duplicate`: an earlier call of `decide` has decided.
    """

    conversation_id: str
    call_id: str
    message_id: str
    requested_at: datetime
    tool_name: str | None = None
    input: Any = None
    user_id: int | str | None = None
    agent_name: str | None = None
    approved: bool | None = None
    reason: str | None = None
    by: str | None = None
    duplicate: bool = False


def approval_in(part: Part) -> Mapping[str, Any] | None:
    """The request for approval of a tool use, with the decision if there is one; None: it does not need approval."""
    if type(part) is not ToolUsePart or part.provider_meta is None:
        return None
    found = part.provider_meta.get(APPROVAL)
    return found if isinstance(found, Mapping) else None


def asking(part: ToolUsePart, approval: Mapping[str, Any] | None = None) -> ToolUsePart:
    """The tool use with a request for approval."""
    return replace(part, provider_meta={**(part.provider_meta or {}), APPROVAL: dict(approval or {})})


def request_of(part: Part) -> str | None:
    """The id of the call that a part makes and that needs approval, decided or not; None: it needs none."""
    if type(part) is ToolUsePart:
        return part.id if approval_in(part) is not None else None
    if type(part) is UnknownPart:
        opens = pairing(part).opens
        return opens[-1].removeprefix(OPAQUE) if opens and opens[-1].startswith(OPAQUE) else None
    return None


def names_of(part: Part) -> tuple[str, ...]:
    """The ids by which a decision may name a request: that of the call, and that of the request if it has its own."""
    call_id, own = request_of(part), (approval_in(part) or {}).get("id")
    return () if call_id is None else (call_id, own) if isinstance(own, str) else (call_id,)


def asks(part: Part) -> bool:
    """Whether a person has yet to decide on a part, as far as the part says."""
    if type(part) is ToolUsePart:
        found = approval_in(part)
        return found is not None and type(found.get("approved")) is not bool
    return type(part) is UnknownPart and request_of(part) is not None


def may_ask(tools: bytes) -> bool:
    """Whether a message with these marks may ask for approval. Digests may have the same bytes."""
    return b"w" in tools or b"W" in tools


#: The newest open requests of a conversation that are listed.
MOST_OPEN: Final = 1000


class OpenRequest(Struct, array_like=True):
    """A request in the index of its conversation: the id of its message, the digests of the call and of the agent, and
    the time and the sequence of the message."""

    message: str
    mark: bytes
    timestamp: int
    sequence: int

    def stored(self, field: bytes) -> bytes:
        """As lua/_approvals.lua has it, with the field of its message."""
        place = self.timestamp.to_bytes(7, "big", signed=True) + self.sequence.to_bytes(6, "big")
        return field + bytes((len(self.mark),)) + self.mark + place


def note_requests(
    requests: list[OpenRequest], message: str, tools: bytes, position: Position, former: bytes | None = None
) -> None:
    """Add the requests of a message, by its marks (see `values.pairs.marks`), and remove those that it answers.
    `former`: the marks of the content that it had before. Those requests have been noted, and may have been answered
    since. lua/_approvals.lua does the same."""
    known = set(_marks(former or b""))
    if former is not None:
        kept = {mark for kind, mark in _marks(tools) if kind in b"wW"}
        requests[:] = [one for one in requests if one.message != message or one.mark in kept]
    for kind, mark in _marks(tools):
        if (kind, mark) in known:
            continue
        if kind in b"wW":
            requests.append(OpenRequest(message, mark, *position))
        elif kind in b"rR":
            _close(requests, mark)
    del requests[:-MOST_OPEN]


def _marks(tools: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 1 if tools[:1] == b"p" else 0
    while at < len(tools):
        kind = tools[at : at + 1]
        end = at + (9 if kind.isupper() else 5)
        yield kind, tools[at + 1 : end]
        at = end


def _close(requests: list[OpenRequest], mark: bytes) -> None:
    """Remove the latest request of this call and agent, or else of this call."""
    for length in (len(mark), 4):
        for at in range(len(requests) - 1, -1, -1):
            own = requests[at].mark
            if own == mark or (length == 4 and own[:4] == mark[:4]):
                del requests[at]
                return
