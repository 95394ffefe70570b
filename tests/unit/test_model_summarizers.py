"""Summarizers over the SDKs of OpenAI and Anthropic, against a local server that speaks their wire formats."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from redis_history import (
    Participant,
    anthropic_summarizer,
    assistant,
    openai_summarizer,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError, MissingExtraError, SummaryError
from redis_history.values import Message
from tests.support.models import ModelServer
from tests.support.prompts import HOSTILE

MESSAGES = [
    user("My bag is lost."),
    assistant("Let me look.", tool_use("c1", "find_luggage", {"tag": "KL 4711"})),
    tool(tool_result("c1", "It is in Porto.")),
]
FACTORIES: dict[str, Any] = {"openai": openai_summarizer, "anthropic": anthropic_summarizer}
Make = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    server = ModelServer()
    yield server
    server.close()


@pytest.fixture(params=FACTORIES)
def vendor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(vendor: str, server: ModelServer) -> Make:
    """Makes a summarizer of the vendor, over the local server."""
    kind = {"openai": openai.OpenAI, "anthropic": anthropic.Anthropic}[vendor]
    url = f"{server.url}/v1" if vendor == "openai" else server.url

    def make(*, max_retries: int = 0, timeout: float = 20.0, **options: Any) -> Any:
        client = kind(base_url=url, api_key="k", max_retries=max_retries, timeout=timeout)
        return FACTORIES[vendor]("m", base_url=url, client=client, **options)

    return make


def sent(server: ModelServer, vendor: str, number: int = -1) -> tuple[str, str]:
    """The instructions and the data that the model got."""
    _, _, body = server.requests[number]
    if vendor == "openai":
        system, asked = body["messages"]
        assert (system["role"], asked["role"]) == ("system", "user")
        return system["content"], asked["content"]
    (asked,) = body["messages"]
    return body["system"], asked["content"]


def test_the_conversation_is_sent_and_the_answer_returned(make: Make, server: ModelServer, vendor: str) -> None:
    server.answers = ["  The bag of KL 4711 is in Porto.\n"]
    summarize = make(prompt="Be brief.", max_tokens=77, options={"extra_body": {"temperature": 0.25}})
    assert summarize(MESSAGES, None) == "The bag of KL 4711 is in Porto."
    (path, headers, body) = server.requests[0]
    prompt, question = sent(server, vendor)
    assert prompt.startswith("Be brief.\n\n")
    first, *lines, last = question.splitlines()
    mark = first.removeprefix("<conversation-").removesuffix(">")
    assert last == f"</conversation-{mark}>"
    assert mark in prompt
    assert [json.loads(line) for line in lines] == [
        {"role": "user", "text": "My bag is lost."},
        {
            "role": "assistant",
            "parts": [{"text": "Let me look."}, {"calls": "find_luggage", "with": '{"tag":"KL 4711"}'}],
        },
        {"role": "tool", "parts": [{"tool": "", "result": "It is in Porto."}]},
    ]
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 77, 0.25)
    assert path == ("/v1/chat/completions" if vendor == "openai" else "/v1/messages")
    assert "k" in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer "))


@pytest.mark.proves("model-text")
@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.full
def test_no_text_ends_the_data_or_becomes_an_instruction(
    make: Make, server: ModelServer, vendor: str, hostile: str
) -> None:
    summarize = make()
    summarize([user("harmless")], None)
    prompt, question = sent(server, vendor)
    mark = question.split(">", 1)[0].removeprefix("<conversation-")
    forged = hostile.replace("MARK", mark)  # of an earlier call, and the next call has another mark
    messages = [
        user(forged, participant=Participant("user", "u1", forged)),
        assistant(tool_use("c1", forged, {forged: forged})),
        tool(tool_result("c1", forged)),
    ]
    summarize(messages, forged)
    instructions, question = sent(server, vendor)
    first, summary, second, begin, *lines, end = question.splitlines()
    new = begin.removeprefix("<conversation-").removesuffix(">")
    assert (first, second) == (f"<previous_summary-{new}>", f"</previous_summary-{new}>")
    assert (end, instructions) == (f"</conversation-{new}>", prompt.replace(mark, new))
    assert json.loads(summary) == forged
    assert [json.loads(line)["role"] for line in lines] == ["user", "assistant", "tool"]
    assert json.loads(lines[0])["text"] == forged.strip()
    assert "</" not in "".join([summary, *lines])


def test_a_long_conversation_is_sent_in_portions(make: Make, server: ModelServer, vendor: str) -> None:
    server.answers = ["first", "second", "third", "fourth", "last"]
    messages = [user(f"{number}: " + "word " * 70) for number in range(4)]
    assert make(max_input_tokens=100)([*messages, user("x" * 1_000_000)], "before") == "last"
    assert len(server.requests) == 5
    for number, previous in enumerate(("before", "first", "second", "third")):
        question = sent(server, vendor, number)[1]
        assert f'\n"{previous}"\n' in question
        assert f'"text":"{number}: ' in question
    question = sent(server, vendor)[1]
    assert "characters left out" in question
    assert len(question) < 700


@pytest.mark.parametrize(
    "answer",
    [
        "   ",
        (500, {"error": {"message": "boom", "type": "server_error"}}),
        (401, {"error": {"message": "bad key", "type": "authentication_error"}}),
        (200, b"<html>a gateway's page</html>"),
        (200, {"choices": []}),
        (200, {"content": None}),
        (200, {"error": {"message": "no such model"}}),
    ],
    ids=str,
)
def test_an_invalid_answer_is_an_error(make: Make, server: ModelServer, answer: Any) -> None:
    server.answers = [answer]
    with pytest.raises(SummaryError) as caught:
        make()(MESSAGES, None)
    assert str(caught.value).startswith("m")


def test_an_answer_that_was_cut_off_is_an_error(make: Make, server: ModelServer, vendor: str) -> None:
    server.finish = "length" if vendor == "openai" else "max_tokens"
    with pytest.raises(SummaryError, match=r"1,024.*max_tokens"):
        make()(MESSAGES, None)
    server.finish = "content_filter" if vendor == "openai" else "refusal"
    with pytest.raises(SummaryError, match=server.finish):
        make()(MESSAGES, None)


def test_a_server_that_is_slow_or_busy(make: Make, server: ModelServer) -> None:
    silent = threading.Event()
    server.answers = [silent, (503, {"error": {"message": "busy", "type": "overloaded_error"}}), "At last."]
    try:
        with pytest.raises(SummaryError, match="Timeout"):
            make(timeout=0.2)(MESSAGES, None)
    finally:
        silent.set()
    assert make(max_retries=1)(MESSAGES, None) == "At last."


def test_messages_without_text_are_an_error(make: Make, server: ModelServer) -> None:
    with pytest.raises(SummaryError):
        make()([Message(role="assistant")], None)
    assert make()([Message(role="assistant")], "before") == "before"
    assert not server.requests


def test_a_client_of_openai_itself_gets_the_newer_name_of_the_limit(server: ModelServer) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
        openai_summarizer("m", client=client)(MESSAGES, None)
    assert server.requests[0][2]["max_completion_tokens"] == 1024


def test_bad_options(vendor: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    make = FACTORIES[vendor]
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "k")
    for options in (
        *({"model": ""}, {"model": None}, {"prompt": " "}, {"max_tokens": 0}, {"max_input_tokens": 1}),
        *({"options": [1]}, {"base_url": 5}, {"base_url": " "}),
    ):
        with pytest.raises(ConfigurationError):
            make(**{"model": "m", **options})
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((ConfigurationError, SummaryError), match=r"(?i)api_key|credential|auth"):
        make("m", base_url=server.url)(MESSAGES, None)
    assert not server.requests
    monkeypatch.setitem(sys.modules, vendor, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'redis_history\[{vendor}\]'"):
        make("m")
