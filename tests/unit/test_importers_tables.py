"""Dumps of a table of messages: a message on each line, of many conversations."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from redis_history import HistoryStore
from redis_history.formats import to_openai_chat
from redis_history.integrations.importers import ImportLimits, import_messages, read_transcripts

USERS = {"p1": "ann", "p2": 7}
TEXTS = [("p1", "user", "one"), ("p2", "user", "two"), ("p1", "assistant", "three"), ("p2", "assistant", "four")]
ROWS = [
    {"id": n, "conversation_id": chat, "user_id": USERS[chat], "role": role, "content": text, "created_at": 1e9 + n}
    for n, (chat, role, text) in enumerate(TEXTS)
]


def renamed(name: str) -> list[dict[str, Any]]:
    return [{name if key == "conversation_id" else key: value for key, value in row.items()} for row in ROWS]


def read(path: Path, *records: Any, text: str = "") -> tuple[dict[str, Any], list[Any]]:
    """The conversations of a file by their ids, and the problems."""
    path.write_text(text or "".join(f"{json.dumps(record)}\n" for record in records))
    problems: list[Any] = []
    return {one.conversation_id: one for one in read_transcripts(path, on_error=problems.append)}, problems


def texts(transcript: Any) -> list[str]:
    return [message.text for message in transcript.messages]


COLUMNS = ("conversation_id", "session_id", "thread_id", "chat_id", "conversationId", "chatId")
FORMS = {
    "lines": lambda rows: "\n".join(map(json.dumps, rows)),
    "a list": lambda rows: json.dumps(rows, indent=1),
    "a list on one line": json.dumps,
    "an object": lambda rows: json.dumps({"messages": rows}),
    "pages": lambda rows: "\n".join(json.dumps({"messages": page}) for page in (rows[:3], rows[3:])),
    "a column with JSON": lambda rows: "\n".join(map(json.dumps, map(with_message, rows))),
}


def with_message(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the message as JSON in one column."""
    message = json.dumps({key: row[key] for key in ("role", "content")})
    return {key: value for key, value in row.items() if key not in message} | {"message": message}


@pytest.mark.proves("imports")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("column", COLUMNS)
def test_rows_become_the_conversations_that_they_name(tmp_path: Path, column: str, form: str) -> None:
    found, problems = read(tmp_path / "dump.json", text=FORMS[form](renamed(column)))
    assert problems == []
    assert {id_: texts(one) for id_, one in found.items()} == {
        "openai_chat:dump:p1": ["one", "three"],
        "openai_chat:dump:p2": ["two", "four"],
    }
    assert [one.user_id for one in found.values()] == ["ann", 7]
    for one in found.values():
        assert all(earlier.timestamp < later.timestamp for earlier, later in pairwise(one.messages))


def test_the_owner_is_in_the_store_and_a_second_import_adds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    read(path, *ROWS)
    with HistoryStore("memory://") as store:
        assert import_messages(path, store).new == 4
        assert import_messages(path, store).new == 0
        assert {one.user_id for one in store.list_conversations()} == {"ann", 7}
        store.erase_user("ann")
        assert [one.user_id for one in store.list_conversations()] == [7]


def test_the_message_may_be_in_a_column(tmp_path: Path) -> None:
    rows = [
        {"session_id": f"s{n % 2}", "message": {"type": "human", "data": {"content": f"{n}"}}, "created_at": 1e9 + n}
        for n in range(4)
    ]
    found, problems = read(tmp_path / "dump.jsonl", *rows)
    assert {id_: texts(one) for id_, one in found.items()} == {
        "langchain:dump:s0": ["0", "2"],
        "langchain:dump:s1": ["1", "3"],
    }
    assert problems == []
    assert all(message.timestamp for one in found.values() for message in one.messages)


def test_a_message_keeps_none_of_the_columns_that_only_the_table_has(tmp_path: Path) -> None:
    found, _ = read(tmp_path / "dump.jsonl", *ROWS)
    kept = repr([one.messages for one in found.values()])
    assert "conversation_id" not in kept
    assert "user_id" not in kept


@pytest.mark.parametrize("value", [None, "", [], {"a": 1}, 1.5, True])
def test_a_row_without_an_id_is_a_problem_and_in_no_conversation(tmp_path: Path, value: Any) -> None:
    found, problems = read(tmp_path / "dump.jsonl", ROWS[0], ROWS[1] | {"conversation_id": value}, ROWS[2])
    assert {id_: texts(one) for id_, one in found.items()} == {"openai_chat:dump:p1": ["one", "three"]}
    assert [(one.line, "conversation_id" in one.reason) for one in problems] == [(2, True)]
    found, problems = read(tmp_path / "dump.jsonl", *(row | {"conversation_id": value} for row in ROWS))
    assert (found, len(problems)) == ({}, 4), "they may be of different conversations"


