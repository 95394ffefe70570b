"""Two frameworks run agents with a tool, in processes of their own, on one conversation and one model server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from redis_history import AsyncHistoryStore, HistoryStore
from tests.support import sdk
from tests.support.model_server import ModelServer
from tests.support.servers import RealServer

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ["pydantic_ai", "openai_agents"]


@dataclass(frozen=True)
class Place:
    """Which conversation, on which server."""

    url: str
    namespace: str
    conversation: str


def turn(framework: str, place: Place, model: ModelServer, text: str) -> str:
    command = [sys.executable, "-m", "tests.integration.agent_worker", framework, *astuple(place), model.url, text]
    # Without proxies and keys from the environment of the test run.
    env = {name: value for name, value in os.environ.items() if "PROXY" not in name.upper() and "OPENAI" not in name}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=env, check=False)
    assert done.returncode == 0, (done.stderr, model.refused)
    return done.stdout.strip()


def sent(request: dict[str, Any]) -> list[Any]:
    """The messages of a request in one form for all frameworks. They are valid for OpenAI's types."""
    sdk.validate("openai_chat", request["messages"])
    return [_plain(message) for message in request["messages"]]


def _plain(message: dict[str, Any]) -> Any:
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    return message["role"], message.get("tool_call_id"), message.get("content") or "", calls


def exchange(call: str, a: int, b: int, questions: int) -> list[Any]:
    """A question, the call of the tool, its result, and the answer."""
    return [
        ("user", None, f"Add {a} and {b}", []),
        ("assistant", None, "", [(call, "add", {"a": a, "b": b})]),
        ("tool", call, str(a + b), []),
        ("assistant", None, f"{a + b}; {questions} questions", []),
    ]


@pytest.mark.proves("frameworks")
@pytest.mark.full  # each process takes seconds to import its framework
def test_one_process_goes_on_where_another_stopped(server: RealServer, namespace: str) -> None:
    for first, second in product(FRAMEWORKS, FRAMEWORKS):
        with ModelServer() as model:
            _goes_on(Place(server.url, namespace, f"{first} and {second}"), model, first, second)


def _goes_on(place: Place, model: ModelServer, first: str, second: str) -> None:
    assert turn(first, place, model, "Add 2 and 3") == "5; 1 questions"
    assert turn(second, place, model, "Add 20 and 30") == "50; 2 questions"
    assert turn(first, place, model, "And now?") == "hello; 3 questions"
    whole = [*exchange("call_1", 2, 3, 1), *exchange("call_2", 20, 30, 2), ("user", None, "And now?", [])]
    assert [request["model"] for request in model.requests] == [first, first, second, second, first]
    assert [sent(request) for request in model.requests] == [whole[:length] for length in (1, 3, 5, 7, 9)]
    with HistoryStore(place.url, namespace=place.namespace) as store:
        messages = store.get(place.conversation)
    assert [message.role for message in messages] == [*(role for role, *_ in whole), "assistant"]
    calls = [use for message in messages for use in message.tool_uses]
    results = [result for message in messages for result in message.tool_results]
    assert [(call.id, call.input) for call in calls] == [("call_1", {"a": 2, "b": 3}), ("call_2", {"a": 20, "b": 30})]
    assert [result.tool_use_id for result in results] == ["call_1", "call_2"]


@pytest.mark.proves("frameworks")
@pytest.mark.full
def test_both_at_once_lose_nothing(server: RealServer, namespace: str) -> None:
    place = Place(server.url, namespace, "shared")
    with ModelServer(meet=2) as model:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda name: turn(name, place, model, "Add 1 and 1"), FRAMEWORKS))
        assert [answer.split(";")[0] for answer in answers] == ["2", "2"]
        # The model answered neither of them before it had the questions of both.
        assert {request["model"] for request in model.requests[:2]} == set(FRAMEWORKS)
        for name in FRAMEWORKS:
            asked, told = (sent(request) for request in model.requests if request["model"] == name)
            assert told[: len(asked)] == asked
            assert [role for role, *_ in told[len(asked) :]] == ["assistant", "tool"]
        with HistoryStore(server.url, namespace=namespace) as store:
            messages = store.get(place.conversation)
        assert sorted(message.role for message in messages) == ["assistant"] * 4 + ["tool"] * 2 + ["user"] * 2
        pairs = [
            (call.id, [result.tool_use_id for result in after.tool_results])
            for before, after in pairwise(messages)
            for call in before.tool_uses
        ]
        assert sorted(pairs) == [("call_1", ["call_1"]), ("call_2", ["call_2"])], "each result is right after its call"
        # The model refuses a history with a call whose result is elsewhere.
        for framework in FRAMEWORKS:
            assert turn(framework, place, model, "And now?").startswith("hello")


