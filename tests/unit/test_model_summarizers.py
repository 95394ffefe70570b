"""Summarisers over the SDKs of OpenAI and Anthropic, against a local server that speaks their wire formats."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

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
from redis_history.model import Message
from tests.support.models import ModelServer
from tests.support.prompts import HOSTILE

MESSAGES = [
    user("My bag is lost."),
    assistant("Let me look.", tool_use("c1", "find_luggage", {"tag": "KL 4711"})),
    tool(tool_result("c1", "It is in Porto.")),
]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    server = ModelServer()
    yield server
    server.close()


Make = Callable[..., Any]


@pytest.fixture(params=["openai", "anthropic"])
def vendor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(vendor: str, server: ModelServer) -> Iterator[Make]:
    """Makes a summariser of the vendor, over the local server; clients are closed afterwards."""
    clients: list[Any] = []

    def make(**options: Any) -> Any:
        if vendor == "openai":
            import openai

            client: Any = openai.OpenAI(
                base_url=f"{server.url}/v1", api_key="k", max_retries=options.pop("max_retries", 0),
                timeout=options.pop("timeout", 20.0),
            )  # fmt: skip
            clients.append(client)
            return openai_summarizer("m", client=client, base_url="http://ignored", **options)
        import anthropic

        client = anthropic.Anthropic(
            base_url=server.url, api_key="k", max_retries=options.pop("max_retries", 0),
            timeout=options.pop("timeout", 20.0),
        )  # fmt: skip
        clients.append(client)
        return anthropic_summarizer("m", client=client, **options)

    yield make
    for client in clients:
        client.close()


def said(server: ModelServer, vendor: str, which: int = -1) -> tuple[str, str]:
    """The instructions and the data that the model got."""
    _, _, body = server.requests[which]
    if vendor == "openai":
        system, asked = body["messages"]
        assert (system["role"], asked["role"]) == ("system", "user")
        return system["content"], asked["content"]
    (asked,) = body["messages"]
    return body["system"], asked["content"]


def test_the_conversation_is_asked_about_and_the_answer_given(make: Make, server: ModelServer, vendor: str) -> None:
    server.answers = ["  The bag of KL 4711 is in Porto.\n"]
    assert make()(MESSAGES, None) == "The bag of KL 4711 is in Porto."
    (path, headers, body) = server.requests[0]
    prompt, question = said(server, vendor)
    assert "summary" in prompt
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
    assert "previous_summary" not in question
    assert body["model"] == "m"
    assert body["max_tokens"] == 1024
    if vendor == "openai":
        assert path == "/v1/chat/completions"
        assert headers["authorization"] == "Bearer k"
    else:
        assert path == "/v1/messages"
        assert "k" in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer "))


@pytest.mark.proves("model-text")
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_text_ends_the_data_or_becomes_an_instruction(
    make: Make, server: ModelServer, vendor: str, hostile: str
) -> None:
    summarize = make()
    summarize([user("harmless")], None)
    prompt, question = said(server, vendor)
    mark = question.split(">", 1)[0].removeprefix("<conversation-")
    forged = hostile.replace("MARK", mark)  # of an earlier call; the next one has another
    messages = [
        user(forged, participant=Participant("user", "u1", forged)),
        assistant(tool_use("c1", forged, {forged: forged})),
        tool(tool_result("c1", forged)),
    ]
    summarize(messages, forged)
    told, question = said(server, vendor)
    first, summary, second, begin, *lines, end = question.splitlines()
    new = begin.removeprefix("<conversation-").removesuffix(">")
    assert (first, second) == (f"<previous_summary-{new}>", f"</previous_summary-{new}>")
    assert (end, told) == (f"</conversation-{new}>", prompt.replace(mark, new))
    assert json.loads(summary) == forged
    assert [json.loads(line)["role"] for line in lines] == ["user", "assistant", "tool"]
    assert json.loads(lines[0])["text"] == forged.strip()
    assert "</" not in "".join([summary, *lines])


def test_a_long_conversation_is_given_in_portions(make: Make, server: ModelServer, vendor: str) -> None:
    server.answers = ["first", "second", "third", "last"]
    messages = [user(f"{number}: " + "word " * 70) for number in range(4)]
    assert make(max_input_tokens=100)(messages, "before") == "last"
    assert len(server.requests) == 4
    for number, previous in enumerate(("before", "first", "second", "third")):
        question = said(server, vendor, number)[1]
        assert f'\n"{previous}"\n' in question
        assert f'"text":"{number}: ' in question


def test_one_message_that_is_too_long_is_cut(make: Make, server: ModelServer, vendor: str) -> None:
    make(max_input_tokens=100)([user("x" * 1_000_000)], None)
    assert len(server.requests) == 1
    question = said(server, vendor)[1]
    assert "characters left out" in question
    assert len(question) < 600


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "   ",
        (500, {"error": {"message": "boom", "type": "server_error"}}),
        (400, {"error": {"message": "prompt is too long", "type": "invalid_request_error"}}),
        (401, {"error": {"message": "bad key", "type": "authentication_error"}}),
        (429, {"error": {"message": "slow down", "type": "rate_limit_error"}}),
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


def test_a_server_that_does_not_answer_is_an_error(make: Make, server: ModelServer) -> None:
    silent = threading.Event()
    server.answers = [silent]
    try:
        with pytest.raises(SummaryError, match="Timeout"):
            make(timeout=0.2)(MESSAGES, None)
    finally:
        silent.set()


def test_a_failure_that_passes_is_tried_again(make: Make, server: ModelServer, vendor: str) -> None:
    server.answers = [(503, {"error": {"message": "busy", "type": "overloaded_error"}}), "At last."]
    assert make(max_retries=1)(MESSAGES, None) == "At last."
    assert len(server.requests) == 2


def test_messages_without_text_are_an_error(make: Make, server: ModelServer) -> None:
    with pytest.raises(SummaryError):
        make()([Message(role="assistant")], None)
    assert not server.requests
    assert make()([Message(role="assistant")], "before") == "before"


def test_bad_options(vendor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make: Any = openai_summarizer if vendor == "openai" else anthropic_summarizer
    for options in (
        {"model": ""},
        {"model": None},
        {"prompt": " "},
        {"max_tokens": 0},
        {"max_input_tokens": 1},
        {"timeout": 0},
        {"timeout": float("nan")},
        {"max_retries": -1},
    ):
        with pytest.raises(ConfigurationError):
            make(**{"model": "m", "api_key": "k", **options})
    monkeypatch.setitem(sys.modules, vendor, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'redis_history\[{vendor}\]'"):
        make("m")


def test_a_missing_key_is_an_error(vendor: str, monkeypatch: pytest.MonkeyPatch, server: ModelServer) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    make: Any = openai_summarizer if vendor == "openai" else anthropic_summarizer
    with pytest.raises((ConfigurationError, SummaryError), match=r"(?i)api_key|credential|auth"):
        make("m", base_url=server.url)(MESSAGES, None)
    assert not server.requests


def test_prompt_limit_and_options_are_the_callers(make: Make, server: ModelServer, vendor: str) -> None:
    make(prompt="Be brief.", max_tokens=77, options={"extra_body": {"temperature": 0.25}})(MESSAGES, None)
    assert said(server, vendor)[0].startswith("Be brief.\n\n")
    body = server.requests[0][2]
    assert (body["max_tokens"], body["temperature"]) == (77, 0.25)


def test_clients_are_made_from_options(server: ModelServer, vendor: str) -> None:
    make: Any = openai_summarizer if vendor == "openai" else anthropic_summarizer
    url = f"{server.url}/v1" if vendor == "openai" else server.url
    assert make("m", base_url=url, api_key="k", timeout=20)(MESSAGES, None) == "A summary."


def test_openai_itself_is_given_the_newer_name_of_the_limit(server: ModelServer) -> None:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k") as client:
        openai_summarizer("m", client=client)(MESSAGES, None)
    assert server.requests[0][2]["max_completion_tokens"] == 1024
