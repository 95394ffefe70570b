"""Sizes are the same in totals, histories and prompts, for random messages of all kinds of parts."""

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history import AttachmentPart, History, HistoryStore, Message, ReasoningPart
from redis_history.agents.compaction.policy import Policy
from redis_history.agents.compaction.rendering import chunks
from redis_history.agents.prompt import assemble_messages
from redis_history.values import Part, TextPart, ToolResultPart, ToolUsePart, UnknownPart
from redis_history.values.sizes import MEDIA_TOKENS, count_characters, message_tokens

WORDS = st.lists(st.sampled_from(["order", "Porto", "你好", "naïve", "x1"]), max_size=30).map(" ".join)
BASE64 = st.binary(min_size=1_000, max_size=4_000).map(
    lambda raw: base64.b64encode(bytes(range(256)) * 4 + raw).decode()
)
URL_SAFE = BASE64.map(lambda data: data.replace("+", "-").replace("/", "_"))
MEDIA = st.one_of(BASE64, URL_SAFE).flatmap(
    lambda data: st.sampled_from(
        [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}},
            {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
            {"inlineData": {"mimeType": "image/png", "data": data}},
            {"type": "image", "data": data, "mimeType": "image/png"},
            {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}},
            {"type": "file", "mediaType": "application/pdf", "url": f"data:application/pdf;base64,{data}"},
            {"type": "thinking", "thinking": "", "signature": data},
            {"encrypted_content": data},
            {"blob": data},
        ]
    )
)
VALUES = st.recursive(
    st.one_of(WORDS, MEDIA, st.integers(-9, 9), st.none(), st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)
PARTS: st.SearchStrategy[Part] = st.one_of(
    WORDS.map(TextPart),
    st.builds(ReasoningPart, WORDS, signature=BASE64),
    st.builds(AttachmentPart, name=WORDS, modality=st.sampled_from(["image", "file"]), reference=BASE64),
    st.builds(UnknownPart, st.fixed_dictionaries({"type": st.just("mcp_call"), "output": VALUES})),
)
PAIR = st.tuples(VALUES, VALUES)
SAID = st.lists(st.lists(PARTS, min_size=1, max_size=4), min_size=1, max_size=5)


def conversation(said: list[list[Part]], pairs: list[tuple[Any, Any]]) -> list[Message]:
    messages = [Message(role="user", parts=tuple(parts)) for parts in said]
    for number, (given_input, content) in enumerate(pairs):
        call = ToolUsePart(f"c{number}", "find", {"q": given_input})
        messages.append(Message(role="assistant", parts=(call,)))
        messages.append(Message(role="tool", parts=(ToolResultPart(f"c{number}", content),)))
    return messages


@settings(max_examples=60, deadline=None)
@given(SAID, st.lists(PAIR, max_size=3))
def test_one_size_everywhere(said: list[list[Part]], pairs: list[tuple[Any, Any]]) -> None:
    messages = conversation(said, pairs)
    tokens = sum(map(message_tokens, messages))
    with HistoryStore("memory://", search="off") as store:
        store.append_many("c", messages)
        record = store.get_conversation("c")
        assert record is not None
        assert (record.characters, record.estimated_tokens) == (sum(map(count_characters, messages)), tokens)
        stored = store.get("c")
    history = History(messages)
    assert (history.size, history.total_estimated_tokens) == (record.characters, tokens)
    assert list(map(message_tokens, stored)) == list(map(message_tokens, messages))
    if tokens > 1:
        plan = Policy(max_tokens=tokens - 1, summary_tokens=0).plan(messages)
        assert plan is None or plan.reason.startswith(f"{tokens:,} tokens")
    shown = assemble_messages(messages, "bot", options={"token_budget": 1})
    assert shown.report.tokens == sum(map(message_tokens, shown.messages))
    assert shown.report.over_budget == (shown.report.tokens > 1)


@settings(max_examples=60, deadline=None)
@given(SAID, st.lists(PAIR, max_size=3))
@pytest.mark.full
def test_base64_adds_a_bounded_size(said: list[list[Part]], pairs: list[tuple[Any, Any]]) -> None:
    """A size does not depend on how large an image is, and base64 never reaches a summarizer."""
    messages = conversation(said, pairs)
    seen = "".join(chunks(messages, 1_000_000))
    assert max(map(len, seen.replace("\\", " ").replace('"', " ").split()), default=0) < 1_024
    for message in messages:
        longer = replace(message, parts=tuple(map(_with_longer_base64, message.parts)))
        assert count_characters(longer) == count_characters(message)
        assert message_tokens(longer, len) == message_tokens(message, len)
        assert message_tokens(message) <= count_characters(message) / 4 + 1
    assert set(MEDIA_TOKENS.values()) <= set(range(1, 5_001))


def _with_longer_base64(part: Part) -> Part:
    def longer(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: longer(one) for key, one in value.items()}
        if isinstance(value, list):
            return list(map(longer, value))
        return value.rstrip("=") + "Ab0+"[:3] * 400 if isinstance(value, str) and len(value) > 1_024 else value

    if isinstance(part, UnknownPart):
        return UnknownPart(longer(part.data))
    if isinstance(part, ToolUsePart):
        return replace(part, input=longer(part.input))
    if isinstance(part, ToolResultPart):
        return replace(part, content=longer(part.content))
    if isinstance(part, AttachmentPart):
        return replace(part, reference=longer(part.reference))
    return replace(part, signature=longer(part.signature)) if isinstance(part, ReasoningPart) else part


@pytest.mark.parametrize("kind", ["image", "audio", "video", "file", "data"])
def test_every_kind_has_a_size(kind: Any) -> None:
    assert MEDIA_TOKENS[kind] > 0
