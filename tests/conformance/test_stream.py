"""Replies that are written bit by bit."""

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from redis_history import MessagesAppended, ReplyEnded, ReplyGrew, assistant, tool, tool_result, tool_use, user
from redis_history.errors import (
    InvalidInputError,
    MessageConflictError,
    MessageNotFoundError,
    MessageTooLargeError,
    TornPairError,
)
from redis_history.store.operations import Append, GrowReply, ReplyEnd, UpdateMessage
from redis_history.store.writes import Entry
from redis_history.values import TextPart
from redis_history.values.replies import record_of
from redis_history.values.sizes import message_tokens
from tests.conformance.conftest import SOON, take
from tests.support.servers import until


async def execute(store: Any, op: Any) -> Any:
    outcome = store.backend.execute
    return await outcome(op) if inspect.iscoroutinefunction(outcome) else await asyncio.to_thread(outcome, op)


def records(text: str) -> bytes:
    return record_of(TextPart(text=text))


async def begun(store: Any, text: str = "", conversation_id: str = "c") -> Append:
    """A reply whose writer vanished, and the operation that began it."""
    op = Append.of_reply(conversation_id, "assistant", {"id": "r"})
    await execute(store, op)
    if text:
        await execute(store, GrowReply(conversation_id, op.token, 0, records(text), False))
    return op


async def until_ended(subscription: Any, seconds: float = SOON) -> list[Any]:
    events: list[Any] = []
    ends = time.monotonic() + seconds
    while not events or not isinstance(events[-1], ReplyEnded):
        event = await subscription.get(timeout=ends - time.monotonic())
        assert event is not None, f"only {events}"
        events.append(event)
    return events


@pytest.mark.smoke
async def test_a_reply_is_one_message_from_its_first_word_on(stores: Any) -> None:
    writer, reader = stores(), stores()
    await writer.append("c", user("Why?"))
    async with reader.subscribe("c") as subscription:
        async with writer.stream("c", id="r", metadata={"a": 1}) as reply:
            [started] = await take(subscription, 1)
            assert isinstance(started, MessagesAppended)
            [message] = started.messages
            assert (message.id, message.status, message.text) == ("r", "streaming", "")
            await reply.write("Because ")
            [grew] = await take(subscription, 1)
            assert isinstance(grew, ReplyGrew)
            assert (grew.message_id, grew.offset, grew.delta) == ("r", 0, "Because ")
            assert reply.message == grew.applied_to(message)
            assert (await reader.get("c"))[1] == reply.message
            assert await reader.get_message("c", "r") == reply.message
            assert (await reader.snapshot("c")).messages[1] == reply.message
            for word in ["of ", "", "the ", "ü€😀 "]:
                await reply.write(word)
            await reply.write("rest.")
        events = [started, grew, *await until_ended(subscription)]
        assert events[-1].message == reply.message
        assert "".join(event.delta for event in events) == "Because of the ü€😀 rest."
        assert (reply.message.status, reply.message.text) == ("complete", "Because of the ü€😀 rest.")
        assert reply.message.metadata == {"a": 1}
        assert (await reader.get("c"))[1] == reply.message
        assert await subscription.get(timeout=0) is None
    conversation = await reader.get_conversation("c")
    assert (conversation.message_count, conversation.characters) == (2, 4 + len(reply.message.text))


async def test_a_reply_whose_beginning_is_cancelled_at_any_moment_has_ended(stores: Any, face: str) -> None:
    if face == "sync":
        pytest.skip("threads are not cancelled")
    store = stores()

    async def work() -> None:
        async with store.stream("c"):
            await asyncio.sleep(60)

    await store.get("c")
    for moment in range(60):
        task = asyncio.create_task(work())
        for _ in range(moment):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert {message.status for message in await store.get("c")} <= {"interrupted"}, moment


