"""A session service for Google's Agent Development Kit (ADK): each session is a conversation, each event a message."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from redis_history import AsyncHistoryStore, Conversation, HistoryStore, Message, Participant, Position, errors
from redis_history.agents.tools import SearchOptions
from redis_history.formats import OnLoss, from_gemini, to_gemini
from redis_history.formats._notes import plain_text, stored_value
from redis_history.formats._usage import usage_of
from redis_history.integrations import _extras
from redis_history.integrations._live import LiveReplies, LiveStream
from redis_history.values._validation import missing
from redis_history.values.ids import new_id

try:
    from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events import Event
    from google.adk.sessions import BaseSessionService, Session, State
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai.types import FunctionDeclaration
except ImportError as error:
    raise missing("google-adk", error) from error

if TYPE_CHECKING:
    from google.adk.runners import Runner

__all__ = ["AdkSessionService", "search_tool"]

_KEY = "adk"  # of metadata and of provider_meta


class AdkSessionService(BaseSessionService):
    """The sessions of ADK applications, in `store`. The caller closes the store. A HistoryStore is used in threads, so
    that `runner.run` works, which uses a new event loop for each turn.

    The conversation of a session has the application as `agent_name` and the user as `user_id`. Its metadata contain
    the state of the session up to a certain event. Changes by later events are applied when the session is read, so an
    event and its change of state are stored together. State shared by an application (`app:`) or a user (`user:`) is
    in the metadata of another conversation, without messages. Concurrent changes of state are merged key by key.
    `on_loss` is called with each `Loss`: content that is too large to store, which is also logged.
    """

    def __init__(self, store: AsyncHistoryStore | HistoryStore, *, on_loss: OnLoss | None = None) -> None:
        self._store = _extras.asynchronous(store, type(self).__name__)
        self._shared_store = _extras.asynchronous(store._outside_runs(), type(self).__name__)
        self._turns = _extras.Turns(_KEY, on_loss)
        self._live = LiveReplies(store, self._turns)

    async def create_session(
        self, *, app_name: str, user_id: str, state: dict[str, Any] | None = None, session_id: str | None = None
    ) -> Session:
        """Create a session. A conversation of its id that others began becomes the session. Raises AlreadyExistsError
        if this user of the application has a session of this id, or if somebody else owns the conversation."""
        session_id = (session_id or "").strip() or str(uuid.uuid4())
        shared, own = _split(state or {})
        record = Conversation(
            conversation_id=_id(app_name, user_id, session_id),
            user_id=user_id,
            agent_name=app_name,
            metadata={_KEY: _dump({"session_id": session_id, "state": own})},
        )
        try:
            created = await self._store.create_conversation(record)
        except errors.ConversationExistsError as error:
            if not await self._adopt(record):
                raise AlreadyExistsError(f"Session with id {session_id} already exists.") from error
            await self._merge_shared(app_name, user_id, shared)
            found = await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
            if found is None:
                raise SessionNotFoundError(f"Session {session_id} not found.") from error
            return found
        await self._merge_shared(app_name, user_id, shared)
        return await self._session(created, [])

    async def _adopt(self, record: Conversation) -> bool:
        """Make a conversation without a session a session, such as one that begins with the question of a chat."""
        while (found := await self._store.get_conversation(record.conversation_id)) is not None:
            if _KEY in found.metadata or found.user_id not in (None, record.user_id):
                return False
            with suppress(errors.RevisionConflictError):  # read again
                await self._store.update_conversation(
                    record.conversation_id,
                    user_id=record.user_id,
                    agent_name=record.agent_name,
                    metadata={**found.metadata, **record.metadata},
                    expected_revision=found.revision,
                )
                return True
        return False

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """The session with its events, oldest first, as far as `config` asks for them; None if there is none."""
        conversation_id = _id(app_name, user_id, _extras.checked_id(session_id).strip())
        recent = config.num_recent_events if config is not None else None
        found, messages = await asyncio.gather(
            self._store.get_conversation(conversation_id),
            self._store.execute(_extras.newest(conversation_id, None if recent is None else max(recent, 1))),
        )
        if found is None or _KEY not in found.metadata:
            return None
        events = [event for message in _extras.ended(messages) if (event := _event(message)) is not None]
        pending = await self._pending(found) if recent is not None else _after(messages, _note(found))
        session = await self._session(found, events, pending)
        if recent == 0:
            session.events = []
        if config is not None and config.after_timestamp is not None:
            too_old = [at for at, event in enumerate(events) if event.timestamp < config.after_timestamp]
            session.events = session.events[too_old[-1] + 1 :] if too_old else session.events
        return session

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """The sessions of the application, or of a single user, without events, in the order of their last events."""
        found = await _extras.all_conversations(self._store, agent_name=app_name, user_id=user_id)
        shared: dict[str, dict[str, Any]] = {}
        sessions = [
            await self._session(one.conversation, [], last=one.last_message, shared=shared)
            for one in found
            if _is_session(one.conversation)
        ]
        return ListSessionsResponse(
            sessions=sorted(sessions, key=lambda one: (one.last_update_time, one.user_id, one.id))
        )

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events. Shared state stays."""
        await self._store.delete_conversation(_id(app_name, user_id, _extras.checked_id(session_id).strip()))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state of a user in an application, with keys without the prefix `user:`."""
        return await self._shared(_id(app_name, user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event, with its change of state. A repeated event (same id and content) is stored once. Raises
        SessionNotFoundError."""
        if event.partial:
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        conversation_id = _id(session.app_name, session.user_id, session.id)
        is_new = True
        try:
            messages = await self._live.settle(conversation_id, [_message(event)], (event.author, event.branch))
            try:
                done = await self._store.execute(self._turns.append(conversation_id, messages, must_exist=True))
            except errors.MessageConflictError:  # another event has the same id
                messages = [_message(event, with_id=False)]
                done = await self._store.execute(self._turns.append(conversation_id, messages, must_exist=True))
            is_new = not done or not all(one.duplicate for one in done)
        except errors.ConversationNotFoundError as error:
            raise SessionNotFoundError(f"Session {session.id} not found.") from error
        if event.actions and event.actions.state_delta:
            await self._settle(session.app_name, session.user_id, conversation_id)
        if not is_new:
            return event
        session.last_update_time = event.timestamp
        return self._commit_event_to_session(session, event)

    async def live(self, runner: Runner, *, user_id: str, session_id: str, **options: Any) -> AsyncIterator[Event]:
        """Yields the events of `runner.run_async(user_id=…, session_id=…, **options)`, and stores what the model writes
        as it comes, with `store.stream`. The events of the session then take its place. `run_config` is by default
        that of `StreamingMode.SSE`."""
        options.setdefault("run_config", RunConfig(streaming_mode=StreamingMode.SSE))
        conversation_id = _id(runner.app_name, user_id, session_id)
        streams: dict[Any, LiveStream] = {}  # by agent: those of a ParallelAgent write at the same time
        async with AsyncExitStack() as stack:
            async for event in runner.run_async(user_id=user_id, session_id=session_id, **options):
                writer = (event.author, event.branch)
                if event.partial and event.content is not None:
                    if writer not in streams:
                        made = self._live.stream(conversation_id, writer)
                        streams[writer] = await stack.enter_async_context(made)
                    for part in event.content.parts or ():
                        await streams[writer].write("" if part.thought else part.text or "")
                elif writer in streams:
                    streams[writer].end()
                yield event

    async def _pending(self, record: Conversation, again: Position | None = None) -> list[Message]:
        """The events whose changes are not in the state of the record, and those from `again` on."""
        note = _note(record)
        since = Position.parse(note["applied"]) if "applied" in note else None
        others = [*map(Position.parse, note.get("open", ())[:1]), *([again] if again else ())]
        if since is not None and others:
            first = min(others)
            since = min(since, first._replace(sequence=first.sequence - 1))
        found = await self._store.get(record.conversation_id, since=since, include_archived=True)
        return _after(found, note, again)

    async def _settle(self, app_name: str, user_id: str, conversation_id: str) -> None:
        """Apply the pending changes of state, in the order of the events, also those of a process that died."""
        first: Position | None = None
        while (record := await self._store.get_conversation(conversation_id)) is not None:
            pending = await self._pending(record, first)
            if not pending:
                return
            shared, own = _split(_delta_of(pending))
            await self._merge_shared(app_name, user_id, shared)
            note = _note(record)
            note["state"] = {**note["state"], **own}
            # The event of a live reply takes its place, which can be before events that are applied already.
            note["open"] = [str(message.position) for message in pending if message.status == "streaming"]
            positions = [message.position for message in pending if message.position is not None]
            positions += [Position.parse(note["applied"])] if "applied" in note else []
            note["applied"] = str(max(positions))
            if await self._save(record, note):
                return
            first = pending[0].position  # later changes, which others may have applied, come after these once more

    async def _session(
        self,
        record: Conversation,
        events: list[Event],
        pending: Sequence[Message] = (),
        last: Message | None = None,
        shared: dict[str, dict[str, Any]] | None = None,
    ) -> Session:
        app_name, user_id = str(record.agent_name), str(record.user_id)
        names = _id(app_name), _id(app_name, user_id)
        known = {} if shared is None else shared  # by conversation
        unknown = [name for name in names if name not in known]
        known |= zip(unknown, await asyncio.gather(*map(self._shared, unknown)), strict=True)
        of_app, of_user = known[names[0]], known[names[1]]
        note = _note(record)
        state = {
            **note["state"],
            **{State.APP_PREFIX + key: value for key, value in of_app.items()},
            **{State.USER_PREFIX + key: value for key, value in of_user.items()},
            **_delta_of(pending),
        }
        newest = events[-1] if events else last and _event(last)
        created = record.created_at.timestamp() if record.created_at else 0.0
        return Session(
            id=note["session_id"],
            app_name=app_name,
            user_id=user_id,
            state=state,
            events=events,
            last_update_time=newest.timestamp if newest else created,
        )

    async def _shared(self, conversation_id: str) -> dict[str, Any]:
        found = await self._store.get_conversation(conversation_id)
        return {} if found is None else dict(_note(found).get("state", {}))

    async def _merge_shared(self, app_name: str, user_id: str, shared: Mapping[str, dict[str, Any]]) -> None:
        for conversation_id, delta in ((_id(app_name), shared["app"]), (_id(app_name, user_id), shared["user"])):
            if delta:
                await self._merge(conversation_id, delta)

    async def _merge(self, conversation_id: str, delta: Mapping[str, Any]) -> None:
        """Set keys of the state in a record. The loser of a race reads again."""
        saved = False
        while not saved:
            found = await self._store.get_conversation(conversation_id)
            note = {} if found is None else _note(found)
            note["state"] = {**note.get("state", {}), **delta}
            saved = await self._save(found or Conversation(conversation_id=conversation_id), note)

    async def _save(self, record: Conversation, note: Mapping[str, Any]) -> bool:
        """Write the note. False if the record has changed since it was read, or was created or deleted."""
        metadata = {**record.metadata, _KEY: _dump(note)}
        store = self._store if "session_id" in note else self._shared_store
        try:
            if record.revision:  # 0: it does not exist
                await store.update_conversation(
                    record.conversation_id, metadata=metadata, expected_revision=record.revision
                )
            else:
                await store.create_conversation(replace(record, metadata=metadata))
        except (errors.ConversationExistsError, errors.ConversationNotFoundError, errors.RevisionConflictError):
            return False
        return True


