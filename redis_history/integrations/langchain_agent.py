"""A middleware for LangChain's `create_agent`: it loads, saves and searches the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired

from redis_history import AsyncHistoryStore, HistoryStore, ToolUsePart, conversation_search_tool
from redis_history.agents.tools import DESCRIPTION, NAME
from redis_history.errors import ApprovalNotFoundError, ConfigurationError
from redis_history.formats import OnLoss
from redis_history.integrations import _approvals
from redis_history.integrations._extras import asynchronous, asynchronous_of, checked_id
from redis_history.integrations._langchain_state import Common, StateSync
from redis_history.integrations.langchain import LangChainHistory
from redis_history.store.operations import Steps, take_snapshot
from redis_history.values._validation import missing
from redis_history.values.pairs import open_calls

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain.agents.middleware.types import PrivateStateAttr
    from langchain_core.messages import RemoveMessage
    from langchain_core.tools import StructuredTool
    from langgraph.config import get_config
    from langgraph.graph.message import REMOVE_ALL_MESSAGES
    from langgraph.runtime import Runtime
    from langgraph.types import Command, Interrupt
except ImportError as error:
    raise missing("langchain-agents", error) from error

__all__ = ["ConversationMiddleware", "decisions_command", "request_approvals"]

#: The newest messages, among which the calls of an interrupted agent are.
_READ = 200
_FIELD = "redis_history"  # of the state


class _State(AgentState[Any]):
    #: For each conversation, what it has in common with the state.
    redis_history: NotRequired[Annotated[dict[str, Common], PrivateStateAttr]]


class ConversationMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """`create_agent(model, tools, middleware=[ConversationMiddleware(store)])`. The caller closes the stores.

    The conversation is `conversation_id`, or the `thread_id` in the config of the call. Before the agent starts, the
    stored messages are put before the given ones; each message is stored when it is there, so that a crash loses none.
    `limit` loads only that number of the newest messages. `search=True` gives the agent the tool `conversation_search`
    for its own conversation. `store` is for `invoke`, `async_store` for `ainvoke`. `on_loss` as in LangChainHistory.

    Messages that another middleware changes or removes are changed or removed in the conversation; a summary that it
    puts in their place is stored like that of a compaction. Put this one first in the list: only then it is there after
    the `after_agent` of the others, and stores what that adds.

    No checkpointer is needed. With one, changes of the state reach the conversation at the next step: removals,
    `update_state`, time travel. Messages that were compacted, edited or deleted in the conversation, or that are older
    than `limit`, do not come back from the state.
    Raises StoreTypeError without a store or for another kind of store. A call without a conversation raises
    ConfigurationError.
    """

    state_schema = _State

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
        self._any = asynchronous_of(store, async_store, type(self).__name__)
        self._conversation_id = None if conversation_id is None else checked_id(conversation_id)
        self._options: dict[str, Any] = {"async_store": async_store, "limit": limit, "on_loss": on_loss}
        self._store = store
        self.tools = [self._search_tool()] if search else []

    def before_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        return self._history()._sync().execute(self._begin(state, runtime))

    async def abefore_agent(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any]:
        return await self._any.execute(self._begin(state, runtime))

    # Tools, other middleware and structured output also change messages, and end the agent before the next model call.

    def before_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        return self._history()._sync().execute(self._save(state, runtime))

    async def abefore_model(self, state: AgentState[Any], runtime: Runtime[Any]) -> dict[str, Any] | None:
        return await self._any.execute(self._save(state, runtime))

    after_model = after_agent = before_model
    aafter_model = aafter_agent = abefore_model

    def _begin(self, state: AgentState[Any], runtime: Runtime[Any]) -> Steps[dict[str, Any]]:
        sync = self._synced(state, runtime)
        joined = yield from sync.begin()
        update = self._update(state, sync) or {}
        if joined != state["messages"]:
            update["messages"] = [RemoveMessage(id=REMOVE_ALL_MESSAGES), *joined]
        return update

    def _save(self, state: AgentState[Any], runtime: Runtime[Any]) -> Steps[dict[str, Any] | None]:
        sync = self._synced(state, runtime)
        yield from sync.save()
        return self._update(state, sync)

    def _synced(self, state: Any, runtime: Runtime[Any]) -> StateSync:
        history = self._history()
        config = get_config()
        is_outermost = "|" not in config.get("configurable", {}).get("checkpoint_ns", "")
        return StateSync(
            history,
            state,
            state.get(_FIELD, {}).get(history.session_id),
            thread=getattr(runtime.execution_info, "thread_id", None),
            travels=is_outermost and "checkpoint_id" in config.get("metadata", {}),
        )

    def _update(self, state: Any, sync: StateSync) -> dict[str, Any] | None:
        common = sync.common
        return None if common is None else {_FIELD: {**state.get(_FIELD, {}), self._current(): common}}

    def _history(self) -> LangChainHistory:
        return LangChainHistory(self._current(), self._store, **self._options)

    def _current(self) -> str:
        found = self._conversation_id or get_config().get("configurable", {}).get("thread_id")
        if found in (None, ""):
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
            return await conversation_search_tool(self._any, self._current())(query, limit)

        return StructuredTool.from_function(search, asearch, name=NAME, description=DESCRIPTION)


async def request_approvals(
    store: HistoryStore | AsyncHistoryStore, conversation_id: str, interrupts: Sequence[Interrupt]
) -> None:
    """Make the calls for which HumanInTheLoopMiddleware has interrupted an agent wait for `store.decide`.
    `interrupts`: `result["__interrupt__"]`. Put ConversationMiddleware behind it in the list: only then the calls are
    stored before. A HistoryStore is used in threads. Raises ApprovalNotFoundError if a call is not stored."""
    await asynchronous(store, "request_approvals").execute(_request(conversation_id, interrupts))


def _request(conversation_id: str, interrupts: Sequence[Interrupt]) -> Steps[None]:
    calls = [call for _, calls in (yield from _calls_of(conversation_id, interrupts)) for call in calls]
    yield from _approvals.request_approvals(conversation_id, calls)


async def decisions_command(
    store: HistoryStore | AsyncHistoryStore, conversation_id: str, interrupts: Sequence[Interrupt]
) -> Command[Any] | None:
    """The command that resumes such an agent as it was decided: `agent.invoke(command, config)`. None while one of the
    calls waits."""
    return await asynchronous(store, "decisions_command").execute(_command(conversation_id, interrupts))


def _command(conversation_id: str, interrupts: Sequence[Interrupt]) -> Steps[Command[Any] | None]:
    found = yield from _approvals.decisions(conversation_id)
    if found is None:
        return None
    resume: dict[str, Any] = {}
    for one, calls in (yield from _calls_of(conversation_id, interrupts)):
        if not all(call in found for call in calls):
            return None
        decided = [_decision(found[call]) for call in calls]
        resume[one.id] = {"decisions": decided} if "action_requests" in one.value else decided[0]
    return Command(resume=resume)


def _decision(found: Mapping[str, Any]) -> dict[str, Any]:
    if found["approved"]:
        return {"type": "approve"}
    reason = _approvals.reason_of(found)
    return {"type": "reject"} if reason is None else {"type": "reject", "message": reason}


def _calls_of(conversation_id: str, interrupts: Sequence[Interrupt]) -> Steps[list[tuple[Interrupt, list[str]]]]:
    """The interrupts for tool calls, and the ids of these calls: the open ones of this name and arguments, in order."""
    page = yield from take_snapshot(conversation_id, _READ)
    waiting = [call for _, calls in open_calls(page.messages) for call in calls]
    found = []
    for one in interrupts:
        value = one.value
        if not isinstance(value, Mapping):
            continue
        if isinstance(own := value.get("tool_call_id"), str):  # interrupt_mode="per_call"
            found.append((one, [own]))
        elif "action_requests" in value:
            calls = []
            for action in value["action_requests"]:
                at = next((at for at, call in enumerate(waiting) if _is_of(call, action)), None)
                if at is None:
                    raise ApprovalNotFoundError(
                        f"conversation {conversation_id[:80]!r} has no open call of {str(action.get('name'))[:60]!r} "
                        "with these arguments: put ConversationMiddleware behind HumanInTheLoopMiddleware"
                    )
                calls.append(waiting.pop(at).id)
            found.append((one, calls))
    return found


def _is_of(call: ToolUsePart, action: Mapping[str, Any]) -> bool:
    return call.name == action.get("name") and call.input == action.get("args")
