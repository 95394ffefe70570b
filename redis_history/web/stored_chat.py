"""Reads and changes of a conversation by the requests of its chat."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request

from redis_history.errors import ApprovalNotFoundError, ConversationExistsError, MessageNotFoundError
from redis_history.formats.vercel_ai import approval_of
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.operations import Append, Asking, ChangeTurns, FindMessage, ReadTogether
from redis_history.store.operations.base import MAX_BY
from redis_history.store.writes import Appended, Precondition
from redis_history.values import Conversation, Message, Participant, Position, ToolUsePart, tool
from redis_history.values.pairs import open_calls
from redis_history.web._answers import newest_messages
from redis_history.web._http import Refused, bad_input
from redis_history.web._questions import Question, runs_of, turn_of
from redis_history.web.access import Action, Guarded
from redis_history.web.client_messages import Asked
from redis_history.web.protocols import LISTED

#: The life and the owner of a conversation. None: it does not exist.
Identity = tuple[Any, ...] | None


class Rights:
    """The rights that a request has asked for, and the chats that it asked for them.

    `authorize` usually allows a chat that does not exist. Another user may create it before this request does anything,
    so rights apply to the conversation that existed when they were checked. For another one, they are checked again.
    """

    def __init__(self, guarded: Guarded, store: AsyncHistoryStore, http: Request) -> None:
        self._guarded, self._store, self._http = guarded, store, http
        self._known: dict[str, Identity] = {}
        self._asked: dict[str, list[Action]] = {}

    async def ask(self, chat: str, action: Action) -> None:
        """Raises Refused."""
        if chat not in self._known:
            self._known[chat] = _identity(await self._store.get_conversation(chat))
        await self._guarded.check(self._http, chat, action)
        self._asked.setdefault(chat, []).append(action)

    async def confirm(self, chat: str) -> Conversation | None:
        """Ask again if the chat is not the one for which the rights were asked. Returns its record. Raises Refused."""
        while True:
            record = await self._store.get_conversation(chat)
            if (now := _identity(record)) == self._known[chat]:
                return record
            self._known[chat] = now
            await self.ask_again(chat)

    async def ask_again(self, chat: str) -> None:
        """Raises Refused."""
        for action in self._asked[chat]:
            await self._guarded.check(self._http, chat, action)

    def identity(self, chat: str) -> Identity:
        """The chat for which the rights were asked."""
        return self._known[chat]

    def made(self, record: Conversation) -> None:
        """This request has created the conversation."""
        self._known[record.conversation_id] = _identity(record)


def _identity(record: Conversation | None) -> Identity:
    return None if record is None else (record.created_at, record.user_id)


class Kept(NamedTuple):
    """The outcome of storing a request: the `last` of its messages, and the `question` that it asks. None: a
    former request has stored everything, and asked with the message `asked_with`."""

    last: Message
    question: Question | None
    asked_with: Message


class StoredChat:
    """The conversations of a chat application. `client_tools`: the names of the tools that run in the browser. `size`:
    the bytes of messages that a request reads at most. `agent_name`: of the agent that is asked."""

    def __init__(
        self, store: AsyncHistoryStore, client_tools: Collection[str], size: int, agent_name: str | None
    ) -> None:
        self._store, self._client_tools, self._size = store, frozenset(client_tools), size
        self._agent_name = agent_name

    async def listed(self, chat: str) -> list[Message]:
        """Return the newest messages for a client. If older ones may exist, the list begins with a message of the user,
        because half an answer would have another id there than the whole answer."""
        found, is_cut = await newest_messages(self._store, chat, most=LISTED, size=self._size)
        first = next((at for at, one in enumerate(found) if one.role == "user"), 0) if is_cut else 0
        return found[first:]

    async def fork(self, asked: Asked, rights: Rights, kept: Message, user: Participant | None, fork: str) -> None:
        """Make the fork of a request, which is the user's."""
        await rights.confirm(asked.conversation_id)
        owner = UNSET if user is None else user.id
        rights.made(await self._store.fork(asked.conversation_id, fork, through=kept, user_id=owner))

    async def replaced(self, asked: Asked) -> Message | None:
        """The message of the user that is answered again or edited; None: it is new."""
        kept = await self._store.get_message(asked.conversation_id, asked.replaces) if asked.replaces else None
        if kept is None and asked.refusal is not None:
            raise asked.refusal
        if kept is None and (asked.fork is not None or not asked.messages):
            raise Refused(404, "not_found", f"there is no message {str(asked.replaces)[:64]!r} in this conversation")
        if kept is None:
            asked.replaces = None
        elif kept.role != "user" or kept.is_summary:
            raise bad_input("only the message of a user can be edited or answered again")
        elif asked.keep:
            asked.messages = ()
        elif await self._unknown(asked.conversation_id, asked.messages[:-1]):
            raise bad_input("a request that edits a message has no other new messages")
        elif self._new_results(asked, await self._lookup(asked)):
            raise bad_input("a request that edits a message has no new results of tools")
        return kept

    async def keep(self, asked: Asked, rights: Rights, user: Participant | None, record: Conversation | None) -> Kept:
        """Store what a request adds to the conversation with this record, if it exists, and ask for its answer."""
        chat = asked.conversation_id
        stored = await self._lookup(asked)
        added = self._new_results(asked, stored)
        authored = [replace(one, participant=user) for one in asked.messages]
        if asked.responses:
            added += await self._unknown(chat, authored)
        else:
            added += [*await self._unknown(chat, authored[:-1]), *authored[-1:]]
        given = _given(asked, stored)
        if given is None and not added:
            raise bad_input("the last message has no result of an open call, and no response to an open request")
        batch = Append.batch(chat, added, Precondition(must_exist=True))  # raises before anything is stored
        turn = await turn_of(self._store, chat, self._agent_name) if asked.responses else None
        former = runs_of(await self._store.get_run(chat)) if asked.responses else []
        is_new = await self._respond(asked, stored, user)
        if not added:
            assert given is not None  # noqa: S101
            if is_new and turn is not None and turn.status == "waiting":  # the decision has made it owed
                return Kept(given, Question.again(turn.message_ids[0], self._agent_name, former), given)
            return Kept(given, await self.ask_again(chat, given) if is_new else None, given)
        if record is None:
            await self._create(chat, rights, user)
        asking = Asking(self._agent_name, 0)  # by the first message, after which any run sees all of them
        outcomes: list[Appended] = await self._store._write(replace(batch.op, asking=asking))
        done = [outcomes[at] for at in batch.order]
        question = Question.of(done[0].message, self._agent_name)
        if all(one.duplicate for one in done):
            return Kept(
                done[-1].message, await self.ask_again(chat, given) if is_new and given else None, done[0].message
            )
        return Kept(done[-1].message, question, done[0].message)

    async def ask_again(self, chat: str, message: Message) -> Question:
        """Ask for another answer to a stored message."""
        runs = runs_of(await self._store.get_run(chat))
        turn = await turn_of(self._store, chat, self._agent_name)
        if turn is None or turn.status == "running" or message.id not in turn.message_ids:
            await self._store._write(ChangeTurns(chat, "open", self._agent_name, False, 0, (message.id,)))
        else:
            await self._store.retry_turn(chat, agent_name=self._agent_name)
        return Question.again(message.id, self._agent_name, runs)

    async def count_new(self, asked: Asked) -> int:
        """The number of messages and decisions that a request adds; 0: it repeats another one. Raises Refused if it
        brings a message that would be lost."""
        if asked.copy is not None and await self._store.get_message(asked.conversation_id, asked.copy) is None:
            raise bad_input("the last message is new: send it without the results or responses of an earlier message")
        stored = await self._lookup(asked)
        decided = sum(one["id"] in asked.responses and "approved" not in one for one in _requests_in(stored))
        unknown = await self._unknown(asked.conversation_id, asked.messages)
        return decided + len(self._new_results(asked, stored)) + len(unknown)

    async def last_of(self, asked: Asked) -> Message | None:
        """The last stored message of a request that adds nothing."""
        if asked.messages:
            return await self._store.get_message(asked.conversation_id, asked.messages[-1].id)
        return _given(asked, await self._lookup(asked))

    async def _unknown(self, chat: str, messages: Sequence[Message]) -> list[Message]:
        """Return the messages that are not stored. Front ends repeat unanswered messages; stored ones stay
        unchanged. Raises Refused for the id of a message that is not of a user."""
        reads = tuple(FindMessage(chat, one.id, "none") for one in messages)
        known = await self._store.backend.execute(ReadTogether(reads)) if reads else []
        if taken := next((one.id for one in known if one is not None and one.role != "user"), None):
            raise Refused(409, "conflict", f"the id {taken[:64]!r} is that of a message of another role")
        return [one for one, stored in zip(messages, known, strict=True) if stored is None]

    async def _create(self, chat: str, rights: Rights, user: Participant | None) -> None:
        """Create the conversation of the user, unless another request, perhaps of another user, is faster."""
        with suppress(ConversationExistsError):
            record = Conversation(chat, user_id=None if user is None else user.id)
            rights.made(await self._store.create_conversation(record))
        await rights.confirm(chat)

    async def _lookup(self, asked: Asked) -> list[Message]:
        """The newest messages, with the calls and the requests for approval that a request names. Raises Refused for a
        response to a request that does not exist."""
        calls = {one.part.tool_use_id for one in asked.results}

        def is_enough(stored: Sequence[Message]) -> bool:
            uses = [part for one in stored for part in one.tool_uses]
            approvals = {one["id"] for one in _requests_in(stored)}
            return calls <= {part.id for part in uses} and approvals >= asked.responses.keys()

        if not calls and not asked.responses:
            return []
        options: Any = {"most": LISTED, "size": self._size}
        stored, _ = await newest_messages(self._store, asked.conversation_id, is_enough, **options)
        known = {one["id"] for one in _requests_in(stored)}
        if asked.responses and known.isdisjoint(asked.responses) and not asked.results:
            name = next(iter(asked.responses))
            raise bad_input(f"there is no request for approval with the id {name[:64]!r} in this conversation")
        return stored

    def _new_results(self, asked: Asked, stored: Sequence[Message]) -> list[Message]:
        """The messages to store for results of tools in the browser: the newest for each call that waits for one,
        without those that an earlier copy of the request has stored. Models may use the id of a call again. Raises
        Refused if there are only results of other open calls."""
        waiting: dict[str, list[ToolUsePart]] = {}
        for _, calls in open_calls(stored):
            for call in calls:
                waiting.setdefault(call.id, []).append(call)
        known = {one.id for one in stored}
        found, refusals = [], []
        for result in reversed(asked.results):
            if result.id in known or not waiting.get(result.part.tool_use_id):
                continue
            call = waiting[result.part.tool_use_id].pop()
            if refusal := self._refusal(call):
                refusals.append(refusal)
            else:
                found.append(tool(replace(result.part, name=call.name), id=result.id))
        if refusals and not (found or asked.messages or asked.responses):
            raise bad_input(refusals[-1])
        return found[::-1]

    def _refusal(self, call: ToolUsePart) -> str | None:
        """Why a client may not send a result for this call. None: it may."""
        if call.name not in self._client_tools:
            return (
                f"the tool {call.name[:60]!r} does not run in the browser: only tools in client_tools of ChatEndpoints "
                "get their results from a client"
            )
        approval = approval_of(call)
        if approval is not None and approval.get("approved") is not True:
            return f"the call of {call.name[:60]!r} has not been approved, so it has no result"
        return None

    async def _respond(self, asked: Asked, stored: Sequence[Message], user: Participant | None) -> bool:
        """Decide on requests for approval as the user responds. Returns whether at least one response was decisive: the
        first response to a request decides."""
        is_new, by = False, None if user is None else user.id[:MAX_BY]
        for request in _requests_in(stored):
            name = request["id"]
            if name in asked.responses and "approved" not in request:
                response = asked.responses[name]
                with suppress(ApprovalNotFoundError):  # it was removed, or got a result
                    decided = await self._store.decide(
                        asked.conversation_id, name, response["approved"], reason=response.get("reason"), by=by
                    )
                    is_new = is_new or not decided.duplicate
        return is_new

    # Content that an answer replaces

    async def remove(self, chat: str, after: Position, through: Position | None) -> None:
        """Remove the messages between two positions, and answers that were still being written there; messages that
        users have sent in the meantime stay."""

        def is_replaced(one: Message) -> bool:
            old = through is not None and one.position is not None and one.position <= through
            return old or one.role in ("assistant", "tool")

        removed = [one.id for one in await self.following(chat, after) if is_replaced(one)]
        for start in range(0, len(removed), LISTED):
            await self._store.delete_messages(chat, removed[start : start + LISTED])

    async def following(self, chat: str, after: Position | None) -> list[Message]:
        """The messages after another one. A summary in its place or behind it is expanded first, because it may stand
        for this message and former ones, too."""
        assert after is not None  # noqa: S101 -- of a stored message
        since, tried = after._replace(sequence=after.sequence - 1), set[str]()
        while True:
            found = [one async for one in self._store.iter(chat, since=since)]
            summary = next((one.id for one in found if one.is_summary and one.id not in tried), None)
            if summary is None:
                return [one for one in found if one.position is not None and one.position > after]
            tried.add(summary)
            with suppress(MessageNotFoundError):  # it is a copy, or was expanded or replaced since
                await self._store.expand(chat, summary)


