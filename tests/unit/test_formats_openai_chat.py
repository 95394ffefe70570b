"""OpenAI chat completions: every quirk real transcripts have, there and back, through the stored bytes."""

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_history.errors import InvalidMessageError
from redis_history.formats import Loss, from_anthropic, from_openai_chat, to_openai_chat
from redis_history.model import (
    AttachmentPart,
    ReasoningPart,
    TextPart,
    ToolUsePart,
    UnknownPart,
    tool,
    tool_result,
    user,
)
from redis_history.model.wire import decode_member, encode_body, encode_member
from tests.support.sdk import is_valid


def through_storage(messages):
    return [decode_member(encode_member(n, 0, encode_body(message))) for n, message in enumerate(messages, 1)]


def there_and_back(originals):
    messages = from_openai_chat(originals)
    stored = through_storage(messages)
    back = to_openai_chat(stored, shape="original")
    assert back == originals
    assert [list(item) for item in back] == [list(item) for item in originals]
    if is_valid("openai_chat", originals):
        assert to_openai_chat(stored) == originals
    return messages


def call(id_="c1", name="find", arguments='{"q":"x"}', **more):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def test_a_conversation_with_a_tool():
    messages = there_and_back(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call()]},
            {"role": "tool", "tool_call_id": "c1", "name": "find", "content": "rain"},
            {"content": "Rain.", "role": "assistant"},
        ]
    )
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[2].parts == (ToolUsePart(id="c1", name="find", input={"q": "x"}),)
    assert messages[2].provider_meta == {}, "the usual form needs no note"
    assert messages[3].text == "rain"


@pytest.mark.parametrize(
    "item",
    [
        {"role": "assistant", "content": None, "tool_calls": [call()]},
        {"role": "assistant", "content": "", "tool_calls": [call()]},
        {"role": "assistant", "tool_calls": [call()]},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": []},
        {"role": "assistant", "content": "x", "tool_calls": None},
        {"role": "assistant", "content": "x", "tool_calls": []},
        {"role": "user"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
        {"role": "tool", "tool_call_id": "c", "content": None},
        {"role": "tool", "tool_call_id": "c"},
        {"role": "tool", "content": "x"},
        {"role": "tool", "tool_call_id": None, "content": "x"},
    ],
    ids=str,
)
def test_no_content_is_told_from_empty_content(item):
    there_and_back([item])


def test_keys_only_the_provider_knows_are_given_back():
    there_and_back(
        [
            {
                "content": "",
                "role": "assistant",
                "tool_calls": [
                    {
                        "index": 0,
                        "function": {"arguments": '{"command": "ls"}', "name": "bash"},
                        "id": "c",
                        "type": "function",
                    }
                ],
                "function_call": None,
                "reasoning_content": "I look first.",
                "provider_specific_fields": {"reasoning_content": "I look first."},
                "extra": {"response": {"usage": {"total_tokens": 3}}, "cost": 0.00012, "timestamp": 1700000000.25},
                "refusal": None,
                "annotations": [],
            }
        ]
    )


def test_reasoning_becomes_a_part():
    (message,) = there_and_back([{"role": "assistant", "content": "4", "reasoning_content": "2+2"}])
    assert isinstance(message.parts[0], ReasoningPart)
    assert message.text == "4"


@pytest.mark.parametrize(
    ("theirs", "ours"), [("exit", "user"), ("developer", "system"), ("function", "tool"), ("root", "user")]
)
def test_other_roles_are_mapped_and_given_back(theirs, ours):
    (message,) = there_and_back([{"role": theirs, "content": "done", "extra": {"exit_status": "Submitted"}}])
    assert message.role == ours


def test_parallel_calls_keep_their_order():
    (message,) = there_and_back(
        [{"role": "assistant", "content": None, "tool_calls": [call("a"), call("b", "other", "{}")]}]
    )
    assert [part.id for part in message.tool_uses] == ["a", "b"]


def test_one_call_id_used_twice_stays_two_calls():
    turn = [
        {"role": "assistant", "content": None, "tool_calls": [call("same")]},
        {"role": "tool", "tool_call_id": "same", "content": "1"},
    ]
    messages = there_and_back([*turn, *turn])
    assert len({message.id for message in messages}) == 4


def test_calls_by_the_user():
    (message,) = there_and_back([{"role": "user", "content": None, "tool_calls": [call()]}])
    assert message.role == "user"
    assert len(message.tool_uses) == 1


def test_result_ids_in_a_list():
    (message,) = there_and_back([{"role": "tool", "content": "x", "agent": "main", "tool_call_ids": ["c9"]}])
    assert message.tool_results[0].tool_use_id == "c9"


@pytest.mark.parametrize("name", ["bob", "", None, 5])
def test_the_name_of_a_speaker(name):
    (message,) = there_and_back([{"role": "user", "name": name, "content": "hi"}])
    assert (message.participant is not None) == (name == "bob")


def test_files_are_attachments():
    (message,) = there_and_back(
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See", "cache_control": {"type": "ephemeral"}},
                    {"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "low"}},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "file", "file": {"file_id": "file-1"}},
                    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}},
                    {"type": "refusal", "refusal": "No."},
                    {"type": "attachment", "text": "a type of theirs that is also one of ours"},
                    {"type": "text"},
                    "bare",
                ],
            }
        ]
    )
    modalities = [part.modality for part in message.parts if isinstance(part, AttachmentPart)]
    assert modalities == ["image", "image", "audio", "document", "document"]
    assert sum(isinstance(part, UnknownPart) for part in message.parts) == 3


