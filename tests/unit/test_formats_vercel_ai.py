"""UI messages of the Vercel AI SDK. That its own `validateUIMessages` takes them was tried with ai 7.0.173."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redis_history import HistoryStore, assistant, tool, tool_result, tool_use, user
from redis_history.errors import InvalidMessageError
from redis_history.formats import Loss, from_vercel_ai, to_openai_chat, to_vercel_ai

CHAT: list[dict[str, Any]] = [
    {"id": "s1", "role": "system", "parts": []},
    {
        "id": "u1",
        "role": "user",
        "metadata": {"createdAt": 2**70},
        "parts": [
            {"type": "text", "text": "How cold is it?"},
            {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA==", "filename": "a.png"},
        ],
    },
    {
        "id": "a1",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "Hm", "state": "done", "providerMetadata": {"x": {"signature": "s"}}},
            {"type": "text", "text": "I look.", "state": "done"},
            {"type": "tool-weather", "toolCallId": "c1", "state": "output-available", "input": {"city": "Oslo"},
             "output": {"t": 2**70}, "providerExecuted": False},
            {"type": "dynamic-tool", "toolName": "x", "toolCallId": "c2", "state": "output-error", "input": None,
             "errorText": "no"},
            {"type": "tool-ask", "toolCallId": "c3", "state": "input-streaming", "input": {"a": 1}},
            {"type": "step-start"},
            {"type": "source-url", "sourceId": "s1", "url": "https://example.org"},
            {"type": "data-weather", "id": "d", "data": {"x": [1, None]}},
            {"type": "text", "text": "Cold.", "state": "done"},
        ],
    },
]  # fmt: skip


def test_a_chat_comes_back_equal_and_is_readable() -> None:
    messages = from_vercel_ai(CHAT)
    assert to_vercel_ai(messages) == CHAT
    found = to_openai_chat(messages[2:], on_loss=lambda loss: None)
    assert [message["role"] for message in found] == ["assistant", "tool", "tool", "assistant"]
    assert [message.id for message in messages] == ["s1", "u1", "a1", "a1.1", "a1.2"]
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2].text == "I look."
    assert [use.name for use in messages[2].tool_uses] == ["weather", "x", "ask"]
    assert [(one.tool_use_id, one.is_error) for one in messages[3].tool_results] == [("c1", False), ("c2", True)]


def test_a_chat_that_is_saved_again_is_stored_once() -> None:
    with HistoryStore("memory://") as store:
        for end in (2, 3, 3):
            store.append_many("c", from_vercel_ai(CHAT[:end]))
        assert to_vercel_ai(store.get("c")) == CHAT


CALL = {"type": "tool-a", "toolCallId": "c1", "state": "output-available", "input": "text", "output": None}
UNUSUAL = [
    *({"type": "text", "text": ""}, {"type": "unknown", "x": {}}, {"type": "file", "url": "x", "mediaType": "m"}),
    *({"type": "step-start", "extra": 1}, CALL),
]
parts = st.lists(
    st.sampled_from([*CHAT[2]["parts"], *UNUSUAL]),
    unique_by=lambda part: part.get("toolCallId") or id(part),
    max_size=8,
)


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant"]), parts), max_size=4))
@example([("assistant", [{"type": "step-start"}, {"type": "step-start"}])])
def test_any_parts_come_back_equal(chat: list[tuple[str, list[Any]]]) -> None:
    messages = [{"id": f"m{index}", "role": role, "parts": content} for index, (role, content) in enumerate(chat)]
    assert to_vercel_ai(from_vercel_ai(messages)) == messages


def test_messages_from_elsewhere_become_one_message_for_each_answer() -> None:
    lost: list[Loss] = []
    found = to_vercel_ai(
        [
            user("Hi", id="u"),
            assistant("I look.", tool_use("c1", "weather", {"city": "Oslo"}), id="a"),
            tool(tool_result("c1", {"t": 1}), id="t"),
            assistant("Cold.", id="b"),
            tool(tool_result("c9", "lost"), id="x"),
            user("Thanks", id="u2"),
        ],
        on_loss=lost.append,
    )
    assert [(one["id"], one["role"]) for one in found] == [("u", "user"), ("a", "assistant"), ("u2", "user")]
    done = {"state": "output-available"}
    assert found[1]["parts"] == [
        {"type": "text", "text": "I look."},
        {"type": "tool-weather", "toolCallId": "c1", "input": {"city": "Oslo"}, "output": {"t": 1}, **done},
        {"type": "step-start"},
        {"type": "text", "text": "Cold."},
        {"type": "dynamic-tool", "toolName": "unknown", "toolCallId": "c9", "input": None, "output": "lost", **done},
    ]
    assert lost == []


@pytest.mark.parametrize("wrong", [{"id": 1}, {"role": "tool"}, {"parts": [1]}, {"parts": None}])
def test_other_dicts_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        from_vercel_ai([{"id": "m", "role": "user", "parts": [], **wrong}])
