"""Messages as providers write them come back exactly, through the stored bytes, with the expected parts."""

import json
from typing import Any

import msgspec
import pytest

from redis_history.errors import InvalidMessageError
from redis_history.formats import (
    Loss,
    from_anthropic,
    from_openai_chat,
    to_anthropic,
    to_anthropic_system,
    to_openai_chat,
)
from redis_history.formats._content import dump_arguments, parse_arguments
from redis_history.values import (
    AttachmentPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolUsePart,
    UnknownPart,
    system,
    tool,
    tool_result,
    user,
)
from redis_history.values.sizes import message_tokens
from tests.unit.format_cases import FORMAT, through_storage

TEXT = {"type": "text", "text": "x"}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def call(id_: Any = "c1", name: Any = "find", arguments: Any = '{"q":"x"}') -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def anthropic(*originals: dict[str, Any]) -> list[Message]:
    return FORMAT["anthropic"].restored(originals)


def chat(*originals: dict[str, Any]) -> list[Message]:
    return FORMAT["openai_chat"].restored(originals)


def test_anthropic_conversation_with_a_tool() -> None:
    messages = anthropic(
        {"role": "user", "content": "List the files."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "ls will do", "signature": "c2ln"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}]},
    )
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    thought = messages[1].parts[0]
    assert isinstance(thought, ReasoningPart)
    assert (thought.text, thought.signature) == ("ls will do", "c2ln")
    assert all(message.provider_meta == {} for message in messages), "the usual form needs no note"


