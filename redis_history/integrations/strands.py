"""A session repository for Strands Agents: each agent of a session has a conversation of its messages."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack, cast

from msgspec.structs import replace

from redis_history import Conversation, HistoryStore, Message, errors
from redis_history.agents.tools import SearchOptions, conversation_search_tool
from redis_history.formats import OnLoss
from redis_history.formats._notes import foreign_block, opaque
from redis_history.formats._usage import usage_in
from redis_history.formats.bedrock import from_bedrock, packed, to_bedrock, unpacked
from redis_history.integrations import _extras
from redis_history.values import Participant, large
from redis_history.values._validation import check_owner, check_store, missing
from redis_history.values.ids import MAX_ID_BYTES, new_id

try:
    from strands.session.session_repository import SessionRepository
    from strands.tools.tools import PythonAgentTool
    from strands.types.exceptions import SessionException
    from strands.types.session import Session, SessionAgent, SessionMessage
except ImportError as error:
    raise missing("strands", error) from error

if TYPE_CHECKING:
    from strands.multiagent import MultiAgentBase
    from strands.types.content import Message as StrandsMessage
    from strands.types.tools import ToolResult, ToolUse

__all__ = ["StrandsSessionRepository", "search_tool"]

_FORM = "strands"  # of provider_meta
_DEFAULT = "default"  # the agent_id of agents without one


class StrandsSessionRepository(SessionRepository):
    """The sessions of agents and multi-agents::

        repository = StrandsSessionRepository(store)
        agent = Agent(session_manager=RepositorySessionManager("session-1", session_repository=repository))

    The caller closes the store. The conversation of an agent has the id of the session, and for an `agent_id` other
    than "default" `strands/session_id/agents/agent_id`. What else Strands keeps, such as the state of agents, graphs
    and swarms, and interrupts, is in the conversation `strands/session_id/state`. Compactions leave the sessions as
    they are: Strands reads archived messages, too, because its conversation managers count them.

    A message that Strands redacts is replaced. `user_id` is the owner of the conversations. `on_loss` is called with
    each `Loss`: content of other frameworks that Strands cannot represent, or that is too large to store; it is also
    logged. Raises StoreTypeError; the methods raise SessionException for what does not exist, and
    InvalidConversationIdError.
    """

    def __init__(self, store: HistoryStore, *, user_id: int | str | None = None, on_loss: OnLoss | None = None) -> None:
        check_store(store, type(self).__name__, HistoryStore)
        check_owner(user_id, "user_id")
        self._store = store
        self._states = store._outside_runs()
        self._user_id = user_id
        self._on_loss = on_loss
        self._turns = _extras.Turns(_FORM, on_loss)
        self._written: dict[str, float] = {}  # when the state of a session was last written

    def messages(self, session_id: str, agent_id: str = _DEFAULT) -> list[StrandsMessage]:
        """The messages of an agent, also those that others wrote before Strands had this session: pass them as
        `Agent(messages=…, session_manager=…)`. They are not stored again."""
        return [one.to_message() for one in self._listed(session_id, agent_id)]

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Create a session. Raises SessionException if it exists."""
        record = Conversation(conversation_id=_states(session.session_id), user_id=self._user_id)
        self._states.create_conversation(record, exist_ok=True)
        try:
            self._states.append(record.conversation_id, _state("session", session.to_dict()))
        except errors.MessageConflictError as error:
            raise SessionException(f"session {session.session_id!r} exists") from error
        self._written[session.session_id] = time.monotonic()
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        """The session; None if there is none."""
        found = self._read(session_id, "session")
        return None if found is None else Session.from_dict(found)

    def delete_session(self, session_id: str, **kwargs: Any) -> None:
        """Delete a session with the conversations of its agents. Raises SessionException if there is none."""
        found = self._states.get(_states(session_id))
        for message in found:
            kind, _, agent_id = message.id.partition("/")
            if kind == "agent":
                self._store.delete_conversation(_id(session_id, agent_id))
        if not self._states.delete_conversation(_states(session_id)):
            raise SessionException(f"session {session_id!r} does not exist")

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Store the state of a new agent."""
        agent_id = session_agent.agent_id
        record = Conversation(conversation_id=_id(session_id, agent_id), user_id=self._user_id, agent_name=agent_id)
        self._store.create_conversation(record, exist_ok=True)
        self._write(session_id, f"agent/{agent_id}", session_agent.to_dict())

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        """The state of an agent; None if there is none."""
        found = self._read(session_id, f"agent/{agent_id}")
        return None if found is None else SessionAgent.from_dict(found)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        """Replace the state of an agent. Raises SessionException if there is none."""
        before = self.read_agent(session_id, session_agent.agent_id)
        if before is None:
            raise SessionException(f"agent {session_agent.agent_id!r} of session {session_id!r} does not exist")
        session_agent.created_at = before.created_at
        self._write(session_id, f"agent/{session_agent.agent_id}", session_agent.to_dict())

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Append a message. A message with the `tracking_id` of a stored one is that message."""
        key, message = _id(session_id, agent_id), _message(session_message, agent_id)
        try:
            self._append(key, message)
        except errors.MessageConflictError:
            present = self._store.get_message(key, message.id)
            if present is None or self._converted(present) != self._converted(message):
                self._append(key, replace(message, id=new_id()))
        self._stay(session_id)

    def read_message(self, session_id: str, agent_id: str, message_id: int, **kwargs: Any) -> SessionMessage | None:
        """The message with this index; None if there is none."""
        found = self._listed(session_id, agent_id)
        return next((one for one in reversed(found) if one.message_id == message_id), None)

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any) -> None:
        """Replace the content of a message, for example by a redacted one. Raises SessionException if there is none."""
        key = _id(session_id, agent_id)
        for stored in reversed(self._stored(key)):
            note = stored.provider_meta.get(_FORM)
            own = session_message.message.get("tracking_id")
            is_it = stored.id == own if own else _index(note) == session_message.message_id
            if is_it:
                session_message.created_at = str(_field(note, "created_at") or session_message.created_at)
                new = _message(session_message, agent_id)
                [kept, *_], losses = self._turns.fit([replace(new, id=stored.id, metadata=stored.metadata)])
                with suppress(errors.MessageNotFoundError):  # archived: the copy of the summary stays
                    self._store.update_message(key, kept)
                    self._turns.report(losses)
                    return
        raise SessionException(f"message {session_message.message_id} of agent {agent_id!r} does not exist")

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any
    ) -> list[SessionMessage]:
        """The messages of an agent in order, without the first `offset`. Raises SessionException without the agent."""
        found = self._listed(session_id, agent_id)
        if not found and self._read(session_id, f"agent/{agent_id}") is None:
            raise SessionException(f"agent {agent_id!r} of session {session_id!r} does not exist")
        return found[offset : None if limit is None else offset + limit]

    def create_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Store the state of a new graph or swarm."""
        self._write(session_id, f"multi_agent/{multi_agent.id}", multi_agent.serialize_state())

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        """The state of a graph or swarm; None if there is none."""
        return self._read(session_id, f"multi_agent/{multi_agent_id}")

    def update_multi_agent(self, session_id: str, multi_agent: MultiAgentBase, **kwargs: Any) -> None:
        """Replace the state of a graph or swarm. Raises SessionException if there is none."""
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise SessionException(f"multi-agent {multi_agent.id!r} of session {session_id!r} does not exist")
        self._write(session_id, f"multi_agent/{multi_agent.id}", multi_agent.serialize_state())

    def _append(self, key: str, message: Message) -> None:
        self._store.execute(self._turns.append(key, [message]))

    def _read(self, session_id: str, name: str) -> dict[str, Any] | None:
        found = self._states.get_message(_states(session_id), name)
        block = None if found is None else foreign_block(_FORM, found.parts[0])
        return None if block is None else cast("dict[str, Any]", unpacked(block))

    def _write(self, session_id: str, name: str, value: Mapping[str, Any]) -> None:
        key, message = _states(session_id), _state(name, value)
        while True:
            try:
                self._states.update_message(key, message)
            except errors.MessageNotFoundError:
                with suppress(errors.MessageConflictError):  # another process was faster
                    self._states.append(key, message)
                    break
            else:
                break
        self._written[session_id] = time.monotonic()

    def _stay(self, session_id: str) -> None:
        """Keep the state of a session as long as its messages, in a store with a `ttl`."""
        ttl = self._store._options.ttl
        written = self._written.get(session_id)
        if ttl is not None and (written is None or time.monotonic() - written > ttl / 4):
            session = self.read_session(session_id)
            if session is not None:
                self._write(session_id, "session", {**session.to_dict(), "updated_at": datetime.now(UTC).isoformat()})

    def _stored(self, key: str) -> list[Message]:
        found = self._store.get(key, include_archived=True)
        return large.joined([one for one in _extras.for_agent(found) if not one.is_summary])

    def _listed(self, session_id: str, agent_id: str) -> list[SessionMessage]:
        found: list[SessionMessage] = []
        for stored in self._stored(_id(session_id, agent_id)):
            note, converted = stored.provider_meta.get(_FORM), self._converted(stored)
            for message in converted:
                index = _index(note)
                index = (found[-1].message_id + 1 if found else 0) if index is None else index
                when = stored.timestamp.isoformat() if stored.timestamp else ""
                times = [str(_field(note, name) or when) for name in ("created_at", "updated_at")]
                redacted = message if _field(note, "redacted") else None
                found.append(SessionMessage(message, index, redacted, *times))
        return found

    def _converted(self, message: Message) -> list[StrandsMessage]:
        own = _FORM in message.provider_meta
        found: list[Any] = to_bedrock([message], shape="original" if own else "valid", on_loss=self._on_loss)
        return found if own else [one | {"tracking_id": message.id} for one in found]


def search_tool(store: HistoryStore, conversation_id: str, **options: Unpack[SearchOptions]) -> PythonAgentTool:
    """The tool `conversation_search` of `conversation_search_tool`, as a tool of Strands.

    The options and errors are those of `conversation_search_tool`.
    """
    check_store(store, "search_tool", HistoryStore)
    tool = conversation_search_tool(store, conversation_id, **options)

    def search(tool_use: ToolUse, **_: Any) -> ToolResult:
        text = str(tool.run(tool_use["input"]))
        return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": text}]}

    schema = {"json": tool.parameters}
    return PythonAgentTool(
        tool.name, {"name": tool.name, "description": tool.description, "inputSchema": schema}, search
    )


def _id(session_id: str, agent_id: str) -> str:
    if agent_id != _DEFAULT:
        return _extras.joined_id(_FORM, session_id, "agents", agent_id)
    # The ids that this module makes are never those of other sessions.
    return _extras.joined_id(session_id) if session_id.startswith(f"{_FORM}/") else _extras.checked_id(session_id)


def _states(session_id: str) -> str:
    return _extras.joined_id(_FORM, session_id, "state")


def _state(name: str, value: Mapping[str, Any]) -> Message:
    """The message that keeps a state. It has the role that no compaction takes."""
    try:
        plain = json.loads(json.dumps(packed(value)))
    except TypeError as error:
        raise errors.InvalidInputError(f"the state of an agent must consist of JSON values: {error}") from error
    return Message(role="system", parts=(opaque(_FORM, plain, name.partition("/")[0]),), id=name)


def _message(given: SessionMessage, agent_id: str) -> Message:
    raw = given.to_message()
    [message] = from_bedrock([raw])
    note: dict[str, Any] = {"index": given.message_id, "created_at": given.created_at, "updated_at": given.updated_at}
    if given.redact_message is not None:
        note["redacted"] = True
    id_ = given.message.get("tracking_id")
    usable = isinstance(id_, str) and 0 < len(id_.encode(errors="replace")) <= MAX_ID_BYTES
    return replace(
        message,
        id=id_ if usable else message.id,
        participant=Participant("agent", agent_id) if message.role == "assistant" else None,
        usage=usage_in(raw.get("metadata") or {}),
        provider_meta={**message.provider_meta, _FORM: note},
    )


def _field(note: Any, name: str) -> Any:
    return note.get(name) if isinstance(note, Mapping) else None


def _index(note: Any) -> int | None:
    found = _field(note, "index")
    return found if isinstance(found, int) else None
