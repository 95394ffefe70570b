"""LlamaIndex: the tests that the framework has for its Redis chat store, and the store of a Memory."""

import asyncio
from typing import Any

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    ChatMessage,
    DocumentBlock,
    ImageBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
    VideoBlock,
)
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.storage.chat_store.base_db import MessageStatus
from msgspec.structs import replace

from redis_history import (
    AttachmentPart,
    HistoryStore,
    Message,
    Participant,
    ReasoningPart,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.integrations.llama_index import LlamaIndexChatStore, LlamaIndexMemoryStore, from_llama_index
from tests.support.sdk import validate
from tests.support.servers import wait_until
from tests.unit.format_cases import FORMATS, through_storage

KEY = "chat-history"


@pytest.fixture
def chats(store: Any) -> LlamaIndexChatStore:
    return LlamaIndexChatStore(store)


def said(content: str, role: MessageRole = MessageRole.USER, **kwargs: Any) -> ChatMessage:
    return ChatMessage(role=role, content=content, additional_kwargs=kwargs)


EVERY = [
    said("Be brief.", MessageRole.SYSTEM),
    said("Be briefer.", MessageRole.DEVELOPER),
    said("test", metadata={"foo": "bar", "count": 5}),
    ChatMessage(role="user", blocks=[TextBlock(text="see"), ImageBlock(url="https://x.test/a.png", detail="low")]),
    ChatMessage(role="user", blocks=[ImageBlock(image=b"\x89PNG", image_mimetype="image/png")]),
    ChatMessage(
        role="assistant",
        blocks=[
            ThinkingBlock(content="hm", num_tokens=3),
            TextBlock(text="I look."),
            ToolCallBlock(tool_call_id="c", tool_name="find", tool_kwargs={"q": 1}),
        ],
    ),
    said("rain", MessageRole.TOOL, tool_call_id="c", name="find"),
    said("", MessageRole.ASSISTANT),
    said("chatbot", MessageRole.CHATBOT),
    said("x", metadata={"n": 2**70}, score=float("inf")),
    ChatMessage(
        role="assistant",
        blocks=[ToolCallBlock(tool_call_id="c", tool_name="f", tool_kwargs={"n": n}) for n in (2**70, float("inf"))],
    ),
]


def test_every_kind_of_message_comes_back_equal(chats: Any, store: Any) -> None:
    for message in EVERY:
        chats.add_message(KEY, message)
    assert chats.get_messages(KEY) == EVERY
    stored = store.get(KEY)
    assert stored[5].tool_uses[0].input == {"q": 1}
    assert stored[6].tool_results[0].tool_use_id == "c"
    assert [message.provider_meta for message in stored[:1]] == [{}], "what our parts say is not kept twice"


def test_set_add_delete(chats: Any) -> None:
    chats.set_messages(KEY, EVERY)
    chats.set_messages(KEY, EVERY[:2])
    chats.add_message(KEY, EVERY[2])
    assert chats.get_messages(KEY) == EVERY[:3]
    assert chats.get_keys() == [KEY]
    assert chats.delete_messages(KEY) == EVERY[:3]
    assert (chats.get_messages(KEY), chats.get_keys(), chats.delete_messages(KEY)) == ([], [], None)


async def test_messages_that_stay_keep_all_that_is_stored(store: Any) -> None:
    chats, memory = LlamaIndexChatStore(store), LlamaIndexMemoryStore(store)
    fields: Any = {"participant": Participant("user", "ann"), "metadata": {"pinned": True}, "trace_id": "t"}
    results = tool(tool_result("1", "x"), tool_result("2", "y"))
    store.append_many(KEY, [user("Hi"), user("Hi", **fields), assistant("Hello"), results])
    before = store.get(KEY)
    chats.set_messages(KEY, chats.get_messages(KEY)[1:])
    assert [replace(one, sequence=None) for one in store.get(KEY)[:2]] == [
        replace(one, sequence=None) for one in before[1:3]
    ]
    asked = [said("A summary"), *chats.get_messages(KEY)[:2], said("And now?")]
    await memory.set_messages(KEY, asked)
    assert chats.get_messages(KEY) == asked
    assert [one.id for one in store.get(KEY)[1:3]] == [one.id for one in before[1:3]]
    await memory.set_messages(KEY, asked[::-1])
    assert chats.get_messages(KEY) == asked[::-1]


async def test_the_store_of_a_memory(store: Any) -> None:
    chats = LlamaIndexMemoryStore(store)
    active, archived = MessageStatus.ACTIVE, MessageStatus.ARCHIVED
    await chats.add_messages(KEY, EVERY[:4])
    await chats.add_message(KEY, EVERY[4], archived)
    assert await chats.get_messages(KEY) == EVERY[:4]
    assert await chats.get_messages(KEY, None, limit=2, offset=1) == EVERY[1:3]
    assert await chats.archive_oldest_messages(KEY, 2) == EVERY[:2]
    assert await chats.get_messages(KEY, archived) == [*EVERY[:2], EVERY[4]]
    assert [await chats.count_messages(KEY, status) for status in (active, archived, None)] == [2, 3, 5]
    assert await chats.delete_oldest_messages(KEY, 1) == [EVERY[2]]
    assert await chats.delete_oldest_messages(KEY, 9) == [EVERY[3]]
    assert await chats.delete_oldest_messages(KEY, 9) == []
    assert await chats.delete_message(KEY, 1) == EVERY[1]
    assert await chats.delete_message(KEY, 9) is None
    assert await chats.get_keys() == [KEY]
    await chats.delete_messages(KEY, archived)
    assert await chats.get_messages(KEY, None) == []
    await chats.set_messages(KEY, EVERY)
    assert await chats.get_messages(KEY) == EVERY
    await chats.delete_messages(KEY)
    assert await chats.get_keys() == []


async def test_a_memory_holds_a_live_reply_when_it_has_ended(store: Any) -> None:
    chats = LlamaIndexMemoryStore(store)
    memory = Memory.from_defaults(session_id=KEY, chat_store=chats)
    await memory.aput(said("Hi"))
    with store.stream(KEY) as reply:
        reply.write("Half an")
        wait_until(lambda: store.get(KEY)[-1].text == "Half an", "the beginning of the reply")
        assert [message.content for message in await memory.aget()] == ["Hi"]
        assert await chats.count_messages(KEY, None) == 1
        assert await chats.delete_message(KEY, 1) is None
        older = LlamaIndexChatStore(store)
        assert (older.get_messages(KEY), older.delete_message(KEY, 1)) == ([said("Hi")], None)
        assert older.delete_last_message(KEY) == said("Hi")
        await memory.aput(said("Hi"))
        assert [message.content for message in await chats.archive_oldest_messages(KEY, 9)] == ["Hi"]
        reply.write(" answer")
    assert [message.content for message in await memory.aget()] == ["Half an answer"]
    await chats.delete_messages(KEY, MessageStatus.ACTIVE)
    assert [message.content for message in await chats.get_messages(KEY, None)] == ["Hi"]


async def test_concurrent_archiving_takes_each_message_once(store: Any) -> None:
    chats = LlamaIndexMemoryStore(store)
    await chats.add_messages(KEY, [said(str(n)) for n in range(8)])
    calls = [chats.archive_oldest_messages(KEY, 1), *(chats.delete_oldest_messages(KEY, 2) for _ in range(3))]
    taken = await asyncio.gather(*calls)
    assert sorted(str(message.content) for one in taken for message in one) == [str(n) for n in range(7)]
    assert [message.content for message in await chats.get_messages(KEY)] == ["7"]


async def test_a_memory_holds_what_one_in_sqlite_does(store: Any) -> None:
    """Also after a restart, and when messages are archived because there are too many."""
    limits: Any = {"token_limit": 60, "chat_history_token_ratio": 0.5, "token_flush_size": 10}
    theirs = Memory.from_defaults(session_id="s", **limits)
    for numbers in (range(6), range(6, 12)):
        ours = Memory.from_defaults(session_id="s", chat_store=LlamaIndexMemoryStore(store), **limits)
        for n in numbers:
            turn = [said(f"question number {n}"), said(f"answer number {n}", MessageRole.ASSISTANT)]
            await ours.aput_messages(turn)
            await theirs.aput_messages(turn)
        assert await ours.aget() == await theirs.aget()
        for status in MessageStatus:
            assert await ours.aget_all(status) == await theirs.aget_all(status)
    assert len(await ours.aget_all(MessageStatus.ARCHIVED)) > 10
    ours.put(said("from synchronous code"))
    assert ours.get()[-1].content == "from synchronous code"
    await ours.areset()
    assert await ours.aget_all() == []
    await theirs.sql_store._async_engine.dispose()


def test_more_than_one_page_of_keys(store: Any) -> None:
    chats = LlamaIndexChatStore(store)
    for n in range(205):
        store.append(f"k{n}", user("x"))
    assert sorted(chats.get_keys()) == sorted(f"k{n}" for n in range(205))


@pytest.mark.parametrize("index", [0, 1, 2, -1, 3])
def test_a_message_is_deleted_by_its_index(chats: Any, index: int) -> None:
    messages = [said(content, metadata={"n": n}) for n, content in enumerate("ABA")]
    chats.set_messages(KEY, messages)
    removed = chats.delete_message(KEY, index)
    assert removed == (messages[index] if 0 <= index < 3 else None)
    assert chats.get_messages(KEY) == [message for message in messages if message != removed]
    last = chats.get_messages(KEY)[-1]
    assert chats.delete_last_message(KEY) == last
    chats.set_messages(KEY, [])
    assert chats.delete_last_message(KEY) is None


@pytest.mark.parametrize("backend", ["redis", "memory"])
@pytest.mark.parametrize("kind", [LlamaIndexChatStore, LlamaIndexMemoryStore])
async def test_results_that_are_stored_together_are_deleted_alone(
    server: Any, namespace: str, kind: Any, backend: str
) -> None:
    calls = assistant(*(tool_use(str(n), "f") for n in range(8)))
    results = tool(*(tool_result(str(n), f"r{n}") for n in range(8)))
    with HistoryStore(server.url if backend == "redis" else "memory://", namespace=namespace) as store:
        store.append_many(KEY, [user("q"), calls, results, user(tool_result("8", "r8"), "Thanks")])
        chats = kind(store)

        async def call(name: str, *arguments: Any) -> Any:
            found = getattr(chats, name)(KEY, *arguments)
            return await found if asyncio.iscoroutine(found) else found

        async def delete(index: int) -> Any:
            found = await asyncio.to_thread(getattr(chats, name), KEY, index)
            return (await found if asyncio.iscoroutine(found) else found).content

        name = "delete_message"
        assert [message.content for message in await call("get_messages")][2:] == [
            *(f"r{n}" for n in range(9)),
            "Thanks",
        ]
        assert await delete(3) == "r1"
        assert await delete(9) == "r8"
        assert sorted(await asyncio.gather(*(delete(2) for _ in range(6)))) == ["r0", "r2", "r3", "r4", "r5", "r6"]
        assert [message.content for message in await call("get_messages")] == ["q", None, "r7", "Thanks"]
        assert await call("delete_message", 4) is None
        assert await delete(2) == "r7"
        assert [message.text for message in store.get(KEY)] == ["q", "", "Thanks"]


def test_the_last_of_messages_that_are_stored_together_is_deleted(chats: Any, store: Any) -> None:
    results = tool(tool_result("1", "r1"), tool_result("2", "r2"))
    unseen = assistant(AttachmentPart(reference="file-1"))
    store.append_many(KEY, [assistant(tool_use("1", "f"), tool_use("2", "f")), results, unseen])
    assert [chats.delete_last_message(KEY).content for _ in range(3)] == ["r2", "r1", None]
    assert chats.get_messages(KEY) == []


def test_messages_of_other_frameworks(store: Any) -> None:
    losses: list[Any] = []
    call, result = tool_use("c", "find", {"q": 1}), tool_result("c", {"rain": True})
    signed = ReasoningPart("hm", signature="c2ln")
    store.append_many(KEY, [user("hi"), assistant("I look.", call), tool(result)])
    store.append(KEY, assistant(signed, AttachmentPart(reference="file-1"), "x", id="m"))
    hello, looked, found, signed_one = LlamaIndexChatStore(store, on_loss=losses.append).get_messages(KEY)
    assert (hello.content, looked.content, found.content) == ("hi", "I look.", '{"rain": true}')
    assert found.additional_kwargs == {"tool_call_id": "c"}
    assert [block.block_type for block in signed_one.blocks] == ["thinking", "text"]
    assert [(loss.message_id, loss.part) for loss in losses] == [("m", 0), ("m", 1)]


async def test_a_chat_memory_buffer(chats: Any) -> None:
    first, second = (ChatMemoryBuffer.from_defaults(chat_store=chats, chat_store_key=KEY) for _ in range(2))
    first.put(said("Remember 7."))
    await second.aput(said("It is 7.", MessageRole.ASSISTANT))
    assert [message.content for message in first.get()] == ["Remember 7.", "It is 7."]
    await second.areset()
    assert (first.get(), chats.get_keys()) == ([], [])
    await first.aset([said("anew"), said("last")])
    assert await chats.adelete_last_message(KEY) == said("last")
    assert [message.content for message in await second.aget()] == ["anew"]


def test_a_part_that_no_message_has_does_not_shift_what_is_removed(store: Any) -> None:
    """An attachment without a reference between results is not a message."""
    calls = (tool_use("1", "f"), tool_use("2", "g"))
    parts = (*calls, tool_result("1", "a"), AttachmentPart(name="x.png"), tool_result("2", "b"))
    store.append(KEY, assistant(*parts))
    chats = LlamaIndexChatStore(store)
    before = [(one.role.value, one.content) for one in chats.get_messages(KEY)]
    at = before.index(("tool", "b"))
    chats.delete_message(KEY, at)
    assert [(one.role.value, one.content) for one in chats.get_messages(KEY)] == before[:at] + before[at + 1 :]


FILES = [
    ImageBlock(image=b"\x89PNG\r\n\xfa\xfb", image_mimetype="image/png", detail="low"),
    ImageBlock(url="data:image/png;base64,iVBORw0K+vs="),
    AudioBlock(audio=b"RIFF", format="wav"),
    VideoBlock(video=b"film", video_mimetype="video/mp4"),
    DocumentBlock(data=b"%PDF-1.4", title="a.pdf", document_mimetype="application/pdf"),
]


def test_files_are_attachments_for_other_providers() -> None:
    given = [ChatMessage(role="user", blocks=[TextBlock(text="see"), one]) for one in FILES]
    messages = through_storage([from_llama_index(one) for one in given])
    assert [message.provider_meta for message in messages] == [{}] * len(FILES), "the files are stored once"
    assert [message.parts[1].modality for message in messages] == ["image", "image", "audio", "video", "document"]
    assert [to_llama_index(one) for one in messages] == [[one] for one in given]
    for format_ in FORMATS:
        items = format_.to(messages, shape="request", on_loss=lambda loss: None)
        validate(format_.name, items)
        assert "iVBORw0K+vs=" in str(items)
    inline = user(AttachmentPart(modality="image", reference="data:image/png;base64,iVBORw0K+vs="))
    [message] = to_llama_index(inline)
    assert [block.image for block in message.blocks] == [b"iVBORw0K+vs="]


def to_llama_index(message: Message) -> list[ChatMessage]:
    with HistoryStore("memory://") as store:
        store.append(KEY, message)
        return LlamaIndexChatStore(store, on_loss=pytest.fail).get_messages(KEY)


async def test_any_number_of_messages_can_be_deleted() -> None:
    with HistoryStore("memory://", max_messages=2000) as store:
        chats = LlamaIndexMemoryStore(store)
        await chats.add_messages(KEY, [ChatMessage(role="user", content="x")] * 1001)
        await chats.add_message(KEY, ChatMessage(role="user", content="old"), MessageStatus.ARCHIVED)
        await chats.delete_messages(KEY, MessageStatus.ACTIVE)
        assert [one.content for one in await chats.get_messages(KEY, None)] == ["old"]