async def test_parts_are_added_between_text(stores: Any) -> None:
    writer, reader = stores(), stores()
    parts = [tool_use("1", "find", {"q": [1, None]}), tool_result("1", "found")]
    async with reader.subscribe("c") as subscription:
        async with writer.stream("c") as reply:
            await reply.write("I look. ")
            await reply.write("Wait.")
            for part in parts:
                await reply.add(part)
            await reply.write("Here ")
            await reply.add({"type": "text", "text": "it is."})
        events = await until_ended(subscription)
    assert reply.message.parts == (TextPart("I look. Wait."), *parts, TextPart("Here it is."))
    assert "".join(event.delta for event in events) == reply.message.text == "I look. Wait.\nfound\nHere it is."
    message = events[0].messages[0]
    for event in events[1:-1]:
        assert event.offset == len(message.text)
        message = event.applied_to(message)
        assert (await reader.get_message("c", message.id)).text.startswith(message.text)
    assert [*await reader.get("c")] == [reply.message]


async def test_late_and_resumed_subscribers_get_all_of_the_text(stores: Any) -> None:
    writer, reader = stores(), stores()
    async with reader.subscribe("c") as early, writer.stream("c") as reply:
        await reply.write("one ")
        _, grew = await take(early, 2)
        async with reader.subscribe("c") as late, reader.subscribe("c", after=grew.cursor) as resumed:
            await reply.write("two ")
            for subscription in (late, resumed):
                text = ""
                while text != "one two ":
                    [event] = await take(subscription, 1)
                    assert event.offset == len(text)
                    text += event.delta
            [delta] = await take(early, 1)
            assert (delta.offset, delta.delta) == (4, "two ")
            await reply.finish()
            assert [(await take(one, 1))[0].delta for one in (early, late, resumed)] == ["", "", ""]
    async with reader.subscribe("c", after="0000000000000000:0:00000000000000000000") as last:
        events = await until_ended(last)
        assert "".join(event.delta for event in events) == "one two "


@pytest.mark.smoke
async def test_a_reply_whose_block_fails_is_interrupted(store: Any) -> None:
    reply = store.stream("c")

    async def fail() -> None:
        async with reply:
            await reply.write("half of ")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    [message] = await store.get("c")
    assert message == reply.message
    assert (message.status, message.text) == ("interrupted", "half of ")
    await reply.aclose()
    assert await store.get("c") == [message]


@pytest.mark.full
async def test_subscribers_end_the_reply_of_a_dead_writer(stores: Any) -> None:
    writer, reader = stores(), stores(poll_interval=600)
    op = await begun(writer, "half of ")
    async with reader.subscribe("c") as subscription, reader.subscribe_all() as every:
        events = await until_ended(subscription)
        assert events[-1].message.status == "interrupted"
        assert (await until_ended(every))[-1].message == events[-1].message
        assert "".join(event.delta for event in events) == "half of "
    assert await reader.get("c") == [events[-1].message]
    assert await execute(writer, GrowReply("c", op.token, len(records("half of ")), records("it"), True)) == -1


async def _ended(read: Callable[[], Awaitable[Any]]) -> Any:
    """The message that is read, when the reply of a dead writer has come to its end."""
    ends = time.monotonic() + SOON
    while (message := await read()).status == "streaming" and time.monotonic() < ends:
        await asyncio.sleep(0.2)
    return message


async def _newest(store: Any, how: str) -> Any:
    """The newest message of the conversation with this name."""
    if how == "list":
        found = await store.list_conversations(preview=True)
        return next(one.last_message for one in found if one.conversation.conversation_id == how)
    if how == "iter":
        return [message async for message in store.iter(how, include_archived=True)][-1]
    return (await store.get(how, include_archived=how == "archive", limit=1 if how == "limit" else None))[-1]


@pytest.mark.full
async def test_every_read_has_the_text_of_a_reply_and_ends_that_of_a_dead_writer(stores: Any) -> None:
    """Also without a subscription."""
    writer, store = stores(), stores()
    reads = ["get", "limit", "archive", "iter", "list"]  # a list reads all conversations
    for how in reads:
        await store.append_many(how, [user("one", id="a"), user("two", id="b")])
        await store.compact(how, through="a", summary="about one")
        await begun(writer, "half of ", how)
    for how in reads:
        message = await _newest(store, how)
        assert (message.id, message.status, message.text) == ("r", "streaming", "half of ")
    for how in reads:
        message = await _ended(partial(_newest, store, how))
        assert (message.status, message.text) == ("interrupted", "half of ")
        assert (await store.get(how))[-1] == await store.get_message(how, "r") == message
        assert (await store.snapshot(how)).messages[-1] == message
        assert (await store.get_conversation(how)).revision == 4


