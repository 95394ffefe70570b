"""A session store for the Claude Agent SDK: each transcript is a conversation, each entry a message.

options = ClaudeAgentOptions(session_store=ClaudeSessionStore(store), resume=session_id)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET
from msgspec.structs import replace

from redis_history import AsyncHistoryStore, Conversation, HistoryStore, Message, errors
from redis_history.formats import OnLoss, from_anthropic, to_anthropic
from redis_history.formats._notes import foreign_block, opaque, stored_value
from redis_history.integrations import _extras
from redis_history.values import large
from redis_history.values._validation import check_owner, missing
from redis_history.values.ids import check_message_id, new_id
from redis_history.values.times import from_microseconds, to_microseconds
from redis_history.values.usage import NOTHING, Numbers, Usage, added, total_of

try:
    from claude_agent_sdk import SessionStore, fold_session_summary
except ImportError as error:
    raise missing("claude-agent-sdk", error) from error

if TYPE_CHECKING:
    from claude_agent_sdk import SessionKey, SessionListSubkeysKey, SessionStoreEntry, SessionStoreListEntry
    from claude_agent_sdk.types import SessionSummaryEntry

__all__ = ["ClaudeSessionStore"]

_FORM = "claude_agent_sdk"  # of metadata and of provider_meta
_MOST_ANSWERS = 64  # whose usage is remembered
_TITLES = ("summary", "aiTitle", "customTitle")  # fields of entries, the best last


class ClaudeSessionStore(SessionStore):
    """The sessions of Claude agents, in `store`, so that they can be resumed on another machine. The caller closes the
    store.

    Entries of users, assistants and tools become messages like those of other frameworks, which can be searched, shown
    and compacted. The title of a session becomes the title of its conversation. Other entries are kept as opaque parts.
    `load` returns all appended entries, also after a compaction. `on_loss` is called with each `Loss`: content that is
    too large to store, which is also logged. Conversations have the project as `agent_name` (those of subagents the
    project and the session) and `user_id` as their owner.
    """

    def __init__(
        self,
        store: AsyncHistoryStore | HistoryStore,
        *,
        user_id: int | str | None = None,
        on_loss: OnLoss | None = None,
    ) -> None:
        self._store = _extras.asynchronous(store, type(self).__name__)
        check_owner(user_id, "user_id")
        self._user_id = user_id
        self._turns = _extras.Turns(_FORM, on_loss)
        #: By conversation and id of an answer of the API: the usage that was counted, of the last ones.
        self._answers: dict[str, dict[str, Numbers]] = {}

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries, each `uuid` once. Up to 500 entries and 4 MB are one change. If an entry exceeds the maximum
        size of a message, its oversized content is left out."""
        record = self._record(key)
        answers = dict(self._answers.get(record.conversation_id, {}))
        messages: dict[str, Message] = {}
        time: Any = None
        for entry in entries:
            message = _message(entry)
            # Entries without a time stay behind those before them.
            time = message.timestamp or time
            if message.id not in messages:
                messages[message.id] = replace(message, timestamp=time, usage=_share(answers, entry, message.usage))
        await self._append(record, list(messages.values()))
        self._answers.pop(record.conversation_id, None)
        self._answers[record.conversation_id] = answers
        _forget_oldest(self._answers)
        if entries and "subpath" not in key:
            await self._summarize(record, key, entries)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All entries in the order in which they were appended; None if there are none."""
        found = await self._store.get(_id(key), include_archived=True)
        ordered = sorted(found, key=lambda message: message.sequence or 0)
        return [entry for message in large.joined(ordered) if (entry := _entry(message)) is not None] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project with the times of their last change."""
        return [
            {"session_id": note["session_id"], "mtime": _mtime(record)}
            for record, note in await self._conversations(project_key, project_key)
        ]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The summaries of a project's sessions, as the SDK makes them."""
        return [
            {"session_id": note["session_id"], "mtime": _mtime(record), "data": note["data"]}
            for record, note in await self._conversations(project_key, project_key)
            if "data" in note
        ]

    async def delete(self, key: SessionKey) -> None:
        """Delete a session and its subagents, or the subagent of `subpath`."""
        if "subpath" not in key:
            for subpath in await self.list_subkeys(cast("SessionListSubkeysKey", key)):
                await self._store.delete_conversation(_id({**key, "subpath": subpath}))
        await self._store.delete_conversation(_id(key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session's subagents."""
        found = await self._conversations(_agent({**key, "subpath": ""}), key["project_key"])
        return [note["subpath"] for _, note in found if "subpath" in note]

    def _record(self, key: SessionKey) -> Conversation:
        note = {name: value for name, value in key.items() if name != "project_key"}
        return Conversation(
            conversation_id=_id(key),
            user_id=self._user_id,
            agent_name=_agent(key),
            metadata={_FORM: json.dumps(note)},
        )

    async def _conversations(self, agent_name: str, project_key: str) -> list[tuple[Conversation, dict[str, Any]]]:
        """The transcripts with their notes. A fork of one has the same note, but is another conversation."""
        found = [one.conversation for one in await _extras.all_conversations(self._store, agent_name=agent_name)]
        noted = [(record, note) for record in found if (note := _extras.note_of_record(record, _FORM))]
        return [one for one in noted if one[0].conversation_id == _id({**one[1], "project_key": project_key})]

    async def _append(self, record: Conversation, messages: list[Message]) -> None:
        while messages:
            try:
                await self._store.execute(self._turns.append(record.conversation_id, messages, must_exist=True))
            except errors.ConversationNotFoundError:
                with suppress(errors.ConversationExistsError):
                    await self._store.create_conversation(record)
            except errors.MessageConflictError as conflict:  # the SDK's rule: the first entry of a uuid stays
                messages = [message for message in messages if message.id != conflict.message_id]
            else:
                return

    async def _summarize(self, record: Conversation, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Keep the SDK's summary and the title with the record. The loser of a race reads again."""
        titles = [entry[name] for name in _TITLES for entry in entries if isinstance(entry.get(name), str)]  # type: ignore[literal-required]
        while (found := await self._store.get_conversation(record.conversation_id)) is not None:
            note = _extras.note_of_record(found, _FORM)
            before: Any = {**note, "mtime": 0} if "data" in note else None
            note |= {"session_id": key["session_id"], "data": fold_session_summary(before, key, entries)["data"]}
            with suppress(errors.RevisionConflictError, errors.ConversationNotFoundError):
                await self._store.update_conversation(
                    found.conversation_id,
                    title=titles[-1] if titles else UNSET,
                    metadata={**found.metadata, _FORM: json.dumps(note)},
                    expected_revision=found.revision,
                )
                return


def _share(answers: dict[str, Numbers], entry: Mapping[str, Any], usage: Usage | None) -> Usage | None:
    """The part of the usage that this entry adds. The SDK writes an answer of the API as several entries, each with the
    usage of the whole answer so far. `answers` has what was counted, and gets what is counted now."""
    said = entry.get("message")
    answer = said.get("id") if isinstance(said, Mapping) else None
    if usage is None or not isinstance(answer, str):
        return usage
    before = answers.pop(answer, NOTHING)
    more = added(usage.numbers, before, -1)
    answers[answer] = added(before, more)
    _forget_oldest(answers)
    return replace(total_of(more), model=usage.model) if any(more) else None


def _forget_oldest(known: dict[str, Any]) -> None:
    for oldest in [*known][:-_MOST_ANSWERS]:
        del known[oldest]


def _id(key: Any) -> str:
    """The conversation of a transcript."""
    subpath = [key["subpath"]] if "subpath" in key else []
    return _extras.joined_id("claude", key["project_key"], key["session_id"], *subpath)


def _agent(key: Any) -> str:
    return f"{key['project_key']}/{key['session_id']}" if "subpath" in key else str(key["project_key"])


def _mtime(record: Conversation) -> int:
    return 0 if record.updated_at is None else to_microseconds(record.updated_at) // 1000


def _message(entry: Mapping[str, Any]) -> Message:
    """The message for an entry: what was said as its parts, and the rest in `provider_meta`."""
    said: Any = entry.get("message")
    base: Message | None = None
    own: dict[str, Any] = {"id": new_id(), "timestamp": None}
    with suppress(errors.InvalidInputError):
        own["id"] = check_message_id(entry.get("uuid"))  # type: ignore[arg-type]
    with suppress(errors.InvalidTimestampError):
        own["timestamp"] = from_microseconds(to_microseconds(entry["timestamp"])) if entry.get("timestamp") else None
    if entry.get("type") in ("user", "assistant") and isinstance(said, Mapping):
        with suppress(errors.InvalidMessageError):
            [base] = from_anthropic([said])
            if to_anthropic([base], shape="original") != [said]:
                base = None
    if base is None:
        return Message(role="system", parts=(opaque(_FORM, entry),), **own)
    note, packed = stored_value({name: value for name, value in entry.items() if name != "message"})
    meta = {**base.provider_meta, _FORM: {"text" if packed else "entry": note}}
    return replace(base, provider_meta=meta, **own)


def _entry(message: Message) -> Any:
    """The entry of a message; None for a summary, and for a message that the SDK did not write."""
    meta = message.provider_meta.get(_FORM)
    if not isinstance(meta, Mapping):
        return foreign_block(_FORM, message.parts[0]) if len(message.parts) == 1 else None
    rest = json.loads(meta["text"]) if "text" in meta else meta.get("entry", {})
    return {**rest, "message": to_anthropic([message], shape="original")[0]}