def edited(asked: Asked, kept: Message, user: Participant | None) -> Message | None:
    """Return a message with its new content, whose author is the user; its pin stays unchanged. None: there is no new
    content. Raises Refused for the message of another user, unless it is edited in a fork."""
    author = kept.participant
    if not asked.messages:
        return None
    is_own = author is None or (user is not None and (author.kind, author.id) == (user.kind, user.id))
    if not is_own and asked.fork is None:
        raise Refused(403, "forbidden", "only its author can edit a message")
    changed = asked.messages[-1]
    # The new content may come with another id, which a UI message would get again.
    meta = {form: {**note, "of": kept.id} for form, note in changed.provider_meta.items()}
    new = replace(kept, parts=changed.parts, provider_meta=meta, participant=user)
    Append.of(asked.conversation_id, new)  # raises for an invalid message, before anything is stopped or forked
    return new


def _requests_in(stored: Sequence[Message]) -> list[dict[str, Any]]:
    """The requests for approval in messages, with the decisions."""
    found = (approval_of(part) for one in stored for part in one.tool_uses)
    return [one for one in found if one is not None]


def _given(asked: Asked, stored: Sequence[Message]) -> Message | None:
    """The last stored message that has results for the same calls as a request, or responses to the same requests for
    approval."""
    calls = {one.part.tool_use_id for one in asked.results}

    def is_given(one: Message) -> bool:
        return bool(calls.intersection(part.tool_use_id for part in one.tool_results)) or (
            any(request["id"] in asked.responses for request in _requests_in([one]))
        )

    return next(filter(is_given, reversed(stored)), None)