async def _openai_agents_turn(client: Any, store: AsyncHistoryStore | None, kept: dict[str, Any], text: str) -> None:
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, SQLiteSession, function_tool

    from redis_history.integrations.openai_agents import AgentsSession

    session: Any = AgentsSession("agents", store) if store else kept.setdefault("session", SQLiteSession("s"))
    agent = Agent(name="local", model=OpenAIChatCompletionsModel("m", client), tools=[function_tool(add)])
    run = Runner.run_streamed(agent, text, session=session, run_config=RunConfig(tracing_disabled=True))
    async for _ in run.stream_events():
        pass


async def _pydantic_ai_turn(client: Any, store: AsyncHistoryStore | None, kept: dict[str, Any], text: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from redis_history.integrations.pydantic_ai import PydanticAIHistory

    agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client)))
    agent.tool_plain(add)
    history = PydanticAIHistory("pydantic", store) if store else None
    before = await history.load() if history else kept.get("messages")
    async with agent.run_stream(text, message_history=before) as run:
        async for _ in run.stream_text():
            pass
    if history:
        await history.append(run.new_messages())
    kept["messages"] = run.all_messages()


@pytest.mark.proves("frameworks")
@pytest.mark.parametrize("turn", [_openai_agents_turn, _pydantic_ai_turn])
async def test_the_model_is_sent_the_same_as_with_the_frameworks_own_memory(
    server: RealServer, namespace: str, turn: Any
) -> None:
    """With tools and streams. For ours, each turn begins with a new store, as after a restart."""
    requests = []
    for ours in (False, True):
        kept: dict[str, Any] = {}
        with ModelServer() as model:
            for text in ("Add 2 and 3", "Add 4 and 5", "And now?"):
                async with AsyncExitStack() as stack:
                    http = httpx.AsyncClient(trust_env=False)
                    client = AsyncOpenAI(base_url=model.url, api_key=ModelServer.key, max_retries=0, http_client=http)
                    await stack.enter_async_context(client)
                    store = AsyncHistoryStore(server.url, namespace=namespace) if ours else None
                    await turn(client, await stack.enter_async_context(store) if store else None, kept, text)
            assert all(request["stream"] for request in model.requests)
            requests.append([request["messages"] for request in model.requests])
    assert requests[0] == requests[1]
    assert len(requests[0]) == 5


def add(a: int, b: int) -> int:
    return a + b


ASKED = {"role": "user", "content": "Add 1 and 1"}
CALLED = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": "{}"}}]}
GAVE = {"role": "tool", "tool_call_id": "c", "content": "2"}


@pytest.mark.parametrize(
    ("messages", "key", "status"),
    [
        ([ASKED, CALLED, GAVE], ModelServer.key, 200),
        ([ASKED], "another", 401),
        ([ASKED, CALLED], ModelServer.key, 400),
        ([ASKED, CALLED, ASKED, GAVE], ModelServer.key, 400),
        ([ASKED, GAVE], ModelServer.key, 400),
        ([ASKED, CALLED, GAVE, GAVE], ModelServer.key, 400),
    ],
)
def test_the_model_refuses_what_openai_refuses(messages: list[Any], key: str, status: int) -> None:
    # Else the tests above would not notice a history that no provider takes.
    with ModelServer() as model:
        request = urllib.request.Request(
            f"{model.url}/chat/completions",
            json.dumps({"model": "m", "messages": messages}).encode(),
            {"Authorization": f"Bearer {key}"},
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=10) as answer:
                answered = answer.status
        except urllib.error.HTTPError as error:
            with error:
                answered = error.code
        assert answered == status
        assert len(model.refused) == (status != 200)
