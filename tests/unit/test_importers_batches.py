"""Batch files and logs of providers, ShareGPT, and messages that cannot be imported."""

import json
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore, Usage
from redis_history.errors import InvalidInputError
from redis_history.formats import to_anthropic, to_openai_chat, to_openai_responses
from redis_history.integrations.importers import import_messages, read_transcripts

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
ANSWER = {"role": "assistant", "content": "4"}
ITEMS = [
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "4"},
]
REPLY = {
    "type": "message",
    "id": "m",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "4", "annotations": []}],
}


def read(path: Path, *records: Any, **options: Any) -> tuple[list[Any], list[Any]]:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    problems: list[Any] = []
    return list(read_transcripts(path, on_error=problems.append, **options)), problems


def batch_input(url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": "1", "method": "POST", "url": url, "body": {"model": "m", **body}}


def batch_output(**body: Any) -> dict[str, Any]:
    return {"id": "batch_req_9", "custom_id": "1", "response": {"status_code": 200, "body": body}, "error": None}


CHOICES = [{"index": 0, "message": ANSWER, "finish_reason": "stop"}]
FILES = {
    "chat input": (batch_input("/v1/chat/completions", messages=ASKED), "openai_chat", ASKED),
    "chat output": (batch_output(object="chat.completion", choices=CHOICES), "openai_chat", [ANSWER]),
    "responses input": (batch_input("/v1/responses", input=[ASKED[1], *ITEMS]), "openai_responses", [ASKED[1], *ITEMS]),
    "responses text": (batch_input("/v1/responses", input="2+2?"), "openai_responses", [ASKED[1]]),
    "responses instructions": (
        batch_input("/v1/responses", input="2+2?", instructions="Be brief."), "openai_responses", ASKED,
    ),
    "responses output": (batch_output(object="response", output=[*ITEMS, REPLY]), "openai_responses", [*ITEMS, REPLY]),
    "anthropic input": ({"custom_id": "1", "params": {"model": "m", "system": "x", "messages": ASKED[1:]}}, "anthropic",
                        ASKED[1:]),
    "anthropic output": (
        {"custom_id": "1", "result": {"type": "succeeded", "message": {"id": "m", "type": "message", **ANSWER}}},
        "anthropic", [{"id": "m", "type": "message", **ANSWER}],
    ),
    "a log": ({"id": "1", "request": {"messages": ASKED}, "response": {"choices": CHOICES}}, "openai_chat",
              [*ASKED, ANSWER]),
    "an answer": ({"id": "1", "object": "chat.completion", "choices": CHOICES}, "openai_chat", [ANSWER]),
    "items on a line": ([ASKED[1], *ITEMS], "openai_responses", [ASKED[1], *ITEMS]),
}  # fmt: skip
TO: dict[str, Any] = {
    "openai_chat": to_openai_chat,
    "openai_responses": to_openai_responses,
    "anthropic": to_anthropic,
}


@pytest.mark.parametrize("name", FILES)
def test_requests_and_answers(tmp_path: Path, name: str) -> None:
    record, form, messages = FILES[name]
    (found,), problems = read(tmp_path / "batch.jsonl", record)
    assert (found.conversation_id.partition("~")[0], problems) == (f"{form}:batch:1", [])
    assert TO[form](found.messages, shape="original") == messages
    assert not any(key in json.dumps(found.metadata) for key in ("2+2?", "choices", "output_text"))


GIVEN: dict[str, Any] = {
    "chat": {"object": "chat.completion", "choices": CHOICES, "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
    "responses": {"object": "response", "output": [*ITEMS, REPLY], "usage": {"input_tokens": 9, "output_tokens": 4}},
    "anthropic": {
        "id": "m", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "4"}],
        "usage": {"input_tokens": 9, "output_tokens": 4},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
def test_an_answer_keeps_its_usage(tmp_path: Path, name: str) -> None:
    given = {"model": "m", **GIVEN[name]}
    request = {"input": ASKED[1:]} if name == "responses" else {"messages": ASKED[1:]}
    for record in (given, {"request": request, "response": given}):
        (found,), problems = read(tmp_path / "log.jsonl", record)
        used = [message.usage for message in found.messages if message.usage is not None]
        assert (used, problems) == ([Usage(9, 4, model="m")], [])
        assert (found.messages[-1].usage, found.messages[-1].text) == (used[0], "4")


def test_a_question_that_is_a_text_is_imported_with_its_answer(tmp_path: Path) -> None:
    (found,), problems = read(tmp_path / "log.jsonl", {"request": {"input": "2+2?"}, "response": GIVEN["responses"]})
    assert [message.text for message in found.messages if message.text] == ["2+2?", "4", "4"]
    assert (found.messages[0].role, problems) == ("user", [])
    assert "2+2?" not in json.dumps(found.metadata)


def test_what_has_no_answer_is_a_problem(tmp_path: Path) -> None:
    failed = {"custom_id": "2", "response": None, "error": {"code": "batch_expired", "message": "too late"}}
    refused = {"custom_id": "3", "response": {"status_code": 400, "body": {"error": {"message": "bad"}}}, "error": None}
    records = [
        FILES["chat output"][0],
        failed,
        refused,
        {"custom_id": "4", "result": {"type": "expired"}},
        batch_input("/v1/embeddings", input=["a text"]),
        batch_output(object="chat.completion", choices=CHOICES * 3),
    ]
    found, problems = read(tmp_path / "batch.jsonl", *records)
    assert len(found) == 2
    said = ["too late", "bad", "expired", "/v1/embeddings", "2 alternative answers"]
    assert [(one.line, text in one.reason) for one, text in zip(problems, said, strict=True)] == [
        (line, True) for line in range(2, 7)
    ]


SHAREGPT: dict[str, Any] = {
    "id": "s1",
    "system": "Be brief.",
    "conversations": [
        {"from": "human", "value": "Weather?"},
        {"from": "function_call", "value": '{"name": "find", "arguments": {"q": "weather"}}'},
        {"from": "observation", "value": "rain"},
        {"from": "gpt", "value": "It rains."},
    ],
}


def test_sharegpt(tmp_path: Path) -> None:
    (found,), problems = read(tmp_path / "chats.jsonl", SHAREGPT)
    assert (found.conversation_id, found.title, problems) == ("sharegpt:chats:s1", "Weather?", [])
    assert [message.role for message in found.messages] == ["system", "user", "assistant", "tool", "assistant"]
    _, _, call, result, _ = found.messages
    assert (call.tool_uses[0].name, call.tool_uses[0].input) == ("find", {"q": "weather"})
    assert (result.tool_results[0].tool_use_id, result.tool_results[0].content) == (call.tool_uses[0].id, "rain")
    assert read(tmp_path / "chats.jsonl", SHAREGPT, format="sharegpt")[0] == [found]
    (found,), problems = read(tmp_path / "chats.jsonl", {"conversations": ASKED})
    assert (found.format, [message.text for message in found.messages], problems) == (
        "openai_chat", ["Be brief.", "2+2?"], [],
    )  # fmt: skip


def test_sharegpt_line_by_line(tmp_path: Path) -> None:
    rows = [{"chat_id": n % 2, "from": who, "value": f"{n}"} for n, who in enumerate(("human", "human", "gpt", "gpt"))]
    found, problems = read(tmp_path / "chats.jsonl", *rows)
    assert {one.conversation_id: [message.text for message in one.messages] for one in found} == {
        "sharegpt:chats:0": ["0", "2"],
        "sharegpt:chats:1": ["1", "3"],
    }
    assert problems == []


BLOCKS = {
    "web search": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
                   {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}],
    "MCP": [{"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}},
            {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": []}],
    "a tool of tomorrow": [{"type": "brain_tool_result", "tool_use_id": "b", "content": []}],
}  # fmt: skip


@pytest.mark.parametrize("shape", ["record", "lines"])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_providers_own_tools_are_anthropics(tmp_path: Path, name: str, shape: str) -> None:
    messages = [ASKED[1], {"role": "assistant", "content": BLOCKS[name]}]
    (found,), problems = read(tmp_path / "log.jsonl", *([{"messages": messages}] if shape == "record" else messages))
    assert (found.format, problems) == ("anthropic", [])
    assert to_anthropic(found.messages, shape="original") == messages


ODD: dict[str, Any] = {
    "an unknown role": {"role": "wizard", "content": "x"},
    "an unknown role beside data": {"role": "wizard", "content": "x", "data": {"role": "user"}},
    "a role that is no text": {"role": 5, "content": "x"},
    "no role": {"content": "x"},
    "null": {"role": "user", "content": None},
    "no content": {"role": "user"},
    "an empty text": {"role": "assistant", "content": ""},
    "no blocks": {"role": "user", "content": []},
    "an empty block": {"role": "user", "content": [{"type": "text", "text": ""}]},
    "a number": {"role": "user", "content": 5},
    "no object": 5,
}


@pytest.mark.proves("imports")
@pytest.mark.parametrize("shape", ["record", "lines", "anthropic", "input"])
@pytest.mark.parametrize("name", ODD)
def test_messages_without_a_role_or_content_are_reported_and_left_out(tmp_path: Path, name: str, shape: str) -> None:
    messages = [ASKED[1], ODD[name], ANSWER]
    records: list[Any] = {
        "record": [{"messages": messages}],
        "lines": messages,
        "anthropic": [{"messages": messages, "system": ""}],
        "input": [batch_input("/v1/responses", input=messages)],
    }[shape]
    (found,), problems = read(tmp_path / "log.jsonl", *records)
    assert [(message.role, message.text) for message in found.messages] == [("user", "2+2?"), ("assistant", "4")]
    assert [one.line for one in problems] == [2 if shape == "lines" else 1]
    found_none, problems = read(tmp_path / "log.jsonl", {"messages": [ODD[name], ASKED[1]]}, {"messages": [ODD[name]]})
    assert (len(found_none), len(problems)) == (1, 2), "a conversation without a message is none"


@pytest.mark.parametrize("odd", [
    {"type": "chat", "data": {"content": "x", "role": "wizard"}},
    {"type": "wizard", "data": {"content": "x"}},
    {"lc": 1, "type": "constructor", "id": ["x", "ChatMessage"], "kwargs": {"content": "x", "role": "wizard"}},
    {"type": "human", "data": {"content": ""}},
    {"type": "ai", "data": {"content": None, "tool_calls": []}},
])  # fmt: skip
def test_odd_messages_of_langchain(tmp_path: Path, odd: Any) -> None:
    said = {"type": "human", "data": {"content": "hi"}}
    (found,), problems = read(tmp_path / "log.jsonl", {"session_id": "s", "messages": [said, odd]})
    assert (found.conversation_id, [one.text for one in found.messages]) == ("langchain:log:s", ["hi"])
    assert len(problems) == 1


@pytest.mark.parametrize("odd", [
    {"from": "wizard", "value": "x"}, {"from": None, "value": "x"}, {"from": "human", "value": ""}, {"from": "gpt"}, 5,
])  # fmt: skip
def test_odd_messages_of_sharegpt(tmp_path: Path, odd: Any) -> None:
    (found,), problems = read(tmp_path / "log.jsonl", SHAREGPT | {"conversations": [*SHAREGPT["conversations"], odd]})
    assert (len(found.messages), len(problems)) == (5, 1)


WITHOUT_TEXT: dict[str, Any] = {
    "calls": {"role": "assistant", "content": None,
              "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    "an old call": {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    "an empty result": {"role": "tool", "tool_call_id": "c", "content": ""},
    "a refusal": {"role": "assistant", "content": None, "refusal": "No."},
    "reasoning": {"role": "assistant", "content": "", "reasoning_content": "Hm"},
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_TEXT)
def test_messages_whose_content_is_no_text_are_kept(tmp_path: Path, name: str) -> None:
    (found,), problems = read(tmp_path / "log.jsonl", {"messages": [WITHOUT_TEXT[name]]})
    assert to_openai_chat(found.messages, shape="original") == [WITHOUT_TEXT[name]]
    assert problems == []


def test_the_owner_is_that_of_the_record(tmp_path: Path) -> None:
    found, problems = read(
        tmp_path / "log.jsonl",
        {"user_id": "ann", "messages": ASKED},
        {"userId": 7, "messages": ASKED},
        {"messages": [one | {"user_id": "bob"} for one in ASKED]},
        {"messages": ASKED},
    )
    assert [one.user_id for one in found] == ["ann", 7, "bob", None]
    assert "user_id" not in found[0].metadata
    assert problems == []


def test_refusals_say_what_helps(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("conversation_id,role,content\np1,user,hi\n")
    with pytest.raises(InvalidInputError, match=r"csv\.DictReader"):
        read_transcripts(path)
    path.write_text('{"speaker": "ann", "line": "hi"}\n')
    with pytest.raises(InvalidInputError, match="`build`"):
        read_transcripts(path)


@pytest.mark.parametrize("source", [5, None, ASKED, [None]])
def test_what_is_no_source_is_named(source: Any) -> None:
    with HistoryStore("memory://") as store, pytest.raises(InvalidInputError, match="source must be"):
        import_messages(source, store)
