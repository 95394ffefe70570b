"""The blocks of docs/how-to/chat.md as servers: FastAPI, agent frameworks, another origin behind a proxy."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from agents import set_tracing_disabled
from agents.testing import ScriptedModel
from fastapi import FastAPI
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from redis_history.web import ChatEndpoints, allow_all
from tests.docs.pages import DOCS, blocks
from tests.docs.test_examples import LOCAL
from tests.support.servers import Start
from tests.support.web import listening

ORIGIN = "https://app.example.com"


@pytest.fixture
async def page(own_server: Start) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """The names after each block of the page, by its text."""
    session: dict[str, Any] = {"__name__": "__example__"}
    after: dict[str, dict[str, Any]] = {}
    url = own_server("plain").url
    for block in blocks(DOCS / "how-to" / "chat.md"):
        if block.language == "python":
            exec(block.content.replace(LOCAL, url), session)
            after[block.content] = dict(session)
    yield after
    await session["store"].aclose()


def names_of(page: dict[str, dict[str, Any]], text: str) -> dict[str, Any]:
    """The names after the block with this text; later blocks have other agents and answers."""
    [found] = [names for block, names in page.items() if text in block]
    found["answer"].__globals__.update(found)
    return found


def body(number: int) -> dict[str, Any]:
    message = {"id": f"u{number}", "role": "user", "parts": [{"type": "text", "text": f"question {number}"}]}
    return {"id": "c", "messages": [message], "trigger": "submit-message"}


async def answered(client: httpx.AsyncClient, path: str, number: int, **options: Any) -> str:
    """The text of the streamed answer to a question."""
    response = await client.post(path, json=body(number), **options)
    assert response.status_code == 200, response.text
    lines = (line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {"))
    return "".join(json.loads(line).get("delta", "") for line in lines)


async def test_fastapi_needs_no_redirect(page: Any) -> None:
    found = names_of(page, 'app = FastAPI(routes=[chat.mount("/api/chat")], lifespan')
    assert isinstance(found["app"], FastAPI)
    async with listening(found["app"], lifespan="on") as port, httpx.AsyncClient(timeout=20) as client:
        assert await answered(client, f"http://127.0.0.1:{port}/api/chat", 1) == "question 1 "
        stored = await client.get(f"http://127.0.0.1:{port}/api/chat/c/messages")
        assert [one["role"] for one in stored.json()] == ["user", "assistant"]


def scripted(names: dict[str, Any]) -> list[list[Any]]:
    """Give the agent of the OpenAI Agents SDK a model. Returns the questions of each of its inputs."""
    set_tracing_disabled(True)
    model, asked = ScriptedModel(), list[list[Any]]()
    stream = model.stream_response

    def stream_response(instructions: Any, given: Any, *args: Any, **options: Any) -> Any:
        asked.append([item.get("content") for item in given if item.get("role") == "user"])
        return stream(instructions, given, *args, **options)

    model.stream_response = stream_response
    for number in (1, 2):
        text = ResponseOutputText(type="output_text", text=f"answer {number}", annotations=[])
        fields: dict[str, Any] = {"type": "message", "role": "assistant", "status": "completed"}
        model.enqueue([ResponseOutputMessage(id=f"m{number}", content=[text], **fields)])
    names["agent"].model = model
    return asked


def function(names: dict[str, Any]) -> list[list[Any]]:
    """The same for the agent of Pydantic AI."""
    asked: list[list[Any]] = []

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        asked.append([part.content for one in messages for part in one.parts if part.part_kind == "user-prompt"])
        yield "answer "
        yield str(len(asked))

    names["agent"].model = FunctionModel(stream_function=stream)
    return asked


@pytest.mark.parametrize(
    ("framework", "models"), [("from agents import", scripted), ("import PydanticAIHistory", function)]
)
async def test_a_framework_gets_and_stores_each_question_once(page: Any, framework: str, models: Any) -> None:
    found = names_of(page, framework)
    asked = models(found)
    chat = ChatEndpoints(found["store"], found["answer"], authorize=allow_all)
    async with listening(FastAPI(routes=[chat.mount("/c")])) as port, chat, httpx.AsyncClient(timeout=20) as client:
        for number in (1, 2):
            assert await answered(client, f"http://127.0.0.1:{port}/c", number) == f"answer {number}"
    assert asked == [["question 1"], ["question 1", "question 2"]]
    stored = [(one.role, one.text, one.status) for one in await found["store"].get("c")]
    assert stored == [
        (role, f"{text} {number}", "complete")
        for number in (1, 2)
        for role, text in (("user", "question"), ("assistant", "answer"))
    ]


async def test_another_origin_behind_a_proxy(page: Any) -> None:
    """The proxy strips /v1. The browser sends Origin, and first a preflight."""
    found = names_of(page, f'origins=["{ORIGIN}"]')
    # The answer of the page's first block, whose model needs no key.
    found["chat"]._answer = names_of(page, "tokens of your model")["answer"]
    served = listening(found["app"], lifespan="on", root_path="/v1")
    async with served as port, httpx.AsyncClient(timeout=20) as client:
        url = f"http://127.0.0.1:{port}/chat"
        headers = {"Host": "api.example.com", "Origin": ORIGIN}
        wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
        preflight = await client.options(url, headers=headers | wanted)
        assert preflight.is_success
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert await answered(client, url, 1, headers=headers) == "question 1 "
        read = await client.get(f"{url}/c/messages", headers=headers)
        assert (read.status_code, read.headers["access-control-allow-origin"]) == (200, ORIGIN)
        for wrong in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            assert (await client.post(url, json=body(2), headers=headers | wrong)).status_code == 403