@pytest.mark.parametrize("status", ["complete", "interrupted", "stopped"])
async def test_an_edit_while_a_reply_is_written_stays(store: Any, status: str) -> None:
    """A redaction, or a stop by another process."""

    async def write() -> None:
        async with store.stream("c", id="r") as reply:
            await reply.write("a secret")
            await until_text(store, "a secret")
            await store.update_message("c", assistant("[redacted]", id="r", status=status))
            await reply.write(" and more")

    with pytest.raises(MessageConflictError, match="was changed while its reply"):
        await write()
    [message] = await store.get("c")
    assert (message.text, message.status) == ("[redacted]", status)


async def test_calls_in_a_reply_stay_with_their_results(stores: Any) -> None:
    store = stores(max_messages=4)
    await store.append("c", user("q", id="q"))
    with contextlib.suppress(MessageNotFoundError):  # the cap may remove the reply, together with the result
        await _reply_with_a_call(store)
    left = {message.id for message in await store.get("c")}
    assert ("r" in left) == ("t" in left), left


async def _reply_with_a_call(store: Any) -> None:
    async with store.stream("c", id="r") as reply:
        await reply.write("I look. ")
        await reply.add(tool_use("call", "find", {}))
        await until_text(store, "I look. ")

        async def has_call() -> bool:
            return bool((await store.get("c"))[-1].tool_uses)

        await until(has_call)
        await store.append("c", tool(tool_result("call", "42"), id="t"))
        await store.append("c", user("next", id="n"))
        with pytest.raises(TornPairError):
            await store.compact("c", through="t", summary="short")
        await store.compact("c", through="q", summary=user("short", id="s", metadata={"is_summary": True}))
        await store.append_many("c", [user("1", id="n1"), user("2", id="n2"), user("3", id="n3")])


async def test_the_deltas_of_empty_and_mixed_parts_are_the_text(store: Any) -> None:
    texts = ["Let me look.", "", "Found it.", "", "", "More."]
    joined = ""
    async with store.subscribe("c") as subscription:
        async with store.stream("c", interval=0.0) as reply:
            for number, text in enumerate(texts):
                await reply.add(TextPart(text=text))
                if number % 2 == 0:
                    await reply.add(tool_use(f"t{number}", "find", {}))
                    await reply.add(TextPart(text=""))
                await asyncio.sleep(0.02 * (number % 3))  # some parts are sent together
        for event in await until_ended(subscription):
            joined = joined[: getattr(event, "offset", None)] + event.delta
    assert joined == reply.message.text


@pytest.mark.parametrize("text", ["[redacted]", "a new secret, which is longer", "no"])
async def test_an_edit_replaces_the_text_that_subscribers_have(store: Any, text: str) -> None:
    async with store.subscribe("c") as subscription, store.subscribe_all() as every:
        await begun(store, "a secret")
        for following in (subscription, every):
            _, *grown = await until_grown(following, "a secret")
            assert "".join(event.delta for event in grown) == "a secret"
        await store.update_message("c", assistant(text, id="r"))
        for following in (subscription, every):
            [ended] = await take(following, 1)
            assert isinstance(ended, ReplyEnded)
            assert "a secret"[: ended.offset] + ended.delta == ended.message.text == text


async def until_grown(subscription: Any, text: str) -> list[Any]:
    """The events up to the one with the last of this text."""
    events = await take(subscription, 1)
    while "".join(getattr(event, "delta", "") for event in events) != text:
        events += await take(subscription, 1)
    return events


async def until_text(store: Any, text: str) -> None:
    async def has_text() -> bool:
        return bool((await store.get("c"))[-1].text == text)

    await until(has_text)


async def test_late_copies_of_growth_and_end_change_nothing(store: Any) -> None:
    op = await begun(store, "one ")
    size = len(records("one "))
    second = GrowReply("c", op.token, size, records("two"), True)
    assert [await execute(store, second) for _ in range(3)] == [size + len(records("two"))] * 3
    assert await execute(store, GrowReply("c", op.token, 0, records("one "), False)) == size + len(records("two"))
    beyond = GrowReply("c", op.token, 100, records("three"), False)
    assert await execute(store, beyond) == size + len(records("two")), "what is missing must be sent first"
    [message] = await store.get("c")
    assert message.text == "one two"
    end = UpdateMessage("c", Entry.of(message), reply=ReplyEnd(op.token))
    outcome = await execute(store, end)
    changed = await store.update_message("c", assistant("other", id="r"))
    assert await execute(store, end) == outcome
    assert await execute(store, second) == -1
    assert await execute(store, op)  # the beginning
    assert await store.get("c") == [changed.message]