@pytest.mark.parametrize(
    "odd",
    [
        {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
        {"id": None, "type": None, "function": {"name": "f", "arguments": {"already": "parsed"}}},
        {"id": "c", "type": "function", "function": {"name": None, "arguments": ""}},
        {"something": "else"},
    ],
)
def test_odd_calls(odd):
    there_and_back([{"role": "assistant", "content": None, "tool_calls": [odd]}])


def test_the_old_function_call():
    (message,) = there_and_back(
        [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}]
    )
    assert message.tool_uses[0].input == {"a": 1}


def test_an_edited_text_is_not_turned_back():
    (message,) = from_openai_chat([{"content": [{"type": "text", "text": "old"}], "role": "user"}])
    edited = msgspec.structs.replace(message, parts=(TextPart(text="new"),))
    assert to_openai_chat([edited]) == [{"content": [{"type": "text", "text": "new"}], "role": "user"}]


def test_sdk_objects_are_taken():
    class Reply:
        def model_dump(self, *, exclude_unset):
            return {"role": "assistant", "content": "hi"}

    assert from_openai_chat([Reply()])[0].text == "hi"


@pytest.mark.parametrize(
    "item", ["text", {"content": "x"}, {"role": 5, "content": "x"}, {"role": "user", "content": 5}, user("x")]
)
def test_what_is_no_message_is_refused_with_its_index(item):
    with pytest.raises(InvalidMessageError, match="message 1"):
        from_openai_chat([{"role": "user", "content": "fine"}, item])


def test_results_of_one_message_become_messages():
    message = tool(tool_result("a", "1", name="f"), tool_result("b", [{"type": "text", "text": "2"}]))
    assert to_openai_chat([message]) == [
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
    ]


def test_results_beside_a_text_of_the_user_come_first():
    messages = from_anthropic(
        [
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                    {"type": "text", "text": "and?"},
                ],
            }
        ]
    )
    assert [item["role"] for item in to_openai_chat(messages)] == ["tool", "user"]


def test_what_cannot_be_carried_is_told(caplog):
    messages = from_anthropic(
        [
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "4"}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}],
            },
        ]
    )
    losses: list[Loss] = []
    assert to_openai_chat(messages, on_loss=losses.append)[0] == {"role": "assistant", "content": "4"}
    assert [(loss.message_id, loss.part) for loss in losses] == [(messages[0].id, 0), (messages[1].id, 0)]
    assert "reasoning" in losses[0].reason
    with caplog.at_level(logging.WARNING, logger="redis_history.formats"):
        to_openai_chat(messages)
    assert "reasoning" in caplog.text


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.sampled_from(["find", "搜索", "a.b"])
arguments = texts | st.sampled_from(["{}", '{"a": 1}', '{"a":1,"a":2}', "null", "[1, 2.0]"])
calls = st.lists(st.builds(call, texts, names, arguments), min_size=1, max_size=3)
extras = st.dictionaries(
    st.sampled_from(["extra", "audio", "x"]), st.none() | texts | st.lists(texts, max_size=2), max_size=2
)
blocks = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, texts),
    st.builds(lambda t: {"text": t, "type": "text", "x": 1}, texts),
    st.builds(lambda t: {"type": "image_url", "image_url": {"url": t}}, texts),
    st.builds(lambda t, n: {"type": t, "value": n}, texts, texts),
)
chat_messages = st.one_of(
    st.builds(
        lambda r, c, e: {"role": r, "content": c, **e},
        st.sampled_from(["user", "system", "exit"]),
        texts | st.none(),
        extras,
    ),
    st.builds(
        lambda c, t, e: {**e, "content": c, "role": "assistant", "tool_calls": t}, texts | st.none(), calls, extras
    ),
    st.builds(
        lambda i, c: {"role": "tool", "tool_call_id": i, "content": c}, texts, texts | st.lists(blocks, max_size=2)
    ),
    st.builds(lambda b: {"role": "user", "content": b}, st.lists(blocks, max_size=3)),
)


@given(st.lists(chat_messages, max_size=4))
def test_any_chat_comes_back(originals):
    there_and_back(originals)
