"""Readers of formats take the usage of real replies, also of whole responses of an API."""

from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from redis_history import Usage
from redis_history.errors import InvalidMessageError
from redis_history.formats import (
    from_anthropic,
    from_gemini,
    from_langchain,
    from_mistral,
    from_openai_chat,
    from_openai_responses,
    to_anthropic,
    to_openai_chat,
)
from redis_history.formats._usage import usage_of
from redis_history.formats.bedrock import from_bedrock

ASKED = {"role": "user", "content": "q"}
CHAT: dict[str, Any] = {
    "id": "c1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "total_tokens": 110,
        "prompt_tokens_details": {"cached_tokens": 40},
    },
}
ANTHROPIC: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "hi"}],
    "usage": {
        "input_tokens": 50,
        "cache_read_input_tokens": 40,
        "cache_creation_input_tokens": 10,
        "output_tokens": 10,
    },
}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "model": "m",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "hi", "annotations": []}],
        },
    ],
    "usage": {"input_tokens": 100, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 40}},
}
GEMINI: dict[str, Any] = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}],
    "usageMetadata": {
        "promptTokenCount": 90,
        "toolUsePromptTokenCount": 10,
        "candidatesTokenCount": 6,
        "thoughtsTokenCount": 4,
        "cachedContentTokenCount": 40,
    },
    "modelVersion": "m",
}
CONVERSE: dict[str, Any] = {
    "output": {"message": {"role": "assistant", "content": [{"text": "hi"}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 60, "outputTokens": 10, "totalTokens": 110, "cacheReadInputTokens": 40},
    "model": "m",  # Bedrock itself does not say it
}
READERS: list[tuple[Any, Any, Any]] = [
    (from_openai_chat, CHAT, ASKED),
    (from_mistral, CHAT, ASKED),
    (from_anthropic, ANTHROPIC, ASKED),
    (from_openai_responses, RESPONSE, ASKED),
    (from_gemini, GEMINI, {"role": "user", "parts": [{"text": "q"}]}),
    (from_bedrock, CONVERSE, {"role": "user", "content": [{"text": "q"}]}),
]


@pytest.mark.parametrize(("read", "reply", "asked"), READERS)
def test_a_reply_brings_its_usage(read: Any, reply: Any, asked: Any) -> None:
    found = read([asked, reply, asked, reply])
    assert [message.usage for message in found] == [None, Usage(100, 10, 40, model="m")] * 2
    assert [message.text for message in found] == ["q", "hi"] * 2
    without = {name: value for name, value in reply.items() if not name.startswith("usage")}
    assert [message.usage for message in read([without])] == [None]


def test_an_object_of_an_sdk_brings_its_usage() -> None:
    [message] = from_openai_chat([ChatCompletion.model_validate(CHAT)])
    assert message.usage == Usage(100, 10, 40, model="m")
    assert to_openai_chat([message]) == [{"role": "assistant", "content": "hi"}]


def test_anthropic_messages_are_unchanged() -> None:
    found = from_anthropic([ASKED, ANTHROPIC])
    assert to_anthropic(found, shape="original") == [ASKED, ANTHROPIC]
    assert to_anthropic(found, shape="request")[1] == {"role": "assistant", "content": ANTHROPIC["content"]}


def test_a_response_with_calls_brings_its_usage_to_its_message() -> None:
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "id": "fc_1"}
    out = {"type": "function_call_output", "call_id": "1", "output": "x"}
    found = from_openai_responses([ASKED, {**RESPONSE, "output": [call]}, out, RESPONSE])
    assert [(message.role, message.usage is not None) for message in found] == [
        ("user", False),
        ("assistant", True),
        ("tool", False),
        ("assistant", True),
    ]


def test_langchain_dicts() -> None:
    data = {
        "content": "hi",
        "usage_metadata": {"input_tokens": 100, "output_tokens": 10, "input_token_details": {"cache_read": 40}},
        "response_metadata": {"model_name": "m"},
    }
    [message] = from_langchain([{"type": "ai", "data": data}])
    assert message.usage == Usage(100, 10, 40, model="m")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None),
        ("many", None),
        ([1], None),
        ({}, None),
        ({"input_tokens": 0, "output_tokens": 0}, None),
        ({"input_tokens": "7"}, None),
        ({"input_tokens": -7}, None),
        ({"input_tokens": 2**70}, None),
        ({"input_tokens": True}, None),
        ({"output_tokens": 3}, Usage(0, 3)),
        ({"prompt_tokens": 3, "completion_tokens": 4, "cost": "0.5"}, Usage(3, 4, cost=0.5)),
        ({"prompt_tokens": 3, "cost": "much"}, None),
        ({"prompt_tokens": 3, "cost": float("nan")}, None),
        # litellm adds Anthropic's names to its own sum.
        ({"prompt_tokens": 100, "completion_tokens": 1, "cache_read_input_tokens": 40}, Usage(100, 1, 40)),
        ({"input_token_count": 5, "output_token_count": 6}, Usage(5, 6)),
        # Strands passes OpenAI's sum on, and Anthropic's numbers without the cache.
        ({"inputTokens": 100, "outputTokens": 1, "totalTokens": 101, "cacheReadInputTokens": 40}, Usage(100, 1, 40)),
        ({"inputTokens": 60, "outputTokens": 1, "totalTokens": 101, "cacheReadInputTokens": 40}, Usage(100, 1, 40)),
        ({"inputTokens": 60, "outputTokens": 1}, Usage(60, 1)),
    ],
)
def test_numbers_that_no_message_can_have_are_left_out(given: Any, found: Any) -> None:
    assert usage_of(given) == found


def test_what_is_no_reply_is_still_refused() -> None:
    for wrong in ({"choices": []}, {"choices": [{}]}, {"usage": {}}, SimpleNamespace(), "text"):
        with pytest.raises(InvalidMessageError, match="message 0"):
            from_openai_chat([wrong])  # type: ignore[list-item]
