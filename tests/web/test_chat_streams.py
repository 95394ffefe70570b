"""The streams of answers, as front ends read them."""

import asyncio
import json
import threading
from contextlib import suppress
from typing import Any

import httpx
import pytest

from redis_history import (
    AsyncHistoryStore,
    Conversation,
    assistant,
    tool_use,
    user,
)
from redis_history.errors import RunStopped
from redis_history.formats import from_vercel_ai, to_vercel_ai
from redis_history.integrations.ai_sdk import sse, ui_message_stream
from redis_history.web import ChatEndpoints, allow_all
from tests.support.servers import RealServer, until
from tests.support.web import listening
from tests.web.chatting import (
    CHAT,
    PATH,
    Gate,
    after_a_secret,
    ask,
    asked,
    asker,
    chosen,
    chunks_of,
    hide_the_secret,
    is_waiting,
    results,
    resumed_by,
    speaker,
    text_in,
)


async def test_a_stream_has_the_headers_of_the_protocol(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store))
    async with client.stream("POST", "", json=asked("Hello")) as response:
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert response.headers["content-type"].startswith("text/event-stream")
        assert [line async for line in response.aiter_lines()][-2] == "data: [DONE]"


async def test_an_answer_survives_its_readers(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    async with client.stream("POST", "", json=asked("Hello")) as response:
        async for chunk in chunks_of(response):
            if chunk["type"] == "text-delta":
                break  # the tab is closed
    await gate.begun.wait()

    for chunks in await resumed_by(client, gate, 3):
        assert text_in(chunks) == "first last"
        assert chunks[-1]["type"] == "finish"
    assert [message.text for message in await store.get(CHAT)] == ["Hello", "first last"]


async def test_a_stop_ends_the_reply_of_a_plain_function_that_goes_on(serve: Any, store: AsyncHistoryStore) -> None:
    go = threading.Event()

    def answer(run: Any) -> None:
        with run.stream(interval=0.0) as reply:
            reply.add(tool_use("call", "find", {}))
            go.wait()

    client = await serve(answer)
    try:
        async with client.stream("POST", "", json=asked("Hello")) as response:
            chunks = chunks_of(response)
            while (await anext(chunks))["type"] != "tool-input-available":
                pass
            await client.post(f"/{PATH}/stop")
            assert [chunk["type"] async for chunk in chunks] == ["tool-output-error", "finish-step", "abort"]
    finally:
        go.set()
    _, reply, result = await store.get(CHAT)
    assert (reply.status, result.tool_results[0].is_error) == ("stopped", True)


async def test_no_stream_begins_while_the_application_ends(store: AsyncHistoryStore) -> None:
    """Clients whose streams were cut reconnect immediately, and the server waits for open streams."""
    gate = Gate()
    chat = ChatEndpoints(store, gate, authorize=allow_all)
    async with listening(chat) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        asking = await gate.begin(client, asked("Hello"))
        ending = asyncio.create_task(chat.aclose())
        assert is_cut((await asking)[-1])
        assert (await client.get(f"/{PATH}/stream")).status_code == 503
        gate.open.set()
        await ending


async def test_a_stream_for_own_routes(store: AsyncHistoryStore) -> None:
    assert [chunk async for chunk in ui_message_stream(store, CHAT)] == []
    async with store.run(CHAT) as run:
        async with run.stream() as reply:
            await reply.write("Hello")
        stream = ui_message_stream(store, CHAT)
        found = [await anext(stream) for _ in range(4)]
        assert [chunk["type"] for chunk in found] == ["start", "start-step", "text-start", "text-delta"]
    rest = [chunk async for chunk in stream]
    assert rest[-1] == {"type": "finish"}
    assert found[0]["messageId"] == to_vercel_ai(await store.get(CHAT))[0]["id"]


async def test_a_stream_has_nothing_of_the_run_that_follows(store: AsyncHistoryStore) -> None:
    """It learns in one read that its run has ended, that the next one has begun, and what that has written."""
    await store.append(CHAT, user("Hi"))
    async with store.run(CHAT) as run:
        await run.append(assistant("first "))
        stream = ui_message_stream(store, CHAT)
        chunks = [await anext(stream)]
        while chunks[-1]["type"] != "text-delta":
            chunks.append(await anext(stream))
        await run.append(assistant("last"))
    async with store.run(CHAT) as run:
        for number in range(120):  # more changes than one read has
            await run.append(assistant(f"of another {number}"))
        chunks += [chunk async for chunk in stream]
    assert text_in(chunks) == "first last"
    assert chunks[-1]["type"] == "finish"


async def test_a_stream_carries_what_a_ui_message_does(store: AsyncHistoryStore) -> None:
    meta = {"provider": {"signature": "s"}}
    parts: list[dict[str, Any]] = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "Hm", "providerMetadata": meta},
        {"type": "text", "text": "I look."},
        {"type": "tool-find", "toolCallId": "c1", "state": "output-available", "input": {"a": 1}, "output": {"t": 1},
         "providerExecuted": True, "title": "Find", "callProviderMetadata": meta},
        {"type": "dynamic-tool", "toolName": "x", "toolCallId": "c2", "state": "output-error", "input": None,
         "errorText": "no"},
        {"type": "tool-pay", "toolCallId": "c3", "state": "approval-requested", "input": {}, "approval": {"id": "ap"}},
        {"type": "step-start"},
        {"type": "source-url", "sourceId": "s", "url": "https://example.com", "title": "T"},
        {"type": "file", "url": "https://example.com/a.png", "mediaType": "image/png", "filename": "a.png"},
        {"type": "data-weather", "id": "w", "data": {"t": 1}},
    ]  # fmt: skip
    message = {"id": "m", "role": "assistant", "metadata": {"model": "m1"}, "parts": parts}
    async with store.run(CHAT) as run:
        await run.append_many(from_vercel_ai([message]))
        stream = ui_message_stream(store, CHAT)
        first = await anext(stream)
    chunks = [first, *[chunk async for chunk in stream if chunk]]
    assert chunks == [
        {"type": "start", "messageId": "m", "messageMetadata": {"model": "m1"}},
        {"type": "start-step"},
        {"type": "reasoning-start", "id": "1"},
        {"type": "reasoning-delta", "id": "1", "delta": "Hm"},
        {"type": "reasoning-end", "id": "1", "providerMetadata": meta},
        {"type": "text-start", "id": "2"},
        {"type": "text-delta", "id": "2", "delta": "I look."},
        {"type": "text-end", "id": "2"},
        {"type": "tool-input-available", "toolCallId": "c1", "toolName": "find", "input": {"a": 1},
         "providerExecuted": True, "title": "Find", "providerMetadata": meta},
        {"type": "tool-output-available", "toolCallId": "c1", "output": {"t": 1}, "providerExecuted": True},
        {"type": "tool-input-available", "toolCallId": "c2", "dynamic": True, "toolName": "x", "input": None},
        {"type": "tool-output-error", "toolCallId": "c2", "dynamic": True, "errorText": "no"},
        {"type": "tool-input-available", "toolCallId": "c3", "toolName": "pay", "input": {}},
        {"type": "tool-approval-request", "approvalId": "ap", "toolCallId": "c3"},
        {"type": "finish-step"},
        {"type": "start-step"},
        parts[7],
        {"type": "file", "url": "https://example.com/a.png", "mediaType": "image/png"},
        parts[9],
        {"type": "message-metadata", "messageMetadata": {"model": "m1"}},
        {"type": "finish-step"},
        {"type": "finish"},
    ]  # fmt: skip