@pytest.mark.parametrize("way", ["delete", "clear", "restore", "delete_conversation", "cap"])
async def test_a_reply_that_was_removed_ends_with_an_error(stores: Any, way: str) -> None:
    store = stores(max_messages=2)

    async def write() -> None:
        async with store.stream("c", interval=0) as reply:
            await reply.write("x")
            await until_text(store, "x")
            if way == "delete":
                await store.delete_messages("c", [reply.message.id])
            elif way == "cap":
                await store.append_many("c", [user("a"), user("b")])
            elif way == "restore":
                await store.restore("c", [user("other")])
            else:
                await getattr(store, way)("c")
            for _ in range(1000):
                await reply.write("y")
                await asyncio.sleep(0.01)

    with pytest.raises(MessageNotFoundError):
        await write()
    assert "assistant" not in [message.role for message in await store.get("c")]
    if way == "delete_conversation":
        assert await store.get_conversation("c") is None


async def test_an_id_is_written_once(stores: Any) -> None:
    store, other = stores(), stores()
    async with store.stream("c", id="r") as reply:
        with pytest.raises(MessageConflictError):
            async with other.stream("c", id="r"):
                pass
        await reply.write("x")
    with pytest.raises(MessageConflictError):
        await store.stream("c", id="r").write("y")
    assert (await store.get("c"))[0].text == "x"


async def test_what_cannot_be_written_is_rejected(store: Any) -> None:
    async with store.stream("c") as reply:
        for text in (5, None, "\ud800"):
            with pytest.raises(InvalidInputError):
                await reply.write(text)
        for part in ("x", {"type": "nothing"}, [], tool_use("1", "x", object())):
            with pytest.raises(InvalidInputError):
                await reply.add(part)
        with pytest.raises(InvalidInputError):
            await reply.write("x" * 4_000_001)
    assert reply.message.parts == ()


async def test_a_search_finds_a_reply_when_it_has_ended(store: Any) -> None:
    async with store.stream("c") as reply:
        await reply.write("walrus")
        await until_text(store, "walrus")
        assert await store.search("c", "walrus") == []
    [hit] = await store.search("c", "walrus")
    assert hit.message == reply.message


@pytest.mark.proves("ttl", "live")
@pytest.mark.full
async def test_a_conversation_does_not_expire_while_a_reply_is_being_written(stores: Any) -> None:
    store, op = stores(ttl=1.0), Append.of_reply("c", "assistant", {"id": "r"})
    start = time.monotonic()
    await execute(store, op)

    async def renewed_for_long() -> bool:
        assert await execute(store, GrowReply("c", op.token, 0, b"", True)) == 0
        return time.monotonic() > start + 1.5

    await until(renewed_for_long)
    assert [message.status for message in await store.get("c")] == ["streaming"]


async def test_what_a_reply_cannot_hold_is_refused_alone(store: Any) -> None:
    reply = store.stream("c", id="r")
    await reply.write("Before. ")
    for _ in range(20_000):
        await reply.write("word ")  # many small pieces take no more room than their text
    with pytest.raises(MessageTooLargeError, match="go on in another message"):
        await reply.write("x" * 3_950_000)
    with pytest.raises(MessageTooLargeError):
        await reply.add(tool_result("c1", "x" * 4_500_000))
    await reply.write("After.")
    await reply.finish()
    [stored] = await store.get("c")
    assert (stored.status, stored.text) == ("complete", f"Before. {'word ' * 20_000}After.")
    record = await store.get_conversation("c")
    assert (record.characters, record.estimated_tokens) == (len(stored.text), message_tokens(stored))


async def test_a_reply_can_be_as_large_as_a_message(store: Any) -> None:
    async with store.stream("c") as reply:
        for _ in range(39):
            await reply.write("x" * 100_000)
        await reply.write("y" * 90_000)
    assert len((await store.get("c"))[0].text) == 3_990_000
