"""Every operation with large contents, which are stored apart from their messages, and what it leaves on the server."""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from redis.exceptions import MovedError

from redis_history import (
    HistoryStore,
    MessagesAppended,
    MessageUpdated,
    PartialMessage,
    Position,
    ReplyEnded,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import (
    BackendRefusedError,
    BatchTooLargeError,
    InvalidMessageError,
    MessageConflictError,
    RevisionConflictError,
)
from redis_history.store.operations import Append, DropDraft, WriteDraft, append, contents
from redis_history.store.operations.keys import Keyspace, content_name
from redis_history.store.writes import Entry
from redis_history.values import beside as beside_values
from tests.conformance.conftest import ids, take
from tests.conformance.test_stream import execute
from tests.support.faults import killed_before
from tests.support.servers import until

TEXT = "x" * 40_000
TIME = datetime(2026, 1, 1, tzinfo=UTC)
IMAGE = base64.b64encode(bytes(range(256)) * 200).decode()


def large(name: str, text: str = TEXT) -> Any:
    return user(f"{name} {text}", id=name)


def shot(name: str) -> Any:
    content = [{"type": "image", "source": {"type": "base64", "data": IMAGE}}, {"type": "text", "text": "seen"}]
    return tool(tool_result("c" + name, content), id=name)


class Beside:
    """The large contents on the server: their keys, and the milliseconds until each expires (-1: never)."""

    def __init__(self, stores: Any, server_of: Any, namespace: str) -> None:
        self.is_there = stores.backend != "memory"
        self._server = server_of(stores.kind) if self.is_there else None
        self._pattern = Keyspace(namespace).patterns[0]

    def keys(self) -> dict[bytes, int]:
        found = {}
        for client in self._clients():
            for key in client.scan_iter(match=self._pattern + b":b:*", count=1000):
                found[key] = client.pttl(key)
        return found

    def change(self, value: bytes | None) -> None:
        """Damage the only content, remove it (None), or put a list in its place (b"list")."""
        [key] = self.keys()
        if value in (None, b"list"):
            self.send([b"DEL", key])
        if value is not None:
            self.send([b"RPUSH" if value == b"list" else b"SET", key, value])

    def send(self, words: list[bytes]) -> Any:
        """The reply of the node that has the key."""
        for client in self._clients():
            with suppress(MovedError):
                return client.execute_command(*words)
        raise AssertionError

    def _clients(self) -> list[Any]:
        return [node.watcher for node in getattr(self._server, "nodes", [self._server])] if self.is_there else []

    async def are(self, lasting: int, leaving: int = 0) -> None:
        """Check how many there are that stay, and that only expire."""
        if self.is_there:
            found = await asyncio.to_thread(self.keys)
            left = {key: ttl for key, ttl in found.items() if ttl != -1}
            assert (len(found) - len(left), len(left)) == (lasting, leaving), found
            assert all(ttl <= 60_000 for ttl in left.values())


@pytest.fixture
def beside(stores: Any, server_of: Any, namespace: str) -> Beside:
    return Beside(stores, server_of, namespace)


@pytest.mark.proves("large-contents")
@pytest.mark.smoke
async def test_large_contents_are_read_back_whole(store: Any, beside: Beside) -> None:
    messages = [large("a"), shot("b"), user("small", id="s"), large("d")]
    async with store.subscribe("c") as events:
        await store.append("c", messages[0])
        await store.append_many("c", messages[1:])
        found = await store.get("c")
        assert [replace(one, sequence=None, timestamp=None) for one in found] == messages
        assert found == [one async for one in store.iter("c")] == (await store.snapshot("c")).messages
        assert await store.get_message("c", "b") == found[1]
        assert [event.messages for event in await take(events, 2)] == [(found[0],), tuple(found[1:])]
        await beside.are(3)
        assert await store.update_message("c", large("a", "y" * 50_000)) is not None
        [updated] = await take(events, 1)
        assert isinstance(updated, MessageUpdated)
        assert updated.message == (await store.get("c"))[0]
    await beside.are(3)
    hits = await store.search("c", "seen", token_cap=None)
    assert [hit.message for hit in hits] == [found[1]]
    assert await store.delete_conversation("c")
    await beside.are(0)


@pytest.mark.smoke
async def test_a_reader_may_leave_the_contents_on_the_server(store: Any) -> None:
    await store.append_many("c", [large("a"), user("small", id="s"), shot("b")])
    found = await store.get("c", contents=False)
    assert [type(one) for one in found] == [PartialMessage, type(user("x")), PartialMessage]
    assert found[0].text == "a " + "x" * 1_198
    assert found[2].tool_results[0].content[1] == {"type": "text", "text": "seen"}
    assert [one async for one in store.iter("c", contents=False)] == found
    assert ids(found) == ids(await store.get("c"))
    for call in (store.append("c", found[0]), store.update_message("c", found[0])):
        with pytest.raises(InvalidMessageError, match="without its large contents"):
            await call


@pytest.mark.proves("stored-once")
@pytest.mark.smoke
async def test_a_repeated_append_is_ignored_and_another_content_is_a_conflict(store: Any, beside: Beside) -> None:
    await store.append("c", large("a"))
    assert (await store.append("c", large("a"))).duplicate
    [one, two] = await store.append_many("c", [large("a"), large("b")])
    assert (one.duplicate, two.duplicate) == (True, False)
    with pytest.raises(MessageConflictError):
        await store.append("c", large("a", "z" * 40_000))
    assert (await store.get("c"))[0].text == f"a {TEXT}"
    await beside.are(2, leaving=1)  # of the refused call


async def test_a_refused_write_leaves_what_was_there(store: Any, beside: Beside) -> None:
    await store.append("c", large("a"))
    with pytest.raises(RevisionConflictError):
        await store.restore("c", [large("b")], expected_revision=5)
    with pytest.raises(RevisionConflictError):
        await store.update_message("c", large("a", "z" * 40_000), expected_revision=5)
    assert ids(await store.get("c")) == ["a"]
    await beside.are(1, leaving=2)


Removal = Callable[[Any], Awaitable[Any]]


async def _compact(store: Any, through: str, summary: str) -> str:
    message = user(summary, id=summary[:2], metadata={"is_summary": True})
    done = await store.compact("c", through=through, summary=message)
    return str(done.summary.id)


async def _archived(store: Any) -> None:
    await _compact(store, "b", "s1" + TEXT)
    await _compact(store, "c", "s2" + TEXT)


async def _erase_archived(store: Any) -> None:
    await _archived(store)
    await store.erase("c", ["a"])


async def _delete_archived(store: Any) -> None:
    await _archived(store)
    await store.delete_messages("c", ["a", "s1", "d"])


async def _expand(store: Any) -> None:
    await store.expand("c", await _compact(store, "b", "s1" + TEXT))


#: Calls that remove contents, and how many of the four messages have contents afterwards.
REMOVALS: dict[str, tuple[Removal, int]] = {
    "delete": (lambda store: store.delete_messages("c", ["a", "b"]), 2),
    "erase": (lambda store: store.erase("c", ["a"]), 3),
    "erase all": (lambda store: store.erase("c"), 0),
    "update to less": (lambda store: store.update_message("c", user("small", id="a")), 3),
    "update to another": (lambda store: store.update_message("c", large("a", "y" * 40_000)), 4),
    "clear": (lambda store: store.clear("c"), 0),
    "restore": (lambda store: store.restore("c", [large("a"), large("new"), user("small")]), 2),
    "restore the same": (lambda store: store.restore("c", [large(name) for name in "abcd"]), 4),
    "delete the conversation": (lambda store: store.delete_conversation("c"), 0),
    "compact": (_archived, 6),
    "erase archived": (_erase_archived, 3),
    "delete archived": (_delete_archived, 3),
    "expand": (_expand, 4),
}


@pytest.mark.proves("large-contents", "deletion")
@pytest.mark.parametrize("how", REMOVALS)
@pytest.mark.full
async def test_contents_leave_with_their_messages(how: str, store: Any, beside: Beside) -> None:
    await store.append_many("c", [large(name) for name in "abcd"])
    await store.append("other", large("a"))
    removal, left = REMOVALS[how]
    await removal(store)
    await beside.are(left + 1)
    found = await store.get("c", include_archived=True)
    assert sum(len(one.text) > 40_000 for one in found) == left
    assert not any("is missing" in one.text for one in found)
    await store.delete_conversation("c")
    await beside.are(1)
    assert (await store.get("other"))[0].text == f"a {TEXT}"


@pytest.mark.proves("large-contents", "erase")
@pytest.mark.backends("redis", "cluster")
@pytest.mark.smoke
@pytest.mark.parametrize("anew", ["S0 anew" + TEXT, "s0" + TEXT, "small"])
@pytest.mark.parametrize("archived", [False, True])
async def test_a_message_with_the_id_of_an_erased_summary_keeps_its_contents(
    anew: str, archived: bool, store: Any, stores: Any, beside: Beside
) -> None:
    await store.append_many("c", [user(name, id=name) for name in "abcdef"])
    for number, last in enumerate("bcd"):
        await _compact(store, last, f"s{number}" + TEXT)
    await store.delete_messages("c", ["s2"])  # an erasure would expand it and all others
    with killed_before(store, "scrub"):
        await store.erase("c", ["a"])
    other = stores()
    await other.append("c", user(anew, id="s0"))
    if archived:
        await other.compact("c", through="s0", summary="S")
    assert await other.erase("c", ["a"]) == 0
    assert (await other.get_message("c", "s0")).text == anew
    await beside.are(1 if len(anew) > 32_000 else 0)


@pytest.mark.proves("erase-user")
async def test_the_contents_of_a_user_are_erased(store: Any, beside: Beside) -> None:
    for name, owner in (("c", "u1"), ("d", "u1"), ("e", "u2")):
        await store.append(name, large("a"))
        await store.update_conversation(name, user_id=owner)
    assert await store.erase_user("u1") == 2
    await beside.are(1)


async def test_a_cap_removes_contents(stores: Any, beside: Beside) -> None:
    store = stores(max_messages=3)
    await store.append_many("c", [large(name) for name in "abcde"])
    await beside.are(3)
    for name in "fgh":
        await store.append("c", large(name))
    assert ids(await store.get("c")) == ["f", "g", "h"]
    await beside.are(3)
    await store.append_many("c", [user(str(number)) for number in range(3)])
    await beside.are(0)


@pytest.mark.backends("redis", "cluster")
@pytest.mark.smoke
async def test_a_much_lower_cap_removes_contents(stores: Any, beside: Beside) -> None:
    await stores().append_many("c", [*(large(str(number)) for number in range(5)), *map(user, map(str, range(150)))])
    await stores(max_messages=10).append("c", large("z"))
    await beside.are(1)


async def test_a_fork_has_contents_of_its_own(store: Any, beside: Beside) -> None:
    await store.append_many("c", [large(name) for name in "abcd"])
    await _compact(store, "b", "s1" + TEXT)
    await store.fork("c", "f")
    await store.fork("c", "g", through="a")
    await beside.are(5 + 5 + 1)
    assert (await store.get_conversation("f")).created_at > (await store.get_conversation("c")).created_at
    whole = [(one.id, one.text) for one in await store.get("c", include_archived=True)]
    await store.delete_conversation("c")
    await beside.are(6)
    assert [(one.id, one.text) for one in await store.get("f", include_archived=True)] == whole
    assert [one.text for one in await store.get("g")] == [f"a {TEXT}"]
    await store.delete_conversation("f")
    await store.delete_conversation("g")
    await beside.are(0)


@pytest.mark.proves("ttl")
@pytest.mark.full
async def test_contents_live_as_long_as_their_conversation(stores: Any, beside: Beside) -> None:
    if beside.is_there:
        await stores().append("c", large("a"))
        await beside.are(1)
    store = stores(ttl=1.0)
    await store.append("c", user("first"))
    ends = time.monotonic() + 2.0
    number = 0
    while time.monotonic() < ends:  # longer than the first content would live
        await store.append("c", user(str(number)))
        number += 1
    if beside.is_there:
        assert (await store.get("c"))[0].text == f"a {TEXT}"
    await store.append("c", large("z"))
    await until(lambda: is_empty(store), "the conversation to expire")
    if beside.is_there:
        await until(lambda: asyncio.to_thread(lambda: not beside.keys()), "its contents to expire")


async def is_empty(store: Any) -> bool:
    return await store.get("c") == []


@pytest.mark.backends("redis", "cluster")
@pytest.mark.smoke
@pytest.mark.parametrize("damage", [None, b"", b"\0something else", b"list"])
async def test_a_lost_content_is_a_note_in_its_message(
    damage: bytes | None, store: Any, beside: Beside, caplog: pytest.LogCaptureFixture
) -> None:
    await store.append_many("c", [user("before"), large("a"), user("after")])
    await asyncio.to_thread(beside.change, damage)
    found = await store.get("c")
    assert [one.text for one in found] == ["before", "[a content of 40,002 bytes is missing or damaged]", "after"]
    assert "message 'a' of conversation 'c' lacks a content" in caplog.text
    assert (await store.get_message("c", "a")) == found[1]
    await store.fork("c", "f")
    assert [one.text for one in await store.get("f")] == [one.text for one in found]
    assert (await store.snapshot("c")).messages == found
    await store.update_message("c", large("a"))
    assert (await store.get("c"))[1].text.startswith("[a content") is (damage is not None)


@pytest.mark.backends("redis", "valkey", "cluster")
@pytest.mark.smoke
async def test_contents_that_no_script_has_linked_expire(store: Any, beside: Beside, namespace: str) -> None:
    await store.append("c", large("a"))
    op = Append.of("c", large("b"))
    settings = store.backend._settings
    call = next(op.steps(settings))
    [sent] = call.contents_first
    assert await asyncio.to_thread(beside.send, sent)
    await beside.are(1, leaving=1)  # its client died before the script was sent
    assert ids(await store.get("c")) == ["a"]
    assert not (await store.append("c", large("b"))).duplicate
    await beside.are(2)
    assert not await asyncio.to_thread(beside.send, sent)  # a late copy
    await beside.are(2)
    await store.delete_messages("c", ["b"])
    await beside.are(1)
    assert await asyncio.to_thread(beside.send, sent)
    await beside.are(1, leaving=1)


@pytest.mark.backends("redis", "cluster")
@pytest.mark.smoke
async def test_a_script_without_its_contents_writes_nothing(store: Any, beside: Beside) -> None:
    await store.append("c", user("first"))
    settings = store.backend._settings
    call = next(Append.of("c", large("b")).steps(settings))
    words = call.words(with_source=True, sent=b"%d" % (time.time() * 1e6))
    assert await asyncio.to_thread(beside.send, words) in ([b"contents"], ["contents"])
    assert len(await store.get("c")) == 1
    await beside.are(0)


@pytest.mark.proves("erase-user")
@pytest.mark.backends("redis", "cluster")
@pytest.mark.smoke
async def test_the_contents_of_a_dropped_draft_are_removed(store: Any, beside: Beside) -> None:
    entries = [Entry.of(replace(large(name), sequence=at, timestamp=TIME)) for at, name in enumerate("abc", 1)]
    first, second, late = (
        WriteDraft("f", token="0" * 16, page=at, revision=1, entries=((0, entry),))
        for at, entry in enumerate(entries, 1)
    )
    assert await execute(store, first)
    replaced = content_name("a", beside_values.digest_of(f"a {TEXT}".encode()))
    gone = replace(second, removed=((0, "a", Position(*first_position(entries[0]))),), gone=(replaced,))
    assert await execute(store, gone)
    found = await asyncio.to_thread(beside.keys)
    assert [ttl > 600_000 for ttl in found.values()] == [True], "as long as a fork may take"
    await execute(store, DropDraft("f", "0" * 16, refuses=True))
    await beside.are(0)
    assert not await execute(store, late), "a page of a process that was stopped"
    await beside.are(0, leaving=1)


@pytest.mark.proves("fork")
@pytest.mark.backends("redis", "cluster")
@pytest.mark.smoke
async def test_drafts_of_one_conversation_share_no_contents(store: Any, beside: Beside) -> None:
    await store.append("c", large("a"))
    entry = Entry.of(replace(large("a"), sequence=1, timestamp=TIME))
    for name, write in (("f", store.fork("c", "f")), ("g", store.append("g", large("a")))):
        before, after = (
            WriteDraft(name, token=digit * 16, page=1, revision=1, entries=((0, entry),)) for digit in "01"
        )
        assert await execute(store, before)  # of a fork whose process was killed, or that others were faster than
        await write
        assert await execute(store, after)
        for draft in (before, after):
            await execute(store, DropDraft(name, draft.token, refuses=True))
        assert [one.text for one in await store.get(name)] == [f"a {TEXT}"]
    await beside.are(3)


def first_position(entry: Entry) -> tuple[int, int]:
    return entry.timestamp or 0, entry.message.sequence or 0


async def test_a_full_server_refuses_large_contents(own_server: Any) -> None:
    server = own_server("plain")
    with server.client() as client, HistoryStore(server.url, namespace="n") as store:
        await asyncio.to_thread(store.append, "c", large("a"))
        client.config_set("maxmemory", 1)
        before = client.dbsize()
        for write in (
            lambda: store.append("c", large("b")),
            lambda: store.update_message("c", large("a", "y" * 40_000)),
            lambda: store.restore("c", [large("b")]),
        ):
            with pytest.raises(BackendRefusedError) as caught:
                await asyncio.to_thread(write)
            assert caught.value.reason == "out_of_memory"
        assert client.dbsize() == before
        assert (await asyncio.to_thread(store.get, "c"))[0].text == f"a {TEXT}"
        assert await asyncio.to_thread(store.delete_conversation, "c")
        assert not client.keys("*:b:*")
        client.config_set("maxmemory", 0)


@pytest.mark.parametrize("reader", [False, True])
async def test_contents_are_compressed(reader: bool, stores: Any, beside: Beside) -> None:
    if not beside.is_there:
        return
    await stores(codec="zstd").append("c", large("a"))
    found = await stores(codec="zstd" if reader else None).get("c")
    assert found[0].text == f"a {TEXT}"
    assert (await stores(codec="zstd" if reader else None).append("c", large("a"))).duplicate
    await beside.are(1)


async def test_a_summarizer_needs_no_contents(store: Any) -> None:
    await store.append_many("c", [large("a"), shot("b"), user("x", id="x")])
    seen = await store.get("c", contents=False)
    done = await store.compact("c", through="b", summary="S", seen=seen[:2])
    assert done.count == 2


async def test_a_reply_may_end_large(store: Any, beside: Beside) -> None:
    async with store.subscribe("c") as events:
        async with store.stream("c", id="r") as reply:
            for _ in range(10):
                await reply.write("y" * 5_000)
        assert (await store.get("c"))[0].text == "y" * 50_000
        event = None
        while not isinstance(event, ReplyEnded):
            [event] = await take(events, 1)
    assert event.message is not None
    assert event.message.text == "y" * 50_000
    await beside.are(1)


async def test_a_large_call_waits_for_approval_and_is_decided(store: Any, beside: Beside) -> None:
    await store.append("c", assistant(tool_use("c1", "pay", {"why": TEXT}, needs_approval=True), TEXT + "y", id="m"))
    await beside.are(2)
    [asked] = await store.list_approvals()
    assert (asked.call_id, asked.input) == ("c1", {"why": TEXT})
    decided = await store.decide("c", "c1", True)
    assert (decided.input, decided.approved) == ({"why": TEXT}, True)
    [message] = await store.get("c")
    assert (message.text, message.parts[0].input) == (TEXT + "y", {"why": TEXT})
    assert await store.list_approvals() == []
    assert (await store.decide("c", "c1", True)).duplicate, "also found among the newest messages"
    await beside.are(2)


async def test_a_batch_holds_more_bytes_with_large_contents(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [large(str(number), "z" * 1_000_000) for number in range(5)]
    await store.append_many("c", many)
    assert [one.text for one in await store.get("c")] == [one.text for one in many]
    monkeypatch.setattr(append, "MAX_BATCH_CONTENTS", 4_500_000)
    with pytest.raises(BatchTooLargeError):
        await store.append_many("d", many)
    assert [len(batch) for batch in append.batches(many)] == [4, 1]


async def test_subscribers_read_many_large_messages(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a read of changes holds."""
    monkeypatch.setattr(contents, "PORTION_BYTES", 100_000)
    monkeypatch.setattr(contents, "_CHANGES_BYTES", 100_000)
    async with store.subscribe("c") as events:
        for number in range(6):
            await store.append("c", large(str(number)))
        found = await take(events, 6)
    assert [ids(event.messages) for event in found if isinstance(event, MessagesAppended)] == [
        [one] for one in "012345"
    ]
    assert ids([one async for one in store.iter("c")]) == [*"012345"]


async def test_pairs_with_large_results_stay_whole(stores: Any, beside: Beside) -> None:
    store = stores(max_messages=2)
    await store.append_many("c", [assistant(tool_use("ca", "look", {"rows": list(range(30_000))}), id="u"), shot("a")])
    assert ids(await store.get("c")) == ["u", "a"]
    await store.append("c", user("next", id="n"))
    assert ids(await store.get("c")) == ["n"]
    await beside.are(0)


async def test_a_message_of_64_mb(store: Any, beside: Beside, full: bool) -> None:
    text = "m" * (63_999_900 if full else 9_000_000)  # is read in several pieces
    op = Append.of("c", user(text, id="m"))
    await execute(store, op)
    assert (await store.get_message("c", "m")).text == text
    await store.delete_conversation("c")
    await beside.are(0)
