"""`store.execute`: tasks of several operations, written once for both kinds of stores."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, Conversation, HistoryStore, Message, assistant, user
from redis_history.errors import InvalidInputError, MessageNotFoundError, RevisionConflictError, RunLostError
from redis_history.store import operations as ops
from redis_history.store.operations.fork import fork
from redis_history.store.operations.tasks import Ask
from redis_history.types import Steps
from tests.conformance.conftest import ids
from tests.support.servers import RealServer


def answered(conversation_id: str, text: str) -> Steps[list[Message]]:
    """Append an answer, name the conversation, and return its messages."""
    record: Conversation | None = yield ops.ReadConversation(conversation_id)
    assert record is not None
    yield ops.Append.of(conversation_id, assistant(text, id="a"), ops.Precondition.of(record.revision))
    yield from ops.change_record(conversation_id, {"title": text})
    return (yield from ops.read_messages(conversation_id))


@pytest.mark.smoke
async def test_steps_read_and_write(store: Any) -> None:
    await store.append("c", user("Hello", id="u"))
    found = await store.execute(answered("c", "Hi"))
    assert ids(found) == ["u", "a"]
    assert found == await store.get("c")
    assert (await store.get_conversation("c")).title == "Hi"


async def test_errors_are_raised_at_the_yield(store: Any) -> None:
    await store.append("c", user("Hello", id="u"))
    seen: list[type[Exception]] = []

    def steps() -> Steps[int]:
        try:
            yield ops.Clear("c", precondition=ops.Precondition.of(7))
        except RevisionConflictError as error:
            seen.append(type(error))
        try:
            yield "clear it"
        except InvalidInputError as error:
            seen.append(type(error))
        yield from ops.change_message("c", user("Bye", id="none"))
        raise AssertionError("it was changed")

    with pytest.raises(MessageNotFoundError):
        await store.execute(steps())
    assert seen == [RevisionConflictError, InvalidInputError]
    assert ids(await store.get("c")) == ["u"]


@pytest.mark.backends("memory")
async def test_what_is_no_generator_is_refused(store: Any) -> None:
    for wrong in (ops.ReadConversation("c"), None, [ops.ReadConversation("c")], answered):
        with pytest.raises(InvalidInputError, match="generator"):
            await store.execute(wrong)


async def test_what_steps_write_is_told_and_found(stores: Any) -> None:
    store, reader = stores(), stores()
    await store.append_many("c", [user("the dog is old", id="u"), assistant("I see", id="a")])
    subscription = store.subscribe("c")  # begins with the next write, because it was not awaited

    def steps() -> Generator[Any, Any, Conversation]:
        yield ops.Append.of("c", user("and blind", id="later"))
        copy: Conversation = yield from fork("c", "copy")
        return copy

    assert (await store.execute(steps())).message_count == 3
    assert ids([hit.message for hit in await reader.search("copy", "blind")]) == ["later"]
    assert ids((await subscription.get(timeout=10)).messages) == ["later"]


def clearing(conversation_id: str) -> Steps[int]:
    return (yield ops.Clear(conversation_id))


def test_writes_of_an_exclusive_store_are_those_of_the_run() -> None:
    with HistoryStore("memory://") as store:
        store.append("c", user("Hello"))
        exclusive = store.exclusive()
        with pytest.raises(RunLostError):
            exclusive.execute(clearing("c"))
        with store.run("c"):
            assert exclusive.execute(clearing("c")) == 2
            with pytest.raises(RunLostError, match="copy"):
                exclusive.execute(fork("c", "copy"))
        assert store.execute(clearing("c")) == 2


async def test_writes_of_an_exclusive_async_store_are_those_of_the_run() -> None:
    async with AsyncHistoryStore("memory://") as store:
        await store.append("c", user("Hello"))
        exclusive = store.exclusive()
        with pytest.raises(RunLostError):
            await exclusive.execute(clearing("c"))
        async with store.run("c"):
            assert await exclusive.execute(clearing("c")) == 2
            with pytest.raises(RunLostError, match="copy"):
                await exclusive.execute(fork("c", "copy"))


async def test_a_cancellation_reaches_the_steps(server: RealServer, namespace: str) -> None:
    done: list[str] = []
    waits = asyncio.Event()
    async with AsyncHistoryStore(server.url, namespace=namespace) as store:

        async def answer_late() -> None:
            waits.set()
            await asyncio.Event().wait()

        def steps() -> Steps[None]:
            try:
                yield Ask(answer_late)
            except asyncio.CancelledError:
                yield ops.Append.of("c", user("cancelled", id="m"))
                done.append("cleaned up")
                raise

        task = asyncio.create_task(store.execute(steps()))
        await waits.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["cleaned up"]
        assert ids(await store.get("c")) == ["m"]