async def test_a_stream_ends_if_its_conversation_is_deleted_and_created_again(
    serve: Any, store: AsyncHistoryStore
) -> None:
    gate = Gate()
    client = await serve(gate)
    asking = await gate.begin(client, asked("Hello"))
    await store.delete_conversation(CHAT)
    await store.append(CHAT, user("Another conversation."))
    async with asyncio.timeout(30):
        assert (await asking)[-1]["type"] == "error"
    assert (await client.get(f"/{PATH}/stream")).status_code == 204
    gate.open.set()  # the end of the chat waits for this


@pytest.mark.full
async def test_a_stream_ends_if_its_conversation_expires(serve: Any, server: RealServer, namespace: str) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def answer(run: Any) -> None:
        begun.set()
        await never.wait()

    async with AsyncHistoryStore(server.url, namespace=namespace, ttl=1) as store:
        client = await serve(answer, store=store)
        async with asyncio.timeout(30):
            assert [chunk["type"] for chunk in await ask(client, asked("Hello"))] == ["start", "error"]
        assert begun.is_set()


async def test_an_answer_to_results_continues_the_message_of_the_client(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(asker(store), client_tools=["ask"])
    began = await ask(client, asked("one choice"))
    message = await chosen(client, "red")
    assert message["id"] == began[0]["messageId"]
    chunks = await ask(client, asked("") | {"messages": [message | {"id": "of the client"}]})
    assert (chunks[0]["messageId"], text_in(chunks)) == ("of the client", "You chose ['red'].")


async def test_results_for_an_earlier_message_are_stored_and_answered(serve: Any, store: AsyncHistoryStore) -> None:
    """`useChat` names the message that has them: the user has said something else in the meantime."""
    client = await serve(asker(store), client_tools=["ask"])
    await ask(client, asked("one choice"))
    message = await chosen(client, "red")
    await store.append_many(CHAT, [user("one choice", id="u2"), assistant("Take it.")])
    first, _, *others = (await client.get(f"/{PATH}/messages")).json()
    body = asked("") | {"messages": [first, message, *others], "messageId": message["id"]}
    chunks = await ask(client, body)
    assert (chunks[0]["messageId"], text_in(chunks)) == (message["id"], "You chose ['red'].")
    assert await results(store) == ["red"]
    body["messages"].pop()
    assert await ask(client, body) == chunks


@pytest.mark.parametrize("case", ["steered", "results", "queued"])
async def test_a_client_that_reconnects_shows_nothing_twice(serve: Any, store: AsyncHistoryStore, case: str) -> None:
    """A stream replaces the message of its id, so the client must have read that, or it is a new one."""
    gate = Gate()

    async def answer(run: Any) -> None:
        last = (await store.get(CHAT))[-1]
        if case == "results" and last.role == "user":
            await run.append(assistant("Choose:", tool_use("c", "ask", {})))
            return
        if case == "steered":
            await run.append(assistant("I look."))
            await store.append(CHAT, user("Quickly!"))
        await gate(run)

    async def read() -> list[dict[str, Any]]:
        return (await client.get(f"/{PATH}/messages")).json()  # type: ignore[no-any-return]

    async def is_stored() -> bool:
        return any(one.text == "first " for one in await store.get(CHAT))

    client = await serve(answer, client_tools=["ask"])
    asking = [asyncio.create_task(ask(client, asked("Hello")))]
    if case == "results":
        await asking[0]
        body = asked("") | {"messages": [await chosen(client, "red")]}
        asking.append(asyncio.create_task(ask(client, body)))
    await gate.begun.wait()
    await until(is_stored)
    if case == "queued":
        asking.append(asyncio.create_task(ask(client, asked("More", "u2"))))
        await until(lambda: is_waiting(store))
    before = await read()
    [chunks] = await resumed_by(client, gate, 1)
    await asyncio.gather(*asking)
    [shown] = [one for one in before if one["id"] == chunks[0]["messageId"]]
    assert shown == [one for one in before if one["role"] == "assistant"][-1]
    [ended] = [one for one in await read() if one["id"] == shown["id"]]
    assert text_in(chunks) == "".join(part.get("text", "") for part in ended["parts"])
    assert text_in(chunks).endswith("first last")


@pytest.mark.parametrize("change", ["edit", "remove"])
async def test_a_client_reads_again_what_is_edited_while_it_is_written(
    serve: Any, store: AsyncHistoryStore, change: str
) -> None:
    gate = Gate()
    client = await serve(after_a_secret(gate))
    async with client.stream("POST", "", json=asked("Hello")) as response:
        chunks = chunks_of(response)
        while (await anext(chunks)).get("delta") != "first ":
            pass
        await hide_the_secret(store, change)
        assert [is_cut(chunk) async for chunk in chunks][-1]
    [resumed] = await resumed_by(client, gate, 1)
    assert text_in(resumed) == ("[removed]" if change == "edit" else "") + "first last"
    assert resumed[-1]["type"] == "finish"


def is_cut(chunk: dict[str, Any]) -> bool:
    return chunk["type"] == "error" and chunk["errorText"].startswith("Reconnect")


async def test_a_stream_for_own_routes_says_that_it_is_cut(store: AsyncHistoryStore) -> None:
    async with store.run(CHAT) as run:
        await run.append(assistant("A secret.", id="a1"))
        events = sse(ui_message_stream(store, CHAT))
        while b"secret" not in (await anext(events)):
            pass
        await hide_the_secret(store, "remove")
        rest = [event async for event in events]
    assert is_cut(json.loads(rest[-1].removeprefix(b"data: ")))


async def test_a_stopped_answer_that_was_removed_meanwhile_ends_as_stopped(store: AsyncHistoryStore) -> None:
    """Another client answers the message again, and a slow reader sees the stop and the removal at the same time."""
    stream = ui_message_stream(store, CHAT)
    with suppress(RunStopped):
        async with store.run(CHAT, cancel=False) as run, run.stream(id="a1", interval=0.0) as reply:
            await reply.write("first ")
            while (await anext(stream)).get("delta") != "first ":
                pass
            await store.stop_run(CHAT)
            assert await run.wait_stop(20)
            run.check()
    await store.delete_messages(CHAT, ["a1"])
    assert [chunk["type"] async for chunk in stream if chunk] == ["text-end", "finish-step", "abort"]


async def test_a_client_that_leaves_while_it_sends_a_message_is_no_error(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store))  # fails at its end if the server has logged an error
    _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    head = "POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n"
    writer.write(f"{head}\r\n{{".encode())
    await writer.drain()
    assert text_in(await ask(client, asked("Hello"))) == "You said: Hello"  # so the server has read the head
    writer.close()
    await writer.wait_closed()
    assert await ask(client, asked("Hello", "u2"))


