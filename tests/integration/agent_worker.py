"""One turn of an agent in a process of its own: `agent_worker.py framework url namespace conversation text`.

The model is a local one: asked with numbers, it calls the tool `add` with them, and answers what the tool gave and how
many questions of the user it can see. Prints the answer.
"""

from __future__ import annotations

import asyncio
import re
import sys
import warnings
from typing import Any


def decide(questions: list[str], result: str | None) -> str | dict[str, int]:
    """The arguments of a call, or the answer."""
    numbers = [int(found) for found in re.findall(r"\d+", questions[-1])]
    if len(numbers) == 2 and result is None:
        return {"a": numbers[0], "b": numbers[1]}
    return f"{result or 'hello'}; {len(questions)} questions"


async def pydantic_ai(url: str, namespace: str, conversation: str, text: str) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
    from pydantic_ai.models.function import FunctionModel

    from redis_history import AsyncHistoryStore
    from redis_history.integrations.pydantic_ai import PydanticAIHistory

    def answer(messages: list[Any], info: Any) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        questions = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]
        last = messages[-1].parts[-1]
        decision = decide(questions, str(last.content) if isinstance(last, ToolReturnPart) else None)
        if isinstance(decision, str):
            return ModelResponse(parts=[TextPart(decision)])
        return ModelResponse(parts=[ToolCallPart("add", decision)])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        return a + b

    async with AsyncHistoryStore(url, namespace=namespace) as store:
        history = PydanticAIHistory(conversation, store)
        result = await agent.run(text, message_history=await history.load())
        await history.append(result.new_messages())
        return result.output


async def openai_agents(url: str, namespace: str, conversation: str, text: str) -> str:
    from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
    from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

    from redis_history.integrations.openai_agents import AgentsSession

    set_tracing_disabled(True)

    class Local(Model):
        async def get_response(self, system_instructions: Any, input: Any, *args: Any, **more: Any) -> ModelResponse:
            questions = [str(item["content"]) for item in input if item.get("role") == "user"]
            last = input[-1]
            decision = decide(questions, str(last["output"]) if last.get("type") == "function_call_output" else None)
            output: Any
            if isinstance(decision, str):
                said = ResponseOutputText(type="output_text", text=decision, annotations=[])
                output = ResponseOutputMessage(
                    id=f"msg_{len(input)}", type="message", role="assistant", status="completed", content=[said]
                )
            else:
                arguments = f'{{"a": {decision["a"]}, "b": {decision["b"]}}}'
                output = ResponseFunctionToolCall(
                    type="function_call", call_id=f"call_{len(input)}", name="add", arguments=arguments
                )
            return ModelResponse(output=[output], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **more: Any) -> Any:
            raise NotImplementedError

    @function_tool
    def add(a: int, b: int) -> int:
        return a + b

    session = AgentsSession.from_url(conversation, url, namespace=namespace)
    try:
        result = await Runner.run(Agent(name="local", model=Local(), tools=[add]), text, session=session)
        return str(result.final_output)
    finally:
        await session.close()


if __name__ == "__main__":
    warnings.simplefilter("default")
    framework, *rest = sys.argv[1:]
    print(asyncio.run({"pydantic_ai": pydantic_ai, "openai_agents": openai_agents}[framework](*rest)))
