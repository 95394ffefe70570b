"""A session of the OpenAI Agents SDK, over one conversation."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from redis_history import AsyncHistoryStore, Message
from redis_history.errors import RevisionConflictError
from redis_history.formats import from_openai_responses, to_openai_responses
from redis_history.integrations._extras import checked_id, missing

try:
    from agents.memory import Session, SessionSettings
except ImportError as error:
    raise missing("openai-agents", error) from error

if TYPE_CHECKING:
    from agents import TResponseInputItem

__all__ = ["AgentsSession"]

_BATCH = 500  # messages in one atomic change


class AgentsSession(Session):
    """The items of `session_id`, which is the conversation id. The store stays the caller's to close, unless the
    session was made by `from_url`.

    The items of one reply are one message of ours. What other frameworks wrote is given as items too; what the form
    cannot carry is left out and logged.
    """

    def __init__(
        self, session_id: str, store: AsyncHistoryStore, *, session_settings: SessionSettings | None = None
    ) -> None:
        self.session_id = checked_id(session_id)
        self.session_settings = session_settings or SessionSettings()
        self._store = store
        self._owned = False

    @classmethod
    def from_url(
        cls, session_id: str, url: str, *, session_settings: SessionSettings | None = None, **options: Any
    ) -> AgentsSession:
        """A session with a store of its own, made of `url` and `options`; `close` closes it."""
        session = cls(session_id, AsyncHistoryStore(url, **options), session_settings=session_settings)
        session._owned = True
        return session

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The newest `limit` items, oldest first; without it what `session_settings` says, else all."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None:
            return _items(await self._store.get(self.session_id))
        if limit <= 0:
            return []
        wanted = limit
        while True:  # a message is one item or several; one of another framework may be none
            messages = await self._store.get(self.session_id, limit=wanted)
            items = _items(messages)
            if len(items) >= limit or len(messages) < wanted:
                return items[-limit:]
            wanted *= 4

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items in this order; what makes up to 500 messages is one atomic change."""
        messages = from_openai_responses([dict(item) for item in items])
        for at in range(0, len(messages), _BATCH):
            await self._store.append_many(self.session_id, messages[at : at + _BATCH])

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the newest item. Of many who do this at once each gets another one."""
        while True:
            record = await self._store.get_conversation(self.session_id)
            newest = await self._store.get(self.session_id, limit=1)
            if record is None or not newest:
                return None
            message = newest[0]
            items = _items([message])
            left = from_openai_responses([dict(item) for item in items[:-1]])
            try:
                mine = await self._shortened(message, left, record.revision)
            except RevisionConflictError:
                continue
            if mine and items:
                return items[-1]

    async def _shortened(self, message: Message, left: list[Message], revision: int) -> bool:
        """Whether it was this call that took the item: another one may have written the same."""
        if len(left) != 1:
            return bool(await self._store.delete_messages(self.session_id, [message.id], expected_revision=revision))
        # An update to what is there already succeeds at any revision, so two who take the same item must not write the
        # same message.
        mark = {**message.provider_meta, "openai_agents": {"popped": uuid.uuid4().hex}}
        kept = Message(**{**_fields(message), "parts": left[0].parts, "provider_meta": mark})
        await self._store.update_message(self.session_id, kept, expected_revision=revision)
        return True

    async def clear_session(self) -> None:
        """Remove all items, and keep the conversation."""
        await self._store.clear(self.session_id)

    async def close(self) -> None:
        """Close the store of a session that was made by `from_url`."""
        if self._owned:
            await self._store.aclose()


def _items(messages: list[Message]) -> list[TResponseInputItem]:
    return to_openai_responses(messages, shape="original")  # type: ignore[return-value]


def _fields(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__ if name != "extra"}
