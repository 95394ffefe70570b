"""A middleware for LangChain's `create_agent`: it loads, saves and searches the conversation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from redis_history import AsyncHistoryStore, HistoryStore, conversation_search_tool
from redis_history.errors import ConfigurationError
from redis_history.formats import OnLoss
from redis_history.integrations._extras import check_stores, checked_id, missing
from redis_history.integrations.langchain import LangChainHistory
from redis_history.tools import DESCRIPTION, NAME

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain_core.messages import BaseMessage, RemoveMessage, ToolMessage
    from langchain_core.tools import StructuredTool
    from langgraph.config import get_config
    from langgraph.graph.message import REMOVE_ALL_MESSAGES
    from langgraph.runtime import Runtime
except ImportError as error:
    raise missing("langchain-agents", error) from error

__all__ = ["ConversationMiddleware"]


class ConversationMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """`create_agent(model, tools, middleware=[ConversationMiddleware(store)])`. The caller closes the stores.

    The conversation is `conversation_id`, or the `thread_id` in the config of the call. Before the agent starts, the
    stored messages are put before the given ones; each message is stored when it is there, so that a crash loses none.
    `limit` loads only that number of the newest messages. `search=True` gives the agent the tool `conversation_search`
    for its own conversation. `store` is for `invoke`, `async_store` for `ainvoke`. `on_loss` as in LangChainHistory.

    No checkpointer is needed. With one, messages are stored once, because their ids are the same.
    Raises StoreTypeError without a store or for another kind of store. A call without a conversation raises
    ConfigurationError.
    """

    def __init__(
        self,
        store: HistoryStore | None = None,
        *,
        async_store: AsyncHistoryStore | None = None,
        conversation_id: str | None = None,
        limit: int | None = None,
        search: bool = False,
        on_loss: OnLoss | None = None,
    ) -> None:
        super().__init__()
        check_stores(store, async_store, type(self).__name__)
        self._conversation_id = None if conversation_id is None else checked_id(conversation_id)
        self._options: dict[str, Any] = {"async_store": async_store, "limit": limit, "on_loss": on_loss}
        self._store = store
        self._async_store = async_store
        self.tools = [self._search_tool()] if search else []

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        history = self._history()
        update, new = _joined(history.messages, state["messages"])
        history.add_messages(new)
        return update

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        history = self._history()
        update, new = _joined(await history.aget_messages(), state["messages"])
        await history.aadd_messages(new)
        return update

    def before_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        self._history().add_messages(_results(state["messages"]))

    async def abefore_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        await self._history().aadd_messages(_results(state["messages"]))

    def after_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        self._history().add_messages(state["messages"][-1:])

    async def aafter_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> None:
        await self._history().aadd_messages(state["messages"][-1:])

    def _history(self) -> LangChainHistory:
        return LangChainHistory(self._current(), self._store, **self._options)

    def _current(self) -> str:
        found = self._conversation_id or get_config().get("configurable", {}).get("thread_id")
        if not found:
            raise ConfigurationError(
                "no conversation: pass conversation_id to ConversationMiddleware, or call the agent with "
                'config={"configurable": {"thread_id": "..."}}'
            )
        return str(found)

    def _search_tool(self) -> StructuredTool:
        def search(query: str, limit: int = 5) -> str:
            if self._store is None:
                raise ConfigurationError("ConversationMiddleware has only an async_store: use ainvoke or pass store=")
            return conversation_search_tool(self._store, self._current())(query, limit)

        async def asearch(query: str, limit: int = 5) -> str:
            if self._async_store is None:
                return search(query, limit)
            return await conversation_search_tool(self._async_store, self._current())(query, limit)

        return StructuredTool.from_function(search, asearch, name=NAME, description=DESCRIPTION)


def _joined(
    stored: Sequence[BaseMessage], given: Sequence[BaseMessage]
) -> tuple[dict[str, Any] | None, Sequence[BaseMessage]]:
    """The update that puts the stored messages before the given ones, if there are any; and those that are new."""
    known = {message.id for message in stored}
    new = [message for message in given if message.id not in known]
    if not stored or len(new) + len(stored) == len(given):
        return None, new
    return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *stored, *new]}, new


def _results(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """The tool results at the end."""
    return list(takewhile(lambda message: isinstance(message, ToolMessage), reversed(messages)))[::-1]
