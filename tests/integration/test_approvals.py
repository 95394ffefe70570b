"""Frameworks that interrupt a run for the approval of a tool call, and resume it with the decisions of `decide`."""

from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, FunctionTool, ModelResponse, Runner, RunState, Usage
from agents import Model as AgentsModel
from agents import RunConfig as AgentsConfig
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import DeferredToolRequests, DeferredToolResults
from pydantic_ai.messages import ModelMessage, TextPart, ToolCallPart
from pydantic_ai.messages import ModelResponse as PydanticResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from redis_history import AsyncHistoryStore, HistoryStore, errors
from redis_history.integrations.langchain_agent import ConversationMiddleware, decisions_command, request_approvals
from redis_history.integrations.openai_agents import AgentsSession
from redis_history.integrations.pydantic_ai import PydanticAIHistory

DECISIONS = pytest.mark.parametrize("approved", [True, False])


def _seen(messages: list[Any]) -> str:
    return str(messages)


@DECISIONS
async def test_pydantic_ai_resumes_with_the_decisions(async_store: AsyncHistoryStore, approved: bool) -> None:
    requests: list[str] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> PydanticResponse:
        requests.append(str(messages))
        if len(messages) == 1:
            calls = [ToolCallPart("pay", {"amount": 3}, tool_call_id=name) for name in ("c1", "c2")]
            return PydanticResponse(parts=calls)
        return PydanticResponse(parts=[TextPart("done")])

    agent = PydanticAgent(FunctionModel(model), output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"

    history = PydanticAIHistory("c", async_store)
    result = await agent.run("pay", message_history=await history.load())
    await history.append(result.new_messages(), result.output)
    assert [one.call_id for one in await async_store.list_approvals()] == ["c1", "c2"]
    assert await history.decisions() is None
    await async_store.decide("c", "c1", approved, reason="too much", by="boss")
    assert await history.decisions() is None
    await async_store.decide("c", "c2", True)
    results = await history.decisions()
    assert isinstance(results, DeferredToolResults)
    assert results.answered_by == {"c1": "boss"}
    result = await agent.run(message_history=await history.load(), deferred_tool_results=results)
    assert result.output == "done"
    assert ("too much" in requests[-1]) is not approved
    await history.append(result.new_messages(), result.output)
    stored = await async_store.get("c")
    assert sorted(one.tool_use_id for message in stored for one in message.tool_results) == ["c1", "c2"]
    assert await history.decisions() is None
    assert await async_store.list_approvals() == []


class _Pays(AgentsModel):
    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        given = [input] if isinstance(input, str) else input
        self.requests.append(given)
        output: list[Any]
        if any(isinstance(item, dict) and item.get("type") == "function_call_output" for item in given):
            content = [{"type": "output_text", "text": "done", "annotations": []}]
            message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
            output = [ResponseOutputMessage.model_validate(message)]
        else:
            call = {"type": "function_call", "call_id": "c1", "name": "pay", "arguments": '{"amount": 3}'}
            output = [ResponseFunctionToolCall.model_validate(call)]
        return ModelResponse(output=output, usage=Usage(), response_id="r")

    def stream_response(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


@DECISIONS
async def test_the_agents_sdk_resumes_with_the_decisions(async_store: AsyncHistoryStore, approved: bool) -> None:
    async def pay(context: Any, arguments: str) -> str:
        return "paid"

    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    tool = FunctionTool("pay", "", schema, pay, strict_json_schema=False, needs_approval=True)
    model = _Pays()
    agent: Agent[Any] = Agent("a", tools=[tool], model=model)
    session, config = AgentsSession("c", async_store), AgentsConfig(tracing_disabled=True)
    result = await Runner.run(agent, "pay", session=session, run_config=config)
    await session.request_approvals(result.interruptions)
    await session.request_approvals(result.interruptions)
    [waiting] = await async_store.list_approvals()
    assert (waiting.call_id, waiting.tool_name, waiting.input) == ("c1", "pay", {"amount": 3})
    state = await RunState.from_string(agent, result.to_state().to_string())
    assert not await session.apply_decisions(state)
    await async_store.decide("c", "c1", approved, reason="too much")
    assert await session.apply_decisions(state)
    result = await Runner.run(agent, state, session=session, run_config=config)
    assert result.final_output == "done"
    assert ("too much" in _seen(model.requests[-1])) is not approved
    outputs = [item for item in await session.get_items() if item.get("type") == "function_call_output"]
    assert [item["call_id"] for item in outputs] == ["c1"]
    assert await async_store.list_approvals() == []


class _Asks(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **more: Any) -> Any:
        if isinstance(messages[-1], ToolMessage):
            answer = AIMessage(f"I saw: {[one.content for one in messages if isinstance(one, ToolMessage)]}")
        else:
            calls = [{"name": "pay", "args": {"amount": 3}, "id": name} for name in ("c1", "c2")]
            answer = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


@DECISIONS
@pytest.mark.parametrize("mode", ["batched", "per_call"])
async def test_langgraph_resumes_with_the_decisions(store: HistoryStore, approved: bool, mode: Any) -> None:
    @langchain_tool
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    asks = HumanInTheLoopMiddleware(interrupt_on={"pay": True}, interrupt_mode=mode)
    middleware: Any = [asks, ConversationMiddleware(store)]
    agent = create_agent(_Asks(), [pay], middleware=middleware, checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "c"}}
    result = agent.invoke({"messages": [("user", "pay")]}, config)
    interrupts = result["__interrupt__"]
    await request_approvals(store, "c", interrupts)
    assert [one.call_id for one in store.list_approvals()] == ["c1", "c2"]
    store.decide("c", "c1", approved, reason="too much")
    assert await decisions_command(store, "c", interrupts) is None
    store.decide("c", "c2", True)
    command = await decisions_command(store, "c", interrupts)
    result = agent.invoke(command, config)
    answer = result["messages"][-1].content
    assert ("too much" in answer) is not approved
    assert answer.count("paid 3") == (2 if approved else 1)
    results = [one.tool_use_id for message in store.get("c") for one in message.tool_results]
    assert sorted(results) == ["c1", "c2"]
    assert store.list_approvals() == []


async def test_calls_that_are_not_stored_cannot_wait(async_store: AsyncHistoryStore, store: HistoryStore) -> None:
    item: Any = SimpleNamespace(raw_item={"call_id": "c1"})
    with pytest.raises(errors.ApprovalNotFoundError, match="store the messages"):
        await AgentsSession("c", async_store).request_approvals([item])
    interrupt: Any = SimpleNamespace(id="i", value={"action_requests": [{"name": "pay", "args": {}}]})
    with pytest.raises(errors.ApprovalNotFoundError, match="behind HumanInTheLoopMiddleware"):
        await request_approvals(store, "c", [interrupt])