def search_tool(
    store: HistoryStore | AsyncHistoryStore, conversation_id: str | None = None, **options: Unpack[SearchOptions]
) -> BaseTool:
    """The tool `conversation_search` of `conversation_search_tool`, as a tool of ADK.

    `conversation_id` None: the session in which the agent runs. The other options and the errors are those of
    `conversation_search_tool`.
    """
    return _SearchTool(store, conversation_id, options)


class _SearchTool(BaseTool):
    def __init__(
        self, store: HistoryStore | AsyncHistoryStore, conversation_id: str | None, options: SearchOptions
    ) -> None:
        tool, _ = _extras.search_runner(store, conversation_id or "any", **options)
        super().__init__(name=tool.name, description=tool.description)
        self._parameters = tool.parameters
        self._store = store
        self._conversation_id = conversation_id
        self._options = options

    def _get_declaration(self) -> FunctionDeclaration:
        return FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._parameters
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> str:
        conversation_id = self._conversation_id
        if conversation_id is None:
            session = tool_context.session
            conversation_id = _id(session.app_name, session.user_id, session.id)
        return await _extras.search_runner(self._store, conversation_id, **self._options)[1](args)


def _id(*names: str) -> str:
    """The conversation of a session, or of the state of an application or user."""
    return _extras.joined_id("adk", *names)


