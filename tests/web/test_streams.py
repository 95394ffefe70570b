"""Streams of events: what is in them, how they go on, how they end."""

import asyncio
import threading
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, Conversation, Participant, assistant, tool_use, user
from redis_history.web import Limits
from tests.support.servers import RealServer, until
from tests.support.web import Stream, at, listening

C = at("c", "events")
HOSTILE = 'x\n\ndata: {"forged": 1}\n\r\nevent: gone\rid: 1\u2028<script>alert(1)</script>\x00'


async def test_every_kind_of_event(make: Any, store: Any) -> None:
    async with listening(make()) as port, Stream(port, C) as stream:
        await stream.comment()
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        await store.create_conversation(Conversation("c", title="T"))
        first = await store.append_many("c", [user("1", id="m1"), user("2", id="m2"), user("3", id="m3")])
        await store.update_message("c", user("1b", id="m1"))
        done = await store.compact("c", through="m2", summary="both")
        events = await stream.events(4)  # if the summary were gone, its event would become a reset
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
    assert [(one["conversation"], one["revision"]) for one in data] == [("c", number) for number in range(1, 10)]
    assert len({one["cursor"] for one in data}) == 9
    assert stream.last_id == data[-1]["cursor"]
    assert [one["id"] for one in data[1]["messages"]] == ["m1", "m2", "m3"]
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
        await stream.comment()
        assert await listed.event() == ("hello", {})
        parts = [HOSTILE, tool_use(HOSTILE, HOSTILE, {HOSTILE: HOSTILE})]
        await store.append(name, assistant(*parts, id="m", participant=Participant("agent", HOSTILE)))
        await store.update_conversation(name, title=HOSTILE)
        (appended, data), (renamed, record) = await stream.events(2)
        assert (appended, renamed) == ("appended", "conversation")
        assert data["messages"][0]["parts"][1]["input"] == {HOSTILE: HOSTILE}
        assert (data["messages"][0]["text"], data["conversation"]) == (HOSTILE, name)
        assert record["record"]["title"] == HOSTILE
        title = None
        while title != HOSTILE:
            kind, data = await listed.event()
            assert (kind, data["conversation"]) == ("changed", name)
            title = data["title"]


async def test_a_stream_resumes_after_the_last_event(make: Any, store: Any) -> None:
    async with listening(make()) as port:
        start = str((await store.snapshot("c")).cursor)
        await store.append("c", user("1", id="m1"))
        async with Stream(port, at("c", "events", after=start)) as stream:
            await stream.event()
        await store.append_many("c", [user("2", id="m2"), user("3", id="m3")])
        # A browser reconnects to the same URL, whose cursor is older than its header.
        async with Stream(port, at("c", "events", after=start), Last_Event_ID=stream.last_id) as stream:
            assert await stream.messages(2) == ["m2", "m3"]


@pytest.mark.parametrize("cursor", ["nonsense", "0" * 2000, "%00", "é", "of another conversation"])
async def test_a_wrong_cursor_is_a_reset(make: Any, store: Any, cursor: str) -> None:
    await store.append("other", user("secret"))
    if "another" in cursor:
        cursor = str((await store.snapshot("other")).cursor)
        await store.append("other", user("secret too"))
    await store.append("c", user("1"))
    async with listening(make()) as port, Stream(port, C, Last_Event_ID=cursor) as stream:
        kind, data = await stream.event()
        assert (kind, data["conversation"], data["revision"]) == ("reset", "c", 1)
        assert data["cursor"] == str((await store.snapshot("c")).cursor)
        await store.append("c", user("2", id="m2"))
        assert await stream.messages(1) == ["m2"]


@pytest.mark.proves("streams")
async def test_a_cursor_older_than_the_log_is_a_reset(make: Any, server: RealServer, namespace: str) -> None:
    async with AsyncHistoryStore(server.url, namespace=namespace, log_length=10) as store:
        await store.append("c", user("0"))
        old = str((await store.snapshot("c")).cursor)
        for _ in range(300):
            await store.append("c", user("x"))
        new = str((await store.snapshot("c")).cursor)
        async with listening(make(store=store)) as port, Stream(port, C, Last_Event_ID=new) as current:
            await current.comment()
            async with Stream(port, C, Last_Event_ID=old) as late:
                kind, data = await late.event()
                assert (kind, data["reason"], data["cursor"]) == ("reset", "log_trimmed", new)
                await store.append("c", user("x", id="last"))
                assert await late.messages(1) == await current.messages(1) == ["last"]


async def test_a_too_large_change_is_a_reset(make: Any, store: Any) -> None:
    async with listening(make()) as port, Stream(port, C) as stream:
        await stream.comment()
        await store.append_many("c", [user("x" * 20_000) for _ in range(100)])
        kind, data = await stream.event()
        assert (kind, data["reason"], data["revision"]) == ("reset", "change_too_large", 1)
        await store.append("c", user("small"))
        assert (await stream.event())[0] == "appended"


async def test_silent_streams_send_heartbeats(make: Any) -> None:
    async with listening(make(limits=Limits(heartbeat=0.1))) as port, Stream(port, C) as one, Stream(port) as listed:
        for _ in range(3):
            await one.comment()
        await listed.event()
        await listed.comment()


