"""Anthropic messages: blocks, signatures and the separate system value, there and back through the stored bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.errors import InvalidMessageError
from redis_history.formats import Loss, from_anthropic, from_openai_chat, to_anthropic, to_anthropic_system
from redis_history.model import AttachmentPart, ReasoningPart, UnknownPart, assistant, system, tool_use
from redis_history.model.wire import decode_member, encode_body, encode_member
from tests.support.sdk import is_valid


def through_storage(messages):
    return [decode_member(encode_member(n, 0, encode_body(message))) for n, message in enumerate(messages, 1)]


def there_and_back(originals):
    messages = from_anthropic(originals)
    stored = through_storage(messages)
    back = to_anthropic(stored, shape="original")
    assert back == originals
    assert [list(item) for item in back] == [list(item) for item in originals]
    if is_valid("anthropic", originals):
        assert to_anthropic(stored) == originals
    return messages


def test_a_conversation_with_a_tool():
    messages = there_and_back(
        [
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
        ]
    )
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    thought = messages[1].parts[0]
    assert isinstance(thought, ReasoningPart)
    assert (thought.text, thought.signature) == ("ls will do", "c2ln")
    assert "anthropic" in thought.provider_meta, "so that no other provider gets the signature"
    assert all(message.provider_meta == {} for message in messages), "the usual form needs no note"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_result", "tool_use_id": "t", "content": "text"},
        {"type": "tool_result", "content": "keys in another order", "is_error": True, "tool_use_id": "t"},
        {"tool_use_id": "t", "type": "tool_result", "content": "x", "is_error": False},
        {"type": "tool_result", "tool_use_id": "t"},
        {"type": "tool_result", "tool_use_id": "t", "content": None},
        {"type": "tool_result", "tool_use_id": "t", "content": []},
        {
            "type": "tool_result",
            "tool_use_id": "t",
            "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {}}],
        },
        {"type": "tool_result", "tool_use_id": "t", "content": "x", "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_tool_result", "tool_use_id": "t", "content": {"type": "error", "error_code": "x"}},
        {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {"query": "q"}},
        {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "direct"}},
        {"type": "tool_use", "id": "t", "name": "f", "input": "streamed only so far"},
        {"type": "thinking", "thinking": "not signed"},
        {"type": "thinking", "thinking": "x", "signature": ""},
        {"type": "redacted_thinking", "data": "AAAA"},
        {"type": "text", "text": "x", "citations": None},
        {"type": "text", "text": "x", "citations": [{"type": "char_location", "cited_text": "y"}]},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        {"type": "document", "source": {"type": "file", "file_id": "f"}, "title": "T", "context": "C"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
        {"type": "container_upload", "file_id": "f"},
    ],
    ids=lambda block: f"{block['type']}-{len(str(block))}",
)
def test_blocks(block):
    there_and_back([{"role": "user", "content": [block]}])
    there_and_back([{"role": "assistant", "content": [{"type": "text", "text": "first"}, block]}])


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": ""},
        {"role": "user", "content": []},
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "assistant", "content": [{"type": "text", "text": "one block"}]},
        {"role": "system", "content": "in the middle of the list"},
        {"role": "critic", "content": "a role nobody knows"},
        {
            "model": "claude",
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "usage": {"input_tokens": 1},
        },
    ],
    ids=str,
)
def test_messages(item):
    there_and_back([item])


@pytest.mark.parametrize(
    "value", ["Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}], []]
)
def test_the_separate_system_value(value):
    messages = through_storage(from_anthropic([{"role": "user", "content": "hi"}], system=value))
    assert messages[0].role == "system"
    assert to_anthropic_system(messages) == value
    assert to_anthropic(messages) == [{"role": "user", "content": "hi"}]


def test_system_messages_of_elsewhere_are_joined():
    assert to_anthropic_system([system("a"), system("b")]) == [
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]
    assert to_anthropic_system([]) is None


def test_parts():
    (message,) = from_anthropic(
        [
            {
                "role": "user",
                "content": [
                    {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
                    {"type": "new"},
                ],
            }
        ]
    )
    picture, unknown = message.parts
    assert isinstance(picture, AttachmentPart)
    assert picture.reference == "https://x.test/a.png"
    assert isinstance(unknown, UnknownPart)


def test_from_chat_completions():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = from_openai_chat(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "1"},
        ]
    )
    assert to_anthropic(messages) == [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]},
    ]


def test_what_cannot_be_carried_is_told():
    losses: list[Loss] = []
    message = assistant(ReasoningPart(text="unsigned"), tool_use("t", "f", "broken {"))
    (item,) = to_anthropic([message], on_loss=losses.append)
    assert item["content"] == [{"type": "tool_use", "id": "t", "name": "f", "input": {"arguments": "broken {"}}]
    assert [loss.part for loss in losses] == [0, 1]


def test_content_of_another_type_is_refused():
    with pytest.raises(InvalidMessageError, match="message 0"):
        from_anthropic([{"role": "user", "content": {"type": "text"}}])


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
flags = st.dictionaries(
    st.sampled_from(["is_error", "cache_control", "x"]), st.none() | st.booleans() | texts, max_size=2
)
blocks = st.one_of(
    st.builds(lambda t, e: {"type": "text", "text": t, **e}, texts, flags),
    st.builds(lambda t, e: {**e, "signature": t, "thinking": t, "type": "thinking"}, texts, flags),
    st.builds(lambda t, e: {"type": "tool_use", "id": t, "name": t, "input": {t: [t]}, **e}, texts, flags),
    st.builds(
        lambda t, c, e: {"type": "tool_result", "tool_use_id": t, **e, **c},
        texts,
        st.sampled_from([{}, {"content": "x"}]),
        flags,
    ),
    st.builds(lambda t, e: {"type": t, **e}, texts, flags),
)
anthropic_messages = st.builds(
    lambda role, content, extra: {"role": role, "content": content, **extra},
    st.sampled_from(["user", "assistant", "system"]),
    texts | st.lists(blocks, max_size=3),
    flags,
)


@given(st.lists(anthropic_messages, max_size=4))
def test_any_conversation_comes_back(originals):
    there_and_back(originals)
