"""The same backend with an agent of Pydantic AI that has a tool: `uvicorn agent:app`. Its model needs no key."""

from app import application, store
from pydantic_ai import Agent, FunctionToolResultEvent, PartDeltaEvent, PartEndEvent, PartStartEvent
from pydantic_ai.messages import TextPart, TextPartDelta, ToolCallPart
from pydantic_ai.models.test import TestModel

from redis_history import tool, tool_result, tool_use
from redis_history.integrations.pydantic_ai import to_pydantic_ai
from redis_history.web import ChatEndpoints, allow_all

agent = Agent(TestModel(custom_output_text="It is sunny."))


@agent.tool_plain
def weather(place: str) -> str:
    return f"Sunny in {place}"


async def answer(run):
    messages = to_pydantic_ai(await store.get(run.conversation_id))
    async with agent.iter(message_history=messages) as steps:
        async for step in steps:
            if Agent.is_model_request_node(step):
                async with run.stream() as reply, step.stream(steps.ctx) as events:
                    async for event in events:
                        match event:
                            case PartStartEvent(part=TextPart(content=text)):
                                await reply.write(text)
                            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                                await reply.write(text)
                            case PartEndEvent(part=ToolCallPart() as call):
                                await reply.add(tool_use(call.tool_call_id, call.tool_name, call.args_as_dict()))
            elif Agent.is_call_tools_node(step):
                async with step.stream(steps.ctx) as events:
                    async for event in events:
                        if isinstance(event, FunctionToolResultEvent):
                            await run.append(tool(tool_result(event.part.tool_call_id, event.part.content)))


app = application(ChatEndpoints(store, answer, authorize=allow_all, agent_name="weather"))