def test_a_row_without_the_column_is_a_problem_beside_others(tmp_path: Path) -> None:
    plain = {"role": "user", "content": "whose?"}
    found, problems = read(tmp_path / "dump.jsonl", plain, *ROWS[:2])
    assert (list(found), [one.line for one in problems]) == (["openai_chat:dump:p1", "openai_chat:dump:p2"], [1])
    found, problems = read(tmp_path / "dump.jsonl", {"id": "x", "messages": [plain]}, plain)
    assert (list(found), [one.line for one in problems]) == (["openai_chat:dump:x"], [2])


@pytest.mark.parametrize(("value", "key"), [(5, "5"), (5.0, "5"), ({"$oid": "65a1"}, "65a1")])
def test_ids_of_databases(tmp_path: Path, value: Any, key: str) -> None:
    found, problems = read(
        tmp_path / "dump.jsonl", *(row | {"conversation_id": value, "user_id": "ann"} for row in ROWS)
    )
    assert (list(found), problems) == ([f"openai_chat:dump:{key}"], [])


def test_conversations_of_different_providers(tmp_path: Path) -> None:
    used = [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]
    called = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    rows = [
        {"chat_id": "claude", "role": "assistant", "content": used},
        {"chat_id": "gpt", "role": "assistant", "content": None, "tool_calls": called},
        {"chat_id": "items", "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ]
    found, problems = read(tmp_path / "dump.jsonl", *rows)
    assert list(found) == ["anthropic:dump:claude", "openai_chat:dump:gpt", "openai_responses:dump:items"]
    assert all(one.messages[0].tool_uses for one in found.values())
    assert problems == []


def test_several_users_in_one_conversation_are_reported(tmp_path: Path) -> None:
    found, problems = read(tmp_path / "dump.jsonl", *(row | {"conversation_id": "room"} for row in ROWS))
    room = found["openai_chat:dump:room"]
    assert room.user_id == "ann"
    assert [one["user_id"] for one in to_openai_chat(room.messages, shape="original")] == ["ann", 7, "ann", 7]
    assert [(one.line, "'ann'" in one.reason) for one in problems] == [(2, True)]


def test_a_conversation_beyond_the_limit_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "dump.jsonl"
    long = [ROWS[0] | {"conversation_id": "long", "content": "x" * 100_000} for _ in range(12)]
    path.write_text("\n".join(json.dumps(row) for pair in zip(long, ROWS * 3, strict=True) for row in pair))
    problems: list[Any] = []
    limits = ImportLimits(max_conversation_bytes=1_000_000)
    found = list(read_transcripts(path, on_error=problems.append, limits=limits))
    assert [one.conversation_id for one in found] == ["openai_chat:dump:p1", "openai_chat:dump:p2"]
    assert len(problems) == 1
    assert "'long' exceeds max_conversation_bytes" in problems[0].reason


def test_items_of_the_responses_api_keep_ids_and_times(tmp_path: Path) -> None:
    """Several items are one message, which has the id and the time of the first."""
    items: list[dict[str, Any]] = [
        {"id": "m1", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"id": "rs_1", "type": "reasoning", "summary": []},
        {"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"id": "fc_2", "type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"id": "out_1", "type": "function_call_output", "call_id": "c1", "output": "1"},
        {"id": "out_2", "type": "function_call_output", "call_id": "c2", "output": "2"},
        {"id": "m2", "role": "assistant", "content": [{"type": "output_text", "text": one} for one in "ab"]},
        {"id": "m3", "role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
    ]
    rows = [{"session_id": "s", "created_at": f"2026-01-02T00:00:0{at}Z", **item} for at, item in enumerate(items)]
    found, problems = read(tmp_path / "dump.jsonl", *rows)
    [one] = found.values()
    times = [(message.id, message.timestamp and message.timestamp.second) for message in one.messages]
    assert times == [("m1", 0), ("rs_1", 1), ("out_1", 4), ("out_2", 5), ("m2", 6), ("m3", 7)]
    assert problems == []
    found, _ = read(tmp_path / "dump.jsonl", *rows[:3], {**rows[3], "created_at": None}, *rows[4:])
    assert all(message.timestamp for message in next(iter(found.values())).messages)
    found, _ = read(tmp_path / "dump.jsonl", *rows[:4], {**rows[4], "created_at": None}, *rows[5:])
    assert not any(message.timestamp for message in next(iter(found.values())).messages)
