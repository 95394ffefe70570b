"""A chat message history for LangChain, stored in one conversation.

Use it with `RunnableWithMessageHistory` and everything else that accepts a `BaseChatMessageHistory`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis_history import AsyncHistoryStore, HistoryStore, Message
from redis_history.errors import ConfigurationError
from redis_history.formats import from_langchain, to_langchain
from redis_history.integrations._extras import checked_id, missing
from redis_history.model.pairs import without_lone_results

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict
except ImportError as error:
    raise missing("langchain", error) from error

__all__ = ["LangChainHistory"]

_BATCH = 500  # messages in one atomic change


class LangChainHistory(BaseChatMessageHistory):
    """The messages of the conversation `session_id`. The caller must close the stores.

    Synchronous methods use `store`. Asynchronous methods use `async_store`; without it they use `store` in a thread.
    `limit` returns only that number of the newest messages, without tool results whose call is not among them, because
    models reject these. Ids of LangChain messages are kept, but need not be unique: a message that is added twice is
    stored twice.

    Raises InvalidConversationIdError, and ConfigurationError if there is no store.
    """

    def __init__(
        self,
        session_id: str,
        store: HistoryStore | None = None,
        *,
        async_store: AsyncHistoryStore | None = None,
        limit: int | None = None,
    ) -> None:
        super().__init__()
        if store is None and async_store is None:
            raise ConfigurationError("LangChainHistory requires `store`, `async_store` or both")
        self.session_id = checked_id(session_id)
        self.limit = limit
        self._store = store
        self._async_store = async_store

    @property
    def messages(self) -> list[BaseMessage]:  # an attribute in the base class
        """All messages, or the newest `limit`, oldest first."""
        return self._theirs(self._sync().get(self.session_id, limit=self.limit))

    @messages.setter
    def messages(self, messages: Sequence[BaseMessage]) -> None:
        self._sync().restore(self.session_id, _ours(messages))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages in this order, in atomic batches of 500."""
        ours = _ours(messages)
        for at in range(0, len(ours), _BATCH):
            self._sync().append_many(self.session_id, ours[at : at + _BATCH])

    def clear(self) -> None:
        """Remove all messages, but keep the conversation."""
        self._sync().clear(self.session_id)

    async def aget_messages(self) -> list[BaseMessage]:
        """See `messages`."""
        if self._async_store is None:
            found: list[BaseMessage] = await super().aget_messages()
            return found
        return self._theirs(await self._async_store.get(self.session_id, limit=self.limit))

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """See `add_messages`."""
        if self._async_store is None:
            await super().aadd_messages(messages)
            return
        ours = _ours(messages)
        for at in range(0, len(ours), _BATCH):
            await self._async_store.append_many(self.session_id, ours[at : at + _BATCH])

    async def aclear(self) -> None:
        """See `clear`."""
        if self._async_store is None:
            await super().aclear()
        else:
            await self._async_store.clear(self.session_id)

    def __len__(self) -> int:
        record = self._sync().get_conversation(self.session_id)
        return 0 if record is None else record.message_count

    def __bool__(self) -> bool:
        return True  # `__len__` must not make an empty history false

    def _theirs(self, messages: list[Message]) -> list[BaseMessage]:
        return _theirs(messages if self.limit is None else without_lone_results(messages))

    def _sync(self) -> HistoryStore:
        if self._store is None:
            raise ConfigurationError("LangChainHistory has only an async_store: use its async methods or pass store=")
        return self._store


def _ours(messages: Sequence[BaseMessage]) -> list[Message]:
    dicts: list[dict[str, Any]] = messages_to_dict(messages)
    return from_langchain(dicts)


def _theirs(messages: Sequence[Message]) -> list[BaseMessage]:
    found: list[BaseMessage] = messages_from_dict(to_langchain(messages))
    return found
