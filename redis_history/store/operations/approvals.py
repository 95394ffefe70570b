"""Requests for approval of all conversations, those of one conversation, and the search for one by its call."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple, cast

from msgspec import Struct
from msgspec.structs import replace

from redis_history.errors import ApprovalNotFoundError, InvalidInputError
from redis_history.store.memory.space import Space
from redis_history.store.operations.base import (
    MAX_BY,
    Call,
    OnConversation,
    Op,
    Steps,
    Upkeep,
    as_is,
    once,
    read,
    readable,
)
from redis_history.store.operations.contents import with_contents
from redis_history.store.operations.keys import Keyspace
from redis_history.store.operations.listing import AscendingBucket, has_more, merged, refill
from redis_history.store.operations.page import ReadPage, next_page
from redis_history.store.operations.record import decode_value
from redis_history.store.operations.scripts import load_script
from redis_history.store.operations.settings import Settings
from redis_history.store.operations.update import Decides, UpdateMessage
from redis_history.values import Message, ToolUsePart, UnknownPart
from redis_history.values._validation import check_name, refuse
from redis_history.values.approvals import Approval, approval_in, asks, names_of, request_of
from redis_history.values.ids import check_conversation_id, new_token
from redis_history.values.pairing import pairing
from redis_history.values.pairs import digest_of_call

REQUESTS: Final = load_script("requests", "_member", "_locate", "_requests", keys="state messages")
UNLIST: Final = load_script("unlist", args="*names", keys="list *states")

_logger = logging.getLogger("redis_history")

#: Conversations read together.
_CHUNK: Final = 200
#: Messages on the way back to a decided request, and pages of them.
_PAGE: Final = 100
_PAGES: Final = 20
#: Characters of a reason.
MAX_REASON: Final = 1000


class Decision(Struct, frozen=True):
    """A decision on a request. `token` differs for each caller, so that no two store the same message."""

    approved: bool
    reason: str | None
    by: str | None
    token: str

    @classmethod
    def of(cls, approved: bool, reason: str | None, by: str | None) -> Decision:
        """Raises InvalidInputError."""
        if type(approved) is not bool:
            refuse(approved, "approved", "True or False", InvalidInputError)
        for name, value, most in (("reason", reason, MAX_REASON), ("by", by, MAX_BY)):
            check_name(value, name)
            if value is not None and not 0 < len(value) <= most:
                refuse(value, name, f"None or a str of 1 to {most:,} characters", InvalidInputError)
        return cls(approved, reason, by, new_token())

    def noted(self) -> dict[str, Any]:
        """As the message has it."""
        given = {"approved": self.approved, "reason": self.reason, "by": self.by, "decision": self.token}
        return {key: value for key, value in given.items() if value is not None}


class Open(Struct, frozen=True):
    """A request: its message, the revision of the content of this message (0: it was decided), the request, the ids
    that name it, and the digest of its call."""

    message: Message
    changed: int
    approval: Approval
    names: tuple[str, ...] = ()
    mark: bytes = b""

    def decided(self, call_id: str, decision: Decision) -> UpdateMessage:
        """The write of a decision, which has no effect if the message has changed since."""
        from redis_history.formats.approvals import with_decision

        message = with_decision(self.message, call_id, decision.noted())
        op = UpdateMessage.of(self.approval.conversation_id, message)
        return replace(op, decides=Decides(self.changed, self.mark), by=decision.by)

    def with_decision(self, decision: Decision) -> Approval:
        return replace(self.approval, approved=decision.approved, reason=decision.reason, by=decision.by)


class OpenOf(Struct, frozen=True):
    """The open requests of a conversation, oldest first, and its owner and agent."""

    user_id: int | str | None
    agent_name: str | None
    requests: list[Open]


class _Found(NamedTuple):
    """A message with an open request, the revision of its content, and the digests of the call."""

    changed: int
    message: Message
    mark: bytes


class _FoundIn(NamedTuple):
    """Owner and agent of a conversation, and what was found, without large contents."""

    owner: tuple[Any, Any]
    requests: list[_Found]


class ReadOpen(OnConversation, Op[OpenOf], frozen=True):
    """Read the open requests of a conversation."""

    def call(self, settings: Settings) -> Call:
        keys = settings.keyspace.conversation(self.conversation_id)
        return Call(REQUESTS, (keys.state, keys.messages), [], _found_in)

    def steps(self, settings: Settings) -> Steps[OpenOf]:
        found = yield from read(self.call(settings), settings)
        return (yield from self.whole(found, settings))

    def whole(self, found: _FoundIn, settings: Settings) -> Steps[OpenOf]:
        """The requests, with the large contents of their messages. A message that was changed since is as it is now, so
        that a decision on its former content has no effect."""
        messages = yield from with_contents(self.conversation_id, [one.message for one in found.requests], settings)
        requests: list[Open] = []
        for one, message in zip(found.requests, messages, strict=True):
            if message is not None:
                requests += _requests_in(self.conversation_id, message, one.changed, one.mark, found.owner)
        return OpenOf(*found.owner, requests)

    def apply(self, space: Space) -> OpenOf:
        conversation = space.find(self.conversation_id)
        if conversation is None:
            return OpenOf(None, None, [])
        owner = conversation.record.get("user_id"), conversation.record.get("agent_name")
        found: list[Open] = []
        for one in conversation.requests:
            stored = conversation.stored.get(one.message)
            if stored is not None and one.message not in conversation.archived:
                message = conversation.message(one.message)
                found += _requests_in(self.conversation_id, message, stored.revision, one.mark, owner)
        return OpenOf(*owner, found)


def _found_in(reply: list[Any]) -> _FoundIn:
    user_id, agent_name, *rest = reply
    owner = decode_value(user_id) if user_id else None, decode_value(agent_name) if agent_name else None
    found = []
    for at in range(0, len(rest), 3):
        message = readable(rest[at + 1])
        if message is not None:
            found.append(_Found(rest[at], message, rest[at + 2]))
    return _FoundIn(owner, found)


def _requests_in(conversation_id: str, message: Message, changed: int, mark: bytes, owner: Any) -> Iterator[Open]:
    """The request with this mark in a message."""
    for part in reversed(message.parts):
        if asks(part) and digest_of_call(pairing(part).opens[-1]) == mark[:4]:
            yield Open(message, changed, _approval(conversation_id, message, part, owner), names_of(part), mark[:4])
            return


def _approval(conversation_id: str, message: Message, part: Any, owner: Any) -> Approval:
    name, arguments = None, None
    if isinstance(part, ToolUsePart):
        name, arguments = part.name, part.input
    elif isinstance(part, UnknownPart):
        from redis_history.formats.approvals import call_in  # formats take long to import

        name, arguments = call_in(part)
    return Approval(
        conversation_id=conversation_id,
        call_id=request_of(part) or "",
        message_id=message.id,
        requested_at=cast(datetime, message.timestamp),
        tool_name=name,
        input=arguments,
        user_id=owner[0],
        agent_name=owner[1],
        **_decision_in(approval_in(part) or {}),
    )


class ListApprovals(Struct, Op[list[Approval]], frozen=True, kw_only=True):
    """The open requests, the oldest first: of all conversations, of an owner, of an agent, or of both."""

    user_id: int | str | None = None
    agent_name: str | None = None
    limit: int

    def has(self, found: OpenOf) -> bool:
        return self.user_id in (None, found.user_id) and self.agent_name in (None, found.agent_name)

    def steps(self, settings: Settings) -> Steps[list[Approval]]:
        """Each conversation is listed by its oldest request, so those of the first `limit` conversations have the
        first `limit` requests."""
        buckets = [AscendingBucket(key) for key in settings.keyspace.approvals(self.user_id, self.agent_name)]
        found: list[Approval] = []
        seen: set[bytes] = set()
        stale: list[Call] = []
        conversations, count = 0, max(8, self.limit // 16)
        while conversations < self.limit and has_more(buckets):
            yield from refill(buckets, count)
            count = min(2 * count, _CHUNK)
            items = [item for item in merged(buckets) if item[1] not in seen]
            seen.update(name for _, name, _ in items)
            start = 0
            while start < len(items) and conversations < self.limit:
                size = min(_CHUNK, self.limit - conversations)
                of_conversations = yield from self._read(items[start : start + size], stale, settings)
                start += size
                conversations += len(of_conversations)
                found += chain.from_iterable(of_conversations)
        if stale:  # expired conversations, or a former owner's
            yield Upkeep(once(stale))
        return _oldest(found, self.limit)

    def _read(
        self, items: list[tuple[float, bytes, bytes]], stale: list[Call], settings: Settings
    ) -> Steps[list[list[Approval]]]:
        """The requests of each conversation of the items that has matching ones. `stale` gets the calls that unlist the
        others."""
        named = [(name, key, conversation_id) for _, name, key in items if (conversation_id := _id_of(name))]
        if not named:
            return []
        replies = yield [ReadOpen(conversation_id).call(settings) for _, _, conversation_id in named]
        found = []
        for (name, key, conversation_id), reply in zip(named, replies, strict=True):
            one = yield from ReadOpen(conversation_id).whole(reply, settings)
            if not one.requests or not self._lists(one):
                state = settings.keyspace.conversation(conversation_id).state
                stale.append(Call(UNLIST, (key, state), UNLIST.args(names=[name]), as_is))
            elif self.has(one):
                found.append([request.approval for request in one.requests])
        return found

    def _lists(self, found: OpenOf) -> bool:
        """Whether a conversation belongs in the list that was read."""
        if self.user_id is not None:
            return self.user_id == found.user_id
        return self.agent_name in (None, found.agent_name)

    def apply(self, space: Space) -> list[Approval]:
        found = [ReadOpen(name).apply(space) for name, one in list(space.conversations.items()) if one.requests]
        return _oldest([one.approval for own in found if self.has(own) for one in own.requests], self.limit)


def _id_of(name: bytes) -> str:
    conversation_id = Keyspace.name_to_id(name)
    if not conversation_id:
        _logger.error("a list of approvals leaves out %r, which is not the name of a conversation", name[:80])
    return conversation_id


def _oldest(found: list[Approval], limit: int) -> list[Approval]:
    return sorted(found, key=lambda one: (one.requested_at, one.conversation_id))[:limit]


def find_request(conversation_id: str, call_id: str) -> Steps[Open]:
    """Find the latest request for approval of a call: an open one, else a decided one among the newest messages.
    Yields operations. Raises ApprovalNotFoundError."""
    check_conversation_id(conversation_id)
    if not isinstance(call_id, str) or not call_id:
        refuse(call_id, "call_id", "the id of a tool call, a non-empty str", InvalidInputError)
    found = yield ReadOpen(conversation_id)
    for one in reversed(found.requests):
        if call_id in one.names:
            return one  # type: ignore[no-any-return]
    from redis_history.formats.approvals import response_in

    owner, closed, response = (found.user_id, found.agent_name), False, None
    op = ReadPage(conversation_id, _PAGE, newest=True)
    for _ in range(_PAGES):
        page = yield op
        for message in reversed(page.messages):
            response = response or response_in(message, call_id)
            for part in reversed(message.parts):
                if call_id not in names_of(part):
                    continue
                approval = _approval(conversation_id, message, part, owner)
                if approval.approved is None and response is not None and isinstance(part, UnknownPart):
                    approval = replace(approval, **_decision_in(response))
                if approval.approved is not None:
                    return Open(message, 0, approval)
                closed = True
        following = next_page(op, page, _PAGE)
        if following is None:
            break
        op = following
    why = "it has been answered without a decision" if closed else "its newest messages have no request for it"
    raise ApprovalNotFoundError(
        f"call {call_id[:64]!r} of conversation {conversation_id[:80]!r} waits for no approval: {why}"
    )


def _decision_in(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an Approval for a decision in a message."""
    approved = given.get("approved")
    texts = {name: value if isinstance(value := given.get(name), str) else None for name in ("reason", "by")}
    return {"approved": approved if type(approved) is bool else None, **texts}