async def test_a_text_that_is_stripped_at_its_end_is_no_edit(serve: Any, store: AsyncHistoryStore) -> None:
    async def answer(run: Any) -> None:
        async with run.stream(id="a1") as reply:
            await reply.write("Hello. \n")
        await store.update_message(CHAT, assistant("Hello.", id="a1"))

    chunks = await ask(await serve(answer), asked("Hello"))
    assert (text_in(chunks).strip(), chunks[-1]["type"]) == ("Hello.", "finish")


@pytest.mark.proves("authorize")
@pytest.mark.parametrize(
    ("protocol", "change"), [("ai-sdk", "erased"), ("ag-ui", "erased"), ("ag-ui", "another user's")]
)
async def test_a_slow_reader_keeps_nothing_for_others(store: AsyncHistoryStore, protocol: Any, change: str) -> None:
    """While it does not read on, the stream that it has stays in memory, and what has been removed since with it."""
    may_end = asyncio.Event()

    async def authorize(request: Any, chat: str, action: str) -> bool:
        record = await store.get_conversation(chat)
        return record is None or record.user_id == request.headers["user"]

    async def failing(run: Any) -> None:
        await run.append(assistant("a secret", id="a1"))
        raise ValueError("failed, so that the answer is streamed to readers who come later")

    async def stream(chat: ChatEndpoints, who: str, sent: list[bytes], may_read: asyncio.Event | None = None) -> None:
        async def send(message: Any) -> None:
            sent.append(message.get("body", b""))
            if may_read is not None and sent[-1]:
                await may_read.wait()

        headers = [(b"host", b"localhost"), (b"user", who.encode())]
        scope = {"type": "http", "method": "GET", "path": f"/{CHAT}/stream", "raw_path": f"/{PATH}/stream".encode(),
                 "headers": headers, "query_string": b"", "root_path": "", "client": None}  # fmt: skip
        await chat(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]

    async with ChatEndpoints(store, failing, authorize=authorize, protocol=protocol) as chat:
        await store.create_conversation(Conversation(CHAT, user_id="ann"))
        await store.append(CHAT, user("Hello", id="u1"))
        if change == "erased":
            with suppress(ValueError):
                async with store.run(CHAT) as run:
                    await failing(run)
        else:  # the answer is over: readers get the conversation
            await store.append(CHAT, assistant("a secret", id="a1"))
        slow: list[bytes] = []
        reading = asyncio.create_task(stream(chat, "ann", slow, may_end))
        await until(lambda: b"a secret" in b"".join(slow))
        await until(lambda: not [one for one in asyncio.all_tasks() if one.get_name() == "redis_history-chat-feed"])
        if change == "erased":
            await store.delete_messages(CHAT, ["a1"])
        else:
            await store.delete_conversation(CHAT)
            await store.create_conversation(Conversation(CHAT, user_id="bob"))
        found: list[bytes] = []
        await stream(chat, "ann" if change == "erased" else "bob", found)
        assert b"secret" not in b"".join(found)
        may_end.set()
        await reading
