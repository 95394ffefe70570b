"""Pydantic AI: its own messages come back equal, and those of other frameworks are converted."""

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from pydantic_ai.messages import (
    BinaryContent,
    BinaryImage,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage

from redis_history import (
    AsyncHistoryStore,
    AttachmentPart,
    HistoryStore,
    ReasoningPart,
    assistant,
    system,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import InvalidConversationIdError, InvalidMessageError
from redis_history.formats import to_anthropic
from redis_history.integrations.pydantic_ai import PydanticAIHistory, from_pydantic_ai, to_pydantic_ai
from tests.support.servers import until

EVERY = [
    ModelRequest(parts=[SystemPromptPart("Be brief."), UserPromptPart("Hi 世界")], instructions="none"),
    ModelResponse(
        parts=[
            ThinkingPart("hm", signature="c2ln", provider_name="anthropic"),
            TextPart("I look."),
            ToolCallPart("find", {"q": 1}, tool_call_id="c1"),
            ToolCallPart("find", '{"q":  2}', tool_call_id="c2"),
            ToolCallPart("find", None, tool_call_id="c3"),
            ToolCallPart("find", "broken {", tool_call_id="c4"),
        ],
        model_name="m",
        provider_name="anthropic",
    ),
    ModelRequest(
        parts=[
            ToolReturnPart("find", {"rain": True}, tool_call_id="c1"),
            ToolReturnPart("find", "sun", tool_call_id="c2", metadata={"x": 1}),
            ToolReturnPart("find", "bad arguments", tool_call_id="c3", outcome="failed"),
            UserPromptPart(
                ["and this?", ImageUrl("https://x.test/a.png"), BinaryContent(b"\xff\xfe", media_type="image/png")]
            ),
        ]
    ),
    ModelResponse(parts=[TextPart("")]),
    *ModelMessagesTypeAdapter.validate_python(
        [
            {"kind": "request", "parts": [{"part_kind": "retry-prompt", "content": "again"}]},
            {
                "kind": "request",
                "parts": [{"part_kind": "retry-prompt", "content": "no", "tool_name": "find", "tool_call_id": "c4"}],
            },
        ]
    ),
    ModelRequest(parts=[]),
    ModelResponse(
        parts=[
            ToolCallPart("f", {"n": 2**70}, tool_call_id="1"),
            ToolCallPart("f", '{"n":  1180591620717411303424}', tool_call_id="2"),
        ],
        provider_details={"n": 2**70},
    ),
    ModelRequest(parts=[ToolReturnPart("f", {"n": 2**70}, tool_call_id="1", metadata={"n": 2**70})]),
    ModelRequest(parts=[UserPromptPart("Well?")], run_id="r", metadata={"n": [1]}, state="interrupted"),
    ModelResponse(
        parts=[TextPart("Done", id="t", provider_name="openai", provider_details={"phase": "final"})],
        usage=RequestUsage(input_tokens=3, output_tokens=1, details={"audio": 0}, cost=Decimal("0.02")),
        timestamp=datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2))),
        finish_reason="stop",
    ),
]
# Its own JSON form makes another class of binary content that is a picture.
EVERY = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(EVERY))