RESULT = {"type": "tool_result", "tool_use_id": "t"}
ANTHROPIC_BLOCKS: list[dict[str, Any]] = [
    {"type": "tool_result", "content": "keys in another order", "is_error": True, "tool_use_id": "t"},
    {"tool_use_id": "t", "type": "tool_result", "content": "x", "is_error": False},
    RESULT,
    *({**RESULT, "content": content} for content in (None, [], [{"type": "image", "source": {}}])),
    {**RESULT, "content": "x", **EPHEMERAL},
    {"type": "web_search_tool_result", "tool_use_id": "t", "content": {"type": "error", "error_code": "x"}},
    {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {"query": "q"}},
    {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "direct"}},
    {"type": "tool_use", "id": "t", "name": "f", "input": "streamed only so far"},
    {"type": "thinking", "thinking": "not signed"},
    {"type": "thinking", "thinking": "x", "signature": ""},
    {"type": "redacted_thinking", "data": "AAAA"},
    {"type": "text", "text": "x", "citations": [{"type": "char_location", "cited_text": "y"}]},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
    {"type": "document", "source": {"type": "file", "file_id": "f"}, "title": "T", "context": "C"},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
    {"type": "container_upload", "file_id": "f"},
]
ANTHROPIC_MESSAGES: list[dict[str, Any]] = [
    *({"role": "user", "content": content} for content in ("", [], None)),
    {"role": "user"},
    {"role": "assistant", "content": [TEXT]},
    {"role": "system", "content": "in the middle of the list"},
    {"role": "critic", "content": "an unknown role"},
    {"model": "claude", "id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {"n": 1}},
]
CHAT_MESSAGES: list[dict[str, Any]] = [
    *({"role": "assistant", **content, "tool_calls": [call()]} for content in ({"content": None}, {"content": ""}, {})),
    *({"role": "assistant", "content": content} for content in (None, "", [])),
    *({"role": "assistant", "content": "x", "tool_calls": calls} for calls in (None, [])),
    {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b", "other", "{}")]},
    {"role": "user"},
    {"role": "user", "content": [TEXT]},
    *({"role": "user", "name": name, "content": "hi"} for name in ("", 5)),
    *({"role": "tool", "tool_call_id": "c", "content": content} for content in ([TEXT], None)),
    {"role": "tool", "tool_call_id": "c"},
    {"role": "tool", "tool_call_id": None, "content": "x"},
    *({"role": "function", "name": "f", "content": content} for content in ("x", "", None)),
    {"role": "function", "name": "f", "content": None, "tool_call_id": ""},
    {
        "content": "",
        "role": "assistant",
        "tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}', "name": "f"}, "id": "c", "type": "function"}],
        "function_call": None,
        "reasoning_content": "I look first.",
        "provider_specific_fields": {"reasoning_content": "I look first."},
        "extra": {"response": {"usage": {"total_tokens": 3}}, "cost": 0.00012},
        "annotations": [],
    },
]
UNUSUAL_CALLS: list[dict[str, Any]] = [
    {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
    {"id": None, "type": None, "function": {"name": "f", "arguments": {"already": "parsed"}}},
    {"id": "c", "type": "function", "function": {"name": None, "arguments": ""}},
    {"something": "else"},
]


def test_anthropic_messages_come_back() -> None:
    for block in ANTHROPIC_BLOCKS:
        anthropic({"role": "user", "content": [block]})
        anthropic({"role": "assistant", "content": [{"type": "text", "text": "first"}, block]})
    for item in ANTHROPIC_MESSAGES:
        anthropic(item)


def test_chat_messages_come_back() -> None:
    for item in CHAT_MESSAGES:
        chat(item)
    for odd in UNUSUAL_CALLS:
        chat({"role": "assistant", "content": None, "tool_calls": [odd]})


@pytest.mark.parametrize("value", ["Be brief.", [{"type": "text", "text": "Be brief.", **EPHEMERAL}], []])
def test_anthropic_system_value(value: Any) -> None:
    messages = through_storage(from_anthropic([{"role": "user", "content": "hi"}], system=value))
    assert messages[0].role == "system"
    assert to_anthropic_system(messages) == value
    assert to_anthropic(messages) == [{"role": "user", "content": "hi"}]


def test_several_system_messages_are_joined() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert to_anthropic_system([system("a"), system("b")]) == blocks
    assert to_anthropic_system([]) is None


def test_chat_with_a_tool() -> None:
    messages = chat(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "rain"},
        {"content": "Rain.", "role": "assistant"},
    )
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2].parts == (ToolUsePart(id="c1", name="find", input={"q": "x"}),)
    assert messages[2].provider_meta == {}, "the usual form needs no note"


def test_parts_of_chat_messages() -> None:
    thought, by_user, old, listed, named = chat(
        {"role": "assistant", "content": "4", "reasoning_content": "2+2"},
        {"role": "user", "content": None, "tool_calls": [call()]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
        {"role": "tool", "content": "x", "agent": "main", "tool_call_ids": ["c9"]},
        {"role": "user", "name": "bob", "content": "hi"},
    )
    assert isinstance(thought.parts[0], ReasoningPart)
    assert (thought.text, by_user.role, len(by_user.tool_uses)) == ("4", "user", 1)
    assert old.tool_uses[0].input == {"a": 1}
    assert listed.tool_results[0].tool_use_id == "c9"
    assert named.participant is not None
    roles = {"exit": "user", "root": "user", "developer": "system", "function": "tool"}
    found = chat(*({"role": role, "content": "done", "extra": {"exit_status": "x"}} for role in roles))
    assert [message.role for message in found] == list(roles.values())


def test_files_are_attachments() -> None:
    blocks: list[Any] = [
        {**TEXT, **EPHEMERAL},
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
        {"type": "refusal", "refusal": "No."},
        {"type": "attachment", "text": "a type of theirs that is also one of ours"},
        {"type": "text"},
        "bare",
    ]
    (message,) = chat({"role": "user", "content": blocks})
    modalities = [part.modality for part in message.parts if isinstance(part, AttachmentPart)]
    assert modalities == ["image", "image", "audio", "document", "document"]
    assert sum(isinstance(part, UnknownPart) for part in message.parts) == 3


@pytest.mark.parametrize("item", [{"content": "x"}, {"role": 5, "content": "x"}, {"role": "user", "content": 5}])
def test_an_invalid_message_is_refused_with_its_index(item: dict[str, Any]) -> None:
    for from_ in (from_openai_chat, from_anthropic):
        with pytest.raises(InvalidMessageError, match="message 1"):
            from_([{"role": "user", "content": "fine"}, item])


def test_each_result_becomes_a_message_before_other_text() -> None:
    message = tool(tool_result("a", "1", name="f"), tool_result("b", [{"type": "text", "text": "2"}]))
    assert to_openai_chat([message]) == [
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
    ]
    assert [item["role"] for item in to_openai_chat([user(tool_result("a", "1"), "and?")])] == ["tool", "user"]


# Notes and arguments


def test_an_edit_overrides_the_note() -> None:
    (message,) = from_openai_chat([{"content": [{"type": "text", "text": "old"}], "role": "user"}])
    edited = msgspec.structs.replace(message, parts=(TextPart(text="new"),))
    assert to_openai_chat([edited]) == [{"content": [{"type": "text", "text": "new"}], "role": "user"}]


NOT_STORED = [
    *("{", '"text"', '{"a": NaN}', '{"a": 1e400}', '{"a": "\\ud800"}', '{"n": 123456789012345678901}'),
    *("[" * 200 + "]" * 200, "[" * 100_000),
]
EMPTY = ["", None]
UNUSUAL_JSON = ['{"a":1,"a":2}', '{"a":1e5}', "[1,2]", "null", '{ "a" : 1 }', '{"é":"\\u00e9"}']


@pytest.mark.parametrize("raw", [*NOT_STORED, *EMPTY, *UNUSUAL_JSON], ids=lambda raw: str(raw)[:20])
def test_unusual_arguments_are_restored(raw: Any) -> None:
    """Text that cannot be stored as a value stays text."""
    parsed, note = parse_arguments(raw)
    assert parsed == (raw if raw in NOT_STORED else json.loads(raw or "{}"))
    assert dump_arguments(parsed, note) == raw
    if isinstance(parsed, dict):
        assert dump_arguments({"b": 2}, note).replace(" ", "") == '{"b":2}', "an edit overrides the original string"


DETAILS = [{"type": "reasoning.text", "text": "Rain?"}, {"type": "reasoning.encrypted", "data": "c2ln"}]
ELSEWHERE = [
    {"role": "assistant", "content": None, "refusal": "It rains."},
    {"role": "assistant", "content": "Hm.", "refusal": "It rains.", "tool_calls": [call()]},
    {
        "audio": {"id": "a", "data": "QUJD", "transcript": "It rains.", "expires_at": 1},
        "content": None,
        "role": "assistant",
    },
    {"role": "assistant", "content": "It rains.", "reasoning_details": DETAILS},
    {"role": "assistant", "content": "It rains.", "reasoning_details": DETAILS, "reasoning": "Rain?"},
]


@pytest.mark.parametrize("original", ELSEWHERE)
def test_a_reply_is_read_wherever_its_text_stands(original: dict[str, Any]) -> None:
    """A refusal, the transcript of audio and OpenRouter's reasoning stand beside the content."""
    (message,) = stored = through_storage(from_openai_chat([original]))
    assert message.text.endswith("It rains.")
    assert ("Rain?" in [part.text for part in message.parts[:1]]) == ("reasoning_details" in original)  # type: ignore[union-attr]
    assert message_tokens(message) > 2
    back = to_openai_chat(stored, shape="original")
    assert back == [original]
    assert list(back[0]) == list(original)
    (sent,) = to_openai_chat(stored, shape="request")
    assert sent == {**original, **({"audio": {"id": "a"}} if "audio" in original else {})}
    losses: list[Loss] = []
    assert "It rains." in str(to_anthropic(stored, on_loss=losses.append))
    assert len(losses) == len([part for part in message.parts if isinstance(part, ReasoningPart)])
    parts = tuple(msgspec.structs.replace(p, text="gone") if hasattr(p, "text") else p for p in message.parts)
    (edited,) = through_storage([msgspec.structs.replace(message, parts=parts)])
    assert "rain" not in str(to_openai_chat([edited], shape="original")).lower()
    assert "QUJD" not in str(edited)
