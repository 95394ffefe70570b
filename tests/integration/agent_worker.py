"""One turn of an agent in a separate process: `agent_worker.py framework redis namespace conversation model text`.

`model` is the URL of the local model server; the name of the framework is the name of the model it asks for. Prints the
answer. A connection to anywhere but this machine ends the process.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from typing import Any

from openai import AsyncOpenAI

from redis_history import AsyncHistoryStore
from tests.support.model_server import ModelServer


def add(a: int, b: int) -> int:
    return a + b


async def pydantic_ai(client: AsyncOpenAI, url: str, namespace: str, conversation: str, text: str) -> str:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from redis_history.integrations.pydantic_ai import PydanticAIHistory

    agent = Agent(OpenAIChatModel("pydantic_ai", provider=OpenAIProvider(openai_client=client)))
    agent.tool_plain(add)
    async with AsyncHistoryStore(url, namespace=namespace) as store:
        history = PydanticAIHistory(conversation, store)
        result = await agent.run(text, message_history=await history.load())
        await history.append(result.new_messages())
        return result.output


async def openai_agents(client: AsyncOpenAI, url: str, namespace: str, conversation: str, text: str) -> str:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled

    from redis_history.integrations.openai_agents import AgentsSession

    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel("openai_agents", client)
    agent = Agent(name="local", model=model, tools=[function_tool(add)])
    session = AgentsSession.from_url(conversation, url, namespace=namespace)
    try:
        result = await Runner.run(agent, text, session=session)
        return str(result.final_output)
    finally:
        await session.close()


def stay_here(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook. It ends the process, as what a thread in the background raises is seen by nobody."""
    if event == "socket.connect" and isinstance(args[1], tuple):
        host = args[1][0]
    elif event == "socket.getaddrinfo":
        host = args[0]
    else:
        return
    if host not in ("127.0.0.1", "::1"):
        os.write(2, f"a connection to {host}\n".encode())
        os._exit(3)


async def turn(framework: str, url: str, namespace: str, conversation: str, model: str, text: str) -> str:
    run = {"pydantic_ai": pydantic_ai, "openai_agents": openai_agents}[framework]
    async with AsyncOpenAI(base_url=model, api_key=ModelServer.key, max_retries=0) as client:
        return await run(client, url, namespace, conversation, text)


if __name__ == "__main__":
    warnings.simplefilter("default")
    sys.addaudithook(stay_here)
    print(asyncio.run(turn(*sys.argv[1:])))