async def test_everything_comes_back_equal(store: HistoryStore, async_store: AsyncHistoryStore) -> None:
    history = PydanticAIHistory("c", async_store)
    assert await history.load() == []
    await history.append(EVERY[:2])
    await history.append(EVERY[2:])
    assert await history.load() == PydanticAIHistory("c", store).load_sync() == EVERY
    assert ModelMessagesTypeAdapter.dump_json(await history.load()) == ModelMessagesTypeAdapter.dump_json(EVERY)
    stored = store.get("c")
    assert [message.role for message in stored[:4]] == ["system", "user", "assistant", "tool"]
    assert [use.input for use in stored[2].tool_uses] == [{"q": 1}, {"q": 2}, {}, "broken {"]
    assert stored[3].tool_results[2].is_error
    assert to_anthropic(stored)[1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    edited = msgspec.structs.replace(stored[1], parts=(msgspec.structs.replace(stored[1].parts[0], text="new"),))
    assert to_pydantic_ai([edited])[0].parts[0].content == "new"


def test_a_prompt_of_several_items_has_what_is_left_of_them_after_an_edit() -> None:
    image, other = ImageUrl("https://example.com/a.png"), ImageUrl("https://example.com/b.png", identifier="b")
    [stored] = from_pydantic_ai([ModelRequest(parts=[UserPromptPart(["ann@example.com", image, "or", other])])])
    address, picture, _, last = stored.parts
    hidden = msgspec.structs.replace(address, text="[REDACTED]")
    replaced = msgspec.structs.replace(picture, reference="https://example.com/c.png")
    edited = msgspec.structs.replace(stored, parts=(hidden, replaced, last))
    assert to_pydantic_ai([edited])[0].parts[0].content == [
        "[REDACTED]", ImageUrl("https://example.com/c.png", media_type=replaced.mime_type), other,
    ]  # fmt: skip
    [left] = to_pydantic_ai([msgspec.structs.replace(stored, parts=stored.parts[1:3])])
    assert [one.content for one in left.parts] == [[image], "or"]


def test_messages_of_other_frameworks() -> None:
    losses: list[Any] = []
    file = AttachmentPart(modality="image", reference="data:image/png;base64,//4=")
    said = [
        system("Be brief."),
        user(file, AttachmentPart(reference="file-1"), id="u"),
        assistant(ReasoningPart("hm", signature="c2ln"), tool_use("c", "find", {"q": 1}), id="a"),
        tool(tool_result("c", "rain")),
        user(tool_use("c", "f"), id="odd"),
    ]
    first, asked, looked, found = to_pydantic_ai(said, on_loss=losses.append)
    assert isinstance(first.parts[0], SystemPromptPart)
    assert asked.parts[0].content == [BinaryImage(data=b"\xff\xfe", media_type="image/png")]
    assert [type(part) for part in looked.parts] == [ThinkingPart, ToolCallPart]
    (returned,) = found.parts
    assert isinstance(returned, ToolReturnPart)
    assert (returned.tool_name, returned.content, returned.tool_call_id) == ("find", "rain", "c")
    assert [(loss.message_id, loss.part) for loss in losses] == [("u", 1), ("a", 0), ("odd", 0)]


def test_a_message_of_a_newer_version_is_reported() -> None:
    [stored] = from_pydantic_ai([ModelRequest(parts=[UserPromptPart("Hi")], run_id="r")])
    for change in ({"state": "new"}, {"run_id": 5}, {"timestamp": "soon"}):
        around = {**stored.provider_meta["pydantic_ai"]["around"], **change}
        newer = msgspec.structs.replace(stored, provider_meta={"pydantic_ai": {"around": around}})
        with pytest.raises(InvalidMessageError, match="cannot read a stored message"):
            to_pydantic_ai([stored, newer])


async def test_a_limit_leaves_out_results_whose_call_was_cut_off(
    store: HistoryStore, async_store: AsyncHistoryStore
) -> None:
    store.append_many("s", [assistant(tool_use("1", "f")), tool(tool_result("1", "x")), user("q")])
    history = PydanticAIHistory("s", async_store)

    def kinds(messages: list[ModelMessage]) -> list[str]:
        return [part.part_kind for message in messages for part in message.parts]

    assert (
        kinds(await history.load(limit=2)) == kinds(PydanticAIHistory("s", store).load_sync(limit=2)) == ["user-prompt"]
    )
    assert kinds(await history.load(limit=3)) == ["tool-call", "tool-return", "user-prompt"]
    with pytest.raises(InvalidConversationIdError):
        PydanticAIHistory("", async_store)


async def test_a_live_reply_is_no_message_until_it_ends(store: HistoryStore, async_store: AsyncHistoryStore) -> None:
    async def half() -> bool:
        return [one.text for one in await async_store.get("s")] == ["q", "half"]

    history = PydanticAIHistory("s", async_store)
    await async_store.append("s", user("q"))
    async with async_store.stream("s") as reply:
        await reply.write("half")
        await until(half, "the reply")
        assert len(await history.load()) == len(PydanticAIHistory("s", store).load_sync()) == 1
    assert len(await history.load()) == 2


def test_infinity_survives() -> None:
    messages = [ModelResponse(parts=[ToolCallPart("f", {"x": float("inf")}, tool_call_id="1")])]
    assert to_pydantic_ai(from_pydantic_ai(messages)) == messages


def test_dicts_are_messages_in_their_json_form(store: HistoryStore) -> None:
    history = PydanticAIHistory("s", store)
    message = ModelRequest(parts=[UserPromptPart(content="hi")])
    history.append_sync(ModelMessagesTypeAdapter.dump_python([message], mode="json"))
    assert history.load_sync() == [message]
    wrong: list[Any] = ["text", None, 5, {"kind": "request", "parts": []}, ["text"], [None], [{"role": "user"}]]
    for one in wrong:
        with pytest.raises(InvalidMessageError, match="messages"):
            history.append_sync(one)
    assert len(store.get("s")) == 1


def test_an_edited_prompt_does_not_bring_back_its_items(store: HistoryStore) -> None:
    content = ["Look", BinaryContent(b"passport", media_type="image/png"), "please"]
    history = PydanticAIHistory("s", store)
    history.append_sync([ModelRequest(parts=[UserPromptPart(content=content)])])
    (message,) = store.get("s")
    secret = message.parts[1].reference.partition(",")[2]  # type: ignore[union-attr]
    store.update_message("s", msgspec.structs.replace(message, parts=(message.parts[0], message.parts[2])))
    assert secret not in str(store.get("s"))
    [request] = history.load_sync()
    assert request.parts[0].content == ["Look", "please"]