async def test_clients_share_a_subscription_and_leave_nothing(make: Any, own_server: Any, namespace: str) -> None:
    """Browsers that vanish in the middle of a reply leave no task, thread, subscription or connection."""
    server = own_server()
    async with (
        AsyncHistoryStore(server.url, namespace=namespace) as store,
        listening(make(store=store, limits=Limits(grace=0.0))) as port,
        store.stream("c") as reply,
    ):

        def resources() -> list[int]:
            channels = [name for name in server.watcher.pubsub_channels() if b"rh2:doorbell" not in name]
            threads = [thread for thread in threading.enumerate() if "redis_history" in thread.name]
            return [len(asyncio.all_tasks()), len(threads), len(channels), len(server.watcher.client_list())]

        def subscribers() -> int:
            return sum(row["sub"] + row["psub"] != "00" for row in server.watcher.client_list())

        async def browse(count: int) -> None:
            streams = [await Stream(port, C if number % 2 else "v1/events").connect() for number in range(count)]
            await reply.write("word ")
            for stream in streams:
                await stream.event()
            await until(lambda: subscribers() == 1, subscribers)
            for stream in streams:
                stream.writer.transport.abort()

        await browse(2)  # opens the connections of the store
        await until(lambda: resources()[2] == 0, resources)
        before = resources()
        await browse(20)

        def settled() -> bool:  # one or two each, of the writer, the list and the doorbell, come and go
            return resources()[2] == 0 and all(now <= then + 2 for now, then in zip(resources(), before, strict=True))

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
        await store.update_message("new", user("[redacted]", id=(await store.get("new"))[0].id))
        assert (await stream.event())[1]["last"]["text"] == "[redacted]"
        await store.clear("new")
        assert (await stream.event())[1]["last"] is None
        await store.delete_conversation("known")
        assert await stream.event() == ("gone", {"conversation": "known"})
        for number in range(300):
            await store.append("busy", user(f"{number}"))
        updates = [(await stream.event())[1]]
        while updates[-1]["last"]["text"] != "299":
            updates.append((await stream.event())[1])
        assert len(updates) < 60, "one each quarter of a second, not one for each change"
        assert updates[-1]["revision"] == 300
        assert [one["revision"] for one in updates] == sorted(one["revision"] for one in updates)


@pytest.mark.proves("bounded-requests")
async def test_the_number_of_streams_is_limited(make: Any) -> None:
    async with listening(make(limits=Limits(streams_per_address=2))) as port:
        async with Stream(port, C) as first, Stream(port, C) as second:
            await first.comment()
            await second.comment()
            async with Stream(port, C) as third:
                assert (third.status, (await third.body())["code"]) == (429, "too_many_streams")
                assert third.headers["retry-after"] == "10"
        await _until_there_is_room(port)
    async with listening(make(limits=Limits(streams=1))) as port, Stream(port) as first:
        await first.comment()
        async with Stream(port, C) as second:
            assert second.status == 503


async def test_a_client_that_does_not_read_is_disconnected(make: Any, store: Any) -> None:
    async with listening(make(limits=Limits(streams=1, patience=0.3))) as port, Stream(port, C) as stuck:
        await stuck.comment()
        stuck.writer.transport.pause_reading()
        for _ in range(20):  # more than the socket buffers of both sides
            await store.append_many("c", [user("x" * 20_000) for _ in range(20)])
        await _until_there_is_room(port)
        stuck.writer.transport.resume_reading()
        while await stuck.event():
            pass
        assert not stuck.reader.at_eof()  # the response has its end


async def _until_there_is_room(port: int) -> None:
    async with asyncio.timeout(20):
        status = 503
        while status != 200:
            async with Stream(port, C) as other:
                status = other.status


async def test_a_closed_store_ends_the_streams(make: Any, server: RealServer, namespace: str) -> None:
    async with (
        AsyncHistoryStore(server.url, namespace=namespace) as store,
        listening(make(store=store)) as port,
        Stream(port, C) as one,
        Stream(port) as listed,
    ):
        await one.comment()
        await listed.event()
        await store.aclose()
        assert (await one.event(), await listed.event()) == (None, None)


async def test_a_reply_grows_for_each_reader_from_its_beginning(make: Any, store: Any) -> None:
    async with listening(make()) as port, Stream(port, C) as early:
        await early.comment()
        async with store.stream("c", id="r") as reply:
            kind, data = await early.event()
            assert (kind, data["messages"][0]["status"]) == ("appended", "streaming")
            cursor = early.last_id
            await reply.write("one ")
            grown = {"conversation": "c", "id": "r", "offset": 0, "delta": "one ", "whole": True}
            assert await early.event() == ("grew", grown)
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
            for after in ({}, {"after": cursor}):  # a late reader, and a page that was reloaded
                async with Stream(port, at("c", "events", **after)) as late:
                    kind, data = await late.event()
                    assert (kind, data["delta"], data["whole"]) == ("grew", "one \ntwo", True)
                    assert [part["type"] for part in data["parts"]] == ["text", "tool_use", "text"]
        ended = [await early.event()]
        async with Stream(port, at("c", "events", after=cursor)) as late:
            ended.append(await late.event())
        for kind, data in ended:
            assert (kind, data["message"]["status"], data["message"]["text"]) == ("updated", "complete", "one \ntwo")


async def test_a_run_is_gone_with_its_conversation(make: Any, store: Any) -> None:
    async with listening(make()) as port, Stream(port, C) as stream, store.run("c"):
        await stream.comment()
        await store.append("c", user("1"))
        assert {kind for kind, _ in await stream.events(2)} == {"appended", "run"}
        await store.delete_conversation("c")
        assert [kind for kind, _ in await stream.events(1)] == ["gone"]
        await store.append("c", user("2"))
        assert [kind for kind, _ in await stream.events(1)] == ["reset"]
        async with Stream(port, C) as late:
            await late.comment()
            await store.append("c", user("3"))
            assert [kind for kind, _ in await late.events(1)] == ["appended"]