def _is_session(record: Conversation) -> bool:
    """Whether this conversation is a session: not a fork of one, which has its note, and not shared state."""
    session_id = _note(record).get("session_id")
    names = record.agent_name, record.user_id, session_id
    return session_id is not None and record.conversation_id == _id(*map(str, names))


def _note(record: Conversation) -> dict[str, Any]:
    return _extras.note_of_record(record, _KEY)


def _dump(note: Mapping[str, Any]) -> str:
    try:
        return json.dumps(note)
    except TypeError as error:
        raise errors.InvalidInputError(f"the state of a session must consist of JSON values: {error}") from error


def _split(delta: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The shared state without its prefixes, and the session's own. Temporary state is left out."""
    shared: dict[str, dict[str, Any]] = {"app": {}, "user": {}}
    own: dict[str, Any] = {}
    for key, value in delta.items():
        if key.startswith(State.APP_PREFIX):
            shared["app"][key.removeprefix(State.APP_PREFIX)] = value
        elif key.startswith(State.USER_PREFIX):
            shared["user"][key.removeprefix(State.USER_PREFIX)] = value
        elif not key.startswith(State.TEMP_PREFIX):
            own[key] = value
    return shared, own


def _after(messages: Sequence[Message], note: Mapping[str, Any], again: Position | None = None) -> list[Message]:
    """The messages whose changes of state are not in the record, and those from `again` on."""
    if "applied" not in note:
        return list(messages)
    applied, open_ = Position.parse(note["applied"]), set(map(Position.parse, note.get("open", ())))
    found = ((one, one.position) for one in messages if one.position is not None)
    return [one for one, at in found if at > applied or at in open_ or (again is not None and at >= again)]


def _delta_of(messages: Sequence[Message]) -> dict[str, Any]:
    """The merged state changes of these events. Temporary state was never stored."""
    delta: dict[str, Any] = {}
    for message in messages:
        meta = message.provider_meta.get(_KEY)
        if isinstance(meta, Mapping):
            raw = json.loads(meta["text"]) if "text" in meta else meta["event"]
            delta |= raw.get("actions", {}).get("state_delta", {})
    return delta


def _message(event: Event, *, with_id: bool = True) -> Message:
    """The message for an event: its content as parts, and the rest in `provider_meta`."""
    raw = event.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if event.actions and event.actions.state_delta:
        raw["actions"]["state_delta"] = _extras.plain_or(event.actions.state_delta, raw["actions"]["state_delta"])
    content = raw.pop("content", None)
    if content:  # in the order that needs no note
        content = {key: content[key] for key in ("role", "parts") if key in content} | content
    converted = from_gemini([content]) if content else []
    note, packed = stored_value(raw)
    meta: dict[str, Any] = {"text" if packed else "event": note}
    if len(converted) == 1:
        [base] = converted
    else:  # no content, or more than one message can hold
        base = Message(role="assistant", parts=[part for one in converted for part in one.parts])  # type: ignore[arg-type]
        meta["raw"] = json.dumps(content)
    author = event.author
    return Message(
        id=event.id if with_id and event.id else new_id(),
        role=base.role,
        parts=base.parts,
        participant=None if author in ("", "user") else Participant("agent", author),
        provider_meta={**base.provider_meta, _KEY: meta},
        # The parts of an answer that is streamed report the tokens so far.
        usage=None if event.partial else usage_of(raw.get("usage_metadata"), model=raw.get("model_version")),
    )


def _event(message: Message) -> Event | None:
    """The event of a message. A message that ADK did not write becomes an event with its content."""
    meta = message.provider_meta.get(_KEY)
    if isinstance(meta, Mapping):
        raw = json.loads(meta["text"]) if "text" in meta else dict(meta["event"])
        if "raw" in meta:
            content = json.loads(meta["raw"])
        elif message.role != "tool" and (text := plain_text(message, "gemini")):  # in a fraction of the time
            content = {"role": "model" if message.role == "assistant" else "user", "parts": [{"text": text}]}
        else:
            content = to_gemini([message], shape="original")[0]
        return Event.model_validate({**raw, "content": content})
    contents = to_gemini([message])
    if not contents or message.timestamp is None:
        return None
    participant = message.participant
    author = "user"
    if message.role != "user" and participant is not None:
        author = participant.display_name or participant.id
    content = {**contents[0], "parts": [part for one in contents for part in one["parts"]]}
    return Event(id=message.id, author=author, timestamp=message.timestamp.timestamp(), content=content)  # type: ignore[arg-type]
