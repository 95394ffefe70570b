"""Approvals of frameworks that interrupt a run for them, and resume it with the decisions.

The framework itself adds the result of a denied call when it resumes the run, so `decide` must not: the request says
so, by the key RESUMES.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from redis_history.errors import ApprovalNotFoundError, RevisionConflictError
from redis_history.store.operations import Steps, change_message, take_snapshot
from redis_history.values import Message, ToolUsePart
from redis_history.values.approvals import RESUMES, approval_in, asking
from redis_history.values.pairs import open_calls

#: The newest messages, among which the calls of an interrupted run are.
_READ: Final = 200
_ATTEMPTS: Final = 50


def with_requests(messages: Iterable[Message], call_ids: Collection[str]) -> list[Message]:
    """The messages, in which these calls ask for approval."""
    found = []
    for message in messages:
        parts = tuple(
            asking(part, {RESUMES: True})
            if type(part) is ToolUsePart and part.id in call_ids and approval_in(part) is None
            else part
            for part in message.parts
        )
        found.append(message if parts == message.parts else replace(message, parts=parts))
    return found


def request_approvals(conversation_id: str, call_ids: Collection[str]) -> Steps[None]:
    """Make stored calls ask for approval. Raises ApprovalNotFoundError for a call without a result that is not among
    the newest messages."""
    for _ in range(_ATTEMPTS):
        page = yield from take_snapshot(conversation_id, _READ)
        waiting = {call.id: message for message, calls in open_calls(page.messages) for call in calls}
        if missing := [call_id for call_id in call_ids if call_id not in waiting]:
            raise ApprovalNotFoundError(
                f"conversation {conversation_id[:80]!r} has no open call {missing[0][:64]!r} among its newest "
                f"{_READ} messages: store the messages of the run before you ask for its approvals"
            )
        messages = {message.id: message for message in map(waiting.__getitem__, call_ids)}
        changed = [new for new in with_requests(messages.values(), call_ids) if new is not messages[new.id]]
        if not changed:
            return
        with suppress(RevisionConflictError):  # read again
            yield from change_message(conversation_id, changed[0], page.cursor.revision)
    raise RevisionConflictError(
        f"conversation {conversation_id[:80]!r} keeps changing: ask for the approvals again",
        current_revision=page.cursor.revision,
    )


def decisions(conversation_id: str) -> Steps[dict[str, Mapping[str, Any]] | None]:
    """The decisions on the calls without a result that ask for approval, by call; None while one of them waits, or
    without such calls. A decision has `approved`, and maybe `reason` and `by`."""
    page = yield from take_snapshot(conversation_id, _READ)
    asked = [(call.id, approval_in(call)) for _, calls in open_calls(page.messages) for call in calls]
    found = {call_id: approval for call_id, approval in asked if approval is not None}
    if not found or any(type(one.get("approved")) is not bool for one in found.values()):
        return None
    return found


def reason_of(decision: Mapping[str, Any]) -> str | None:
    """The reason for the model."""
    reason = decision.get("reason")
    return reason if isinstance(reason, str) and reason else None
