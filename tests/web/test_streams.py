"""Streams of events: what is in them, how they go on, how they end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, Conversation, Participant, assistant, tool_use, user
from redis_history.web import Limits
from tests.support.servers import RealServer, until
from tests.support.web import Lean, Stream, at, listening

HOSTILE = 'x\n\ndata: {"forged": 1}\n\r\nevent: gone\rid: 1\u2028<script>alert(1)</script>\x00'


async def test_every_kind_of_event(make: Any, store: Any) -> None:
    async with listening(make()) as port, Stream(port, at("c", "events")) as stream:
        await stream.opened()
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        await store.create_conversation(Conversation("c", title="T"))
        first = await store.append_many("c", [user("1", id="m1"), user("2", id="m2"), user("3", id="m3")])
        await store.update_message("c", user("1b", id="m1"))
        done = await store.compact("c", through="m2", summary="both")
        events = await stream.events(4)  # a summary that has left when its event is read gives a reset
        await store.expand("c", done.summary.id)
        await store.delete_messages("c", ["m3"])
        await store.restore("c", [user("r", id="r")])
        await store.clear("c")
        await store.delete_conversation("c")
        events += await stream.events(5)
    assert [kind for kind, _ in events] == [
        "conversation", "appended", "updated", "compacted", "expanded", "deleted", "restored", "cleared", "gone"
    ]  # fmt: skip
    data = [data for _, data in events]
    assert all(one["conversation"] == "c" for one in data)
    assert [one["revision"] for one in data] == list(range(1, 10))
    assert len({one["cursor"] for one in data}) == 9
    assert stream.last_id == data[-1]["cursor"]
    assert [one["id"] for one in data[1]["messages"]] == ["m1", "m2", "m3"]
    assert data[1]["messages"][0]["text"] in ("1", "1b"), "as it is when it is read"
    assert data[1]["removed_ids"] == []
    assert data[1]["messages"][2]["position"] == str(first[2].message.position)
    assert data[2]["message"]["text"] == "1b"
    assert data[0]["record"]["title"] in ("T", None)  # the record as it is when the event is read
    assert (data[3]["count"], data[3]["summary"]["is_summary"]) == (2, True)
    assert data[3]["through"] == str(first[1].message.position)
    assert data[4] == data[4] | {"summary_id": done.summary.id, "count": 2}
    assert data[5]["ids"] == ["m3"]
    assert "messages" not in data[6], "there may be more than an event should carry"


@pytest.mark.proves("browser-text")
async def test_hostile_content_cannot_forge_events(make: Any, store: Any) -> None:
    name = HOSTILE[:60]
    async with listening(make()) as port, Stream(port, at(name, "events")) as stream, Stream(port) as listed:
        await stream.opened()
        assert await listed.event() == ("hello", {})
        message = assistant(
            HOSTILE, tool_use(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}), id="m", participant=Participant("agent", HOSTILE)
        )
        await store.append(name, message)
        kind, data = await stream.event()
        assert kind == "appended"
        assert data["messages"][0]["parts"][1]["input"] == {HOSTILE: HOSTILE}
        assert (data["messages"][0]["text"], data["conversation"]) == (HOSTILE, name)
        await store.update_conversation(name, title=HOSTILE)
        kind, data = await stream.event()
        assert (kind, data["record"]["title"]) == ("conversation", HOSTILE)
        titles = set()
        while HOSTILE not in titles:
            kind, data = await listed.event()
            assert (kind, data["conversation"]) == ("changed", name)
            titles.add(data["title"])


async def test_a_stream_resumes_after_the_last_event(make: Any, store: Any) -> None:
    async with listening(make()) as port:
        snapshot = await store.snapshot("c")
        await store.append("c", user("1", id="m1"))
        async with Stream(port, at("c", "events", after=str(snapshot.cursor))) as stream:
            await stream.event()
            first = stream.last_id
        await store.append("c", user("2", id="m2"))
        await store.append("c", user("3", id="m3"))
        # A browser comes again to the same address, whose cursor is older than its header.
        async with Stream(port, at("c", "events", after=str(snapshot.cursor)), Last_Event_ID=first) as stream:
            told = [data["messages"][0]["id"] for _, data in await stream.events(2)]
        assert told == ["m2", "m3"]


@pytest.mark.parametrize("cursor", ["nonsense", "0" * 2000, "%00", "é"])
async def test_an_invalid_cursor_is_a_reset(make: Any, store: Any, cursor: str) -> None:
    await store.append("c", user("1"))
    async with listening(make()) as port, Stream(port, at("c", "events"), Last_Event_ID=cursor) as stream:
        kind, data = await stream.event()
        assert (kind, data["reason"]) == ("reset", "cursor_invalid")
        assert data["cursor"] == str((await store.snapshot("c")).cursor)
        await store.append("c", user("2"))
        assert (await stream.event())[0] == "appended"


async def test_a_cursor_of_another_conversation_is_a_reset(make: Any, store: Any) -> None:
    await store.append("other", user("secret", id="o1"))
    cursor = str((await store.snapshot("other")).cursor)
    await store.append("other", user("secret too", id="o2"))
    await store.append("c", user("1"))
    async with listening(make()) as port, Stream(port, at("c", "events"), Last_Event_ID=cursor) as stream:
        kind, data = await stream.event()
        assert (kind, data["conversation"], data["revision"]) == ("reset", "c", 1)
        await store.append("c", user("2"))
        assert (await stream.event())[1]["messages"][0]["text"] == "2"


@pytest.mark.proves("streams")
async def test_a_cursor_older_than_the_log_is_a_reset(make: Any, server: RealServer, namespace: str) -> None:
    async with AsyncHistoryStore(server.url, namespace=namespace, log_length=10) as store:
        await store.append("c", user("0", id="m0"))
        old = str((await store.snapshot("c")).cursor)
        for number in range(1, 300):
            await store.append("c", user("x", id=f"m{number}"))
        new = str((await store.snapshot("c")).cursor)
        async with listening(make(store=store)) as port, Stream(port, at("c", "events"), Last_Event_ID=new) as current:
            await current.opened()
            async with Stream(port, at("c", "events"), Last_Event_ID=old) as late:
                kind, data = await late.event()
                assert (kind, data["reason"], data["cursor"]) == ("reset", "log_trimmed", new)
                await store.append("c", user("x", id="last"))
                assert (await late.event())[1]["messages"][0]["id"] == "last"
            kind, data = await current.event()
            assert (kind, data["messages"][0]["id"]) == ("appended", "last")


async def test_a_too_large_change_is_a_reset(make: Any, store: Any) -> None:
    async with listening(make()) as port, Stream(port, at("c", "events")) as stream:
        await stream.opened()
        await store.append_many("c", [user("x" * 20_000, id=f"m{n}") for n in range(100)])
        kind, data = await stream.event()
        assert (kind, data["reason"], data["revision"]) == ("reset", "change_too_large", 1)
        await store.append("c", user("small"))
        assert (await stream.event())[0] == "appended"


async def test_silent_streams_send_heartbeats(make: Any) -> None:
    app = make(limits=Limits(heartbeat=0.1))
    async with listening(app) as port, Stream(port, at("c", "events")) as one, Stream(port) as all_of_them:
        await one.opened()
        await one.comment()
        await one.comment()
        await all_of_them.event()
        await all_of_them.comment()


async def test_clients_share_one_subscription(make: Any, own_server: Any, namespace: str) -> None:
    server = own_server()

    def listeners() -> list[int]:
        with server.client() as client:
            told = [row for row in client.client_list() if int(row["sub"]) + int(row["psub"])]
            channels = [name for name in client.pubsub_channels() if b"rh2:doorbell" not in name]
            return [len(told), len(channels)]

    async with (
        AsyncHistoryStore(server.url, namespace=namespace) as store,
        listening(make(store=store, limits=Limits(grace=0.0))) as port,
    ):
        streams = [Stream(port, at("c", "events")) for _ in range(20)]
        for stream in streams:
            await (await stream.__aenter__()).opened()
        await store.append("c", user("1", id="m1"))
        for stream in streams:
            assert (await stream.event())[1]["messages"][0]["id"] == "m1"
        assert listeners() == [1, 1]
        for stream in streams:
            await stream.__aexit__()
        async with asyncio.timeout(10):
            while listeners()[1]:
                await asyncio.sleep(0.01)
        async with Stream(port, at("c", "events")) as again:
            await again.opened()
            await store.append("c", user("2", id="m2"))
            assert (await again.event())[1]["messages"][0]["id"] == "m2"


async def test_browsers_that_vanish_leave_nothing(make: Any, own_server: Any, namespace: str) -> None:
    """In the middle of a reply: no task, thread, subscription or connection."""
    server = own_server()
    async with (
        AsyncHistoryStore(server.url, namespace=namespace) as store,
        listening(make(store=store, limits=Limits(grace=0.0))) as port,
        store.stream("c") as reply,
    ):

        def left() -> list[int]:
            channels = [name for name in server.watcher.pubsub_channels() if b"rh2:doorbell" not in name]
            threads = [thread for thread in threading.enumerate() if "redis_history" in thread.name]
            return [len(asyncio.all_tasks()), len(threads), len(channels), len(server.watcher.client_list())]

        async def browse(count: int) -> None:
            streams = [Stream(port, at("c", "events") if number % 2 else "v1/events") for number in range(count)]
            for stream in streams:
                await stream.__aenter__()
            await reply.write("word ")
            for stream in streams:
                await stream.event()
                stream._writer.transport.abort()

        await browse(2)  # the store has its connections then
        await until(lambda: left()[2] == 0, left)
        before = left()
        await browse(20)

        def settled() -> bool:  # the writer, the list and the doorbell come and go by one or two
            return left()[2] == 0 and all(now <= then + 2 for now, then in zip(left(), before, strict=True))

        await until(settled, before)


async def test_the_list(make: Any, store: Any) -> None:
    await store.append("known", user("1"))
    async with listening(make()) as port, Stream(port) as stream:
        assert await stream.event() == ("hello", {})
        await store.append("new", user("Hello " * 50, participant=Participant("user", "u", "Ann")))
        kind, data = await stream.event()
        assert (kind, data["conversation"], data["kind"]) == ("changed", "new", "appended")
        assert (data["message_count"], data["revision"]) == (1, 1)
        assert data["last"].pop("timestamp")
        assert data["last"] == {"role": "user", "name": "Ann", "text": ("Hello " * 50)[:200]}
        await store.update_conversation("known", title="T")
        kind, data = await stream.event()
        assert (data["conversation"], data["kind"], data["title"]) == ("known", "conversation", "T")
        assert (data["last"]["name"], data["last"]["text"]) == ("user", "1")
        await store.delete_conversation("known")
        assert await stream.event() == ("gone", {"conversation": "known"})


async def test_the_list_stream_limits_updates_of_a_busy_conversation(make: Any, store: Any) -> None:
    async with listening(make()) as port, Stream(port) as stream:
        await stream.event()
        for number in range(300):
            await store.append("c", user(f"{number}"))
        told = []
        while not told or told[-1]["last"]["text"] != "299":
            _, data = await stream.event()
            told.append(data)
        assert len(told) < 60, "one a quarter of a second, not one a change"
        assert told[-1]["revision"] == 300
        # An update has the state at the time of sending.
        assert [one["revision"] for one in told] == sorted(one["revision"] for one in told)


async def test_head_of_a_stream_ends(make: Any) -> None:
    async with listening(make()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "Host: localhost\r\nAuthorization: Bearer a-token-of-the-tests\r\nConnection: close\r\n\r\n"
        writer.write(f"HEAD /v1/conversations/c/events HTTP/1.1\r\n{head}".encode())
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        writer.close()
        await writer.wait_closed()


@pytest.mark.proves("bounded-requests")
async def test_the_number_of_streams_is_limited(make: Any, store: Any) -> None:
    async with listening(make(limits=Limits(streams_per_address=2))) as port:
        async with Stream(port, at("c", "events")) as first, Stream(port, at("c", "events")) as second:
            await first.opened()
            await second.opened()
            async with Stream(port, at("c", "events")) as third:
                assert (third.status, (await third.body())["code"]) == (429, "too_many_streams")
                assert third.headers["retry-after"] == "10"
        async with asyncio.timeout(10):
            status = 429
            while status != 200:  # the server has heard that they left
                async with Stream(port, at("c", "events")) as third:
                    status = third.status
    async with listening(make(limits=Limits(streams=1))) as port, Stream(port) as first:
        await first.opened()
        async with Stream(port, at("c", "events")) as second:
            assert second.status == 503


async def test_a_client_that_does_not_read_is_disconnected(make: Any, store: Any) -> None:
    async with listening(make(limits=Limits(streams=1, patience=0.3))) as port:
        stuck = await Lean.connect(port, at("c", "events"))
        await stuck.opened.wait()
        stuck.transport.pause_reading()
        for _ in range(20):  # more than the systems of both sides keep
            await store.append_many("c", [user("x" * 20_000) for _ in range(20)])
        async with asyncio.timeout(20):
            status = 503
            while status != 200:
                async with Stream(port, at("c", "events")) as other:
                    status = other.status
        stuck.transport.abort()


async def test_a_closed_store_ends_the_streams(make: Any, server: RealServer, namespace: str) -> None:
    async with (
        AsyncHistoryStore(server.url, namespace=namespace) as store,
        listening(make(store=store)) as port,
        Stream(port, at("c", "events")) as one,
        Stream(port) as listed,
    ):
        await one.opened()
        await listed.event()
        await store.aclose()
        assert await one.event() is None
        assert await listed.event() is None


async def test_a_reply_grows_for_each_reader_from_its_beginning(make: Any, store: Any) -> None:
    async with listening(make()) as port, Stream(port, at("c", "events")) as early:
        await early.opened()
        async with store.stream("c", id="r") as reply:
            kind, data = await early.event()
            assert (kind, data["messages"][0]["status"]) == ("appended", "streaming")
            cursor = early.last_id
            await reply.write("one ")
            kind, data = await early.event()
            assert (kind, data) == (
                "grew", {"conversation": "c", "id": "r", "offset": 0, "delta": "one ", "whole": True}
            )  # fmt: skip
            assert early.last_id == cursor
            await reply.add(tool_use("1", "find"))
            await reply.write("two")
            text, parts = "one ", []
            while "two" not in text:
                kind, data = await early.event()
                assert (kind, data["offset"], data["whole"]) == ("grew", len(text), False)
                text += data["delta"]
                parts += data.get("parts", [])
            assert text == "one \ntwo"
            assert parts[0]["name"] == "find"
            for after in ("", cursor):  # a late reader, and one that was reloaded
                async with Stream(port, at("c", "events", **({"after": after} if after else {}))) as late:
                    kind, data = await late.event()
                    assert (kind, data["delta"], data["whole"]) == ("grew", "one \ntwo", True)
                    assert [part["type"] for part in data["parts"]] == ["text", "tool_use", "text"]
        kind, data = await early.event()
        assert (kind, data["message"]["status"], data["message"]["text"]) == ("updated", "complete", "one \ntwo")
        async with Stream(port, at("c", "events", after=cursor)) as late:
            kind, data = await late.event()
            assert (kind, data["message"]["status"]) == ("updated", "complete")
