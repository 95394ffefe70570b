"""Copies of one call reach the server several times and late. Each write takes effect at most once, and no
acknowledged write is undone.

The bytes of a call are kept and sent again over a connection of the test, as a network does that delivers late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from redis.cluster import RedisCluster
from redis.exceptions import ConnectionError

from redis_history import AsyncHistoryStore, Conversation, HistoryStore, RetryPolicy, user
from redis_history.engine.attempts import Attempt
from redis_history.engine.memory import MemoryBackend
from redis_history.errors import (
    BackendUnavailableError,
    ConversationExistsError,
    MessageConflictError,
    OutcomeUnknownError,
    RevisionConflictError,
)
from redis_history.events import MessagesAppended, Reset
from redis_history.operations import (
    Append,
    Clear,
    DeleteConversation,
    DeleteMessages,
    EraseMessages,
    Precondition,
    Restore,
    UpdateMessage,
    WriteRecord,
)
from redis_history.operations.keys import extend_keys
from tests.conftest import Servers
from tests.support.faults import lose_replies
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer, Start, wait_until
from tests.support.steps import first_call, outcome

SECOND = 1_000_000


def _append(*messages: Any, **options: Any) -> Append:
    options = {"expected_revision": None, "must_exist": False, "must_not_exist": False} | options
    return Append.batch("c", messages, **options).op


def _update(message: Any) -> UpdateMessage:
    return UpdateMessage("c", _append(message).entries[0])


def _restore(*messages: Any) -> Restore:
    return Restore("c", _append(*messages).entries)


class Wire:
    """Sends the bytes of operations as often and as late as a test wants."""

    def __init__(self, store: HistoryStore, server: Any) -> None:
        self.store = store
        self._backend: Any = store._backend
        self.client = server.client()
        store.get("other")  # the store knows its server

    def _owner(self) -> Any:
        """A client of the node that has the conversation."""
        if isinstance(self.client, RedisCluster):
            key = self.keys.state.decode()
            return self.client.get_redis_connection(self.client.get_node_from_key(key))
        return self.client

    @property
    def keys(self) -> Any:
        return self._backend._settings.keyspace.conversation("c")

    def now(self) -> int:
        seconds, microseconds = self._owner().time()
        return int(seconds) * SECOND + int(microseconds)

    def copy(self, op: Any, *, sent: int | None = None, repeated: bool = False) -> Callable[[], Any]:
        """A copy of a call on its way. Calling it delivers it, and returns the outcome."""
        attempt = Attempt()
        attempt.sent = self.now() if sent is None else sent
        attempt.uncertain = repeated
        settings = self._backend._settings
        call = first_call(op, settings)

        def reply_to(call: Any) -> Any:
            words = call.words(with_source=True, sent=attempt.argument)
            return self._owner().execute_command(*words, NEVER_DECODE=True)

        def deliver() -> Any:
            reply = reply_to(call)
            if type(reply) is list and reply[0] == b"keys":  # in a cluster; not executed, so the copy goes on with them
                reply = reply_to(structs.replace(call, keys=extend_keys(call.keys, reply[1:])))
            return reply if type(reply) is list and reply[0] == b"late" else outcome(op, settings, reply)

        return deliver

    def texts(self) -> list[str]:
        return [message.text for message in self.store.get("c")]

    def close(self) -> None:
        self.client.close()


@pytest.fixture(
    params=[
        "redis",
        "cluster",
        pytest.param("plain", marks=pytest.mark.full),
        pytest.param("valkey", marks=pytest.mark.full),
    ]
)
def wire(request: pytest.FixtureRequest, server_of: Servers, namespace: str) -> Iterator[Wire]:
    server = server_of(request.param)
    with HistoryStore(server.url, namespace=namespace) as store:
        wire = Wire(store, server)
        yield wire
        wire.close()


#: A destructive call on a conversation of "a" and "b", and its expected outcome.
DESTRUCTIVE = {
    "update": (lambda: _update(user("edited", id="a")), lambda outcome: outcome.message.text == "edited"),
    "delete": (lambda: DeleteMessages("c", ("a",)), lambda outcome: outcome == 1),
    "erase": (lambda: EraseMessages("c", ("a",)), lambda outcome: outcome == 1),
    "delete an unknown message": (lambda: DeleteMessages("c", ("z",)), lambda outcome: outcome == 0),
    "update an unknown message": (lambda: _update(user("z", id="z")), lambda outcome: outcome is None),
    "clear": (lambda: Clear("c"), lambda outcome: outcome == 3),
    "restore": (lambda: _restore(user("r", id="r")), lambda outcome: outcome == 3),
    "restore nothing": (lambda: _restore(), lambda outcome: outcome == 3),
    "write a record": (lambda: WriteRecord("c", {"title": "old"}), lambda outcome: outcome == 3),
    "delete a conversation": (lambda: DeleteConversation("c"), lambda outcome: outcome is True),
}


@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_a_late_first_copy_of_a_destructive_call_changes_nothing(wire: Wire, name: str) -> None:
    make, expected = DESTRUCTIVE[name]
    wire.store.append_many("c", [user("a", id="a"), user("b", id="b")])
    wire.store.update_conversation("c", title="first")
    op, sent = make(), wire.now()
    late, retry = wire.copy(op, sent=sent), wire.copy(op, sent=sent, repeated=True)
    first = retry()
    assert expected(first)
    wire.store.append_many("c", [user("newer", id="n"), user("z", id="z")])
    if wire.store.get_message("c", "a") is None:
        wire.store.append("c", user("again", id="a"))
    else:
        wire.store.update_message("c", user("again", id="a"))
    wire.store.update_conversation("c", title="newest")
    before = (wire.store.get("c"), wire.store.get_conversation("c"))
    assert late() == first, "a copy has the outcome of the first"
    assert retry() == first
    assert (wire.store.get("c"), wire.store.get_conversation("c")) == before


@pytest.mark.proves("at-most-once")
@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_a_destructive_call_that_is_refused_stays_refused(wire: Wire, name: str) -> None:
    op = DESTRUCTIVE[name][0]()
    op = type(op)(**{field: getattr(op, field) for field in op.__struct_fields__} | {"precondition": Precondition(2)})
    late = wire.copy(op)
    wire.store.append("c", user("a", id="a"))
    with pytest.raises(RevisionConflictError):
        wire.copy(op)()
    wire.store.append("c", user("b", id="b"))  # now the conversation is at the revision that was expected
    before = wire.store.get("c")
    with pytest.raises(RevisionConflictError):
        late()
    assert wire.store.get("c") == before


#: Changes after the append of a message "m" was acknowledged, and the texts that are left.
AFTERWARDS = {
    "deleted": (lambda store: store.delete_messages("c", ["m"]), ["0"]),
    "cleared": (lambda store: store.clear("c"), []),
    "replaced": (lambda store: store.restore("c", [user("r", id="r")]), ["r"]),
    "edited": (lambda store: store.update_message("c", user("edited", id="m")), ["0", "edited"]),
    "edited, and edited back": (
        lambda store: [store.update_message("c", user(text, id="m")) for text in ("edited", "m")],
        ["0", "m"],
    ),
    "edited and deleted": (
        lambda store: (store.update_message("c", user("edited", id="m")), store.delete_messages("c", ["m"])),
        ["0"],
    ),
    "deleted and stored with other content": (
        lambda store: (store.delete_messages("c", ["m"]), store.append("c", user("other", id="m"))),
        ["0", "other"],
    ),
    "deleted with its conversation": (lambda store: store.delete_conversation("c"), []),
    "deleted with its conversation, which was created again": (
        lambda store: (store.delete_conversation("c"), store.append("c", user("new", id="new"))),
        ["new"],
    ),
    "cleared many times": (
        lambda store: [(store.append("c", user(str(i))), store.clear("c")) for i in range(10)],
        [],
    ),
}


@pytest.mark.parametrize("name", AFTERWARDS)
def test_a_late_append_does_not_restore_removed_messages(wire: Wire, name: str) -> None:
    then, left = AFTERWARDS[name]
    wire.store.append("c", user("0", id="0"))
    op, sent = _append(user("m", id="m")), wire.now()
    first = wire.copy(op, sent=sent)()
    then(wire.store)
    assert wire.texts() == left
    assert wire.copy(op, sent=sent)() == first
    assert wire.copy(op, sent=sent, repeated=True)() == first
    assert wire.texts() == left


def test_a_late_append_does_not_restore_what_left_after_many_others(wire: Wire) -> None:
    """The newest entries of a long journal are kept like the others, or such a copy cannot be decided."""
    for turn in range(2):
        wire.store.append_many("c", [user("x", id=f"{turn} {number}") for number in range(1000)])
        wire.store.clear("c")
    op, sent = _append(user("m", id="m")), wire.now()
    first = wire.copy(op, sent=sent)()
    wire.store.delete_messages("c", ["m"])
    wire.store.append("c", user("0", id="0"))
    wire.store.clear("c")
    with suppress(OutcomeUnknownError):
        assert wire.copy(op, sent=sent)() == first
    assert wire.texts() == []


def test_a_late_append_does_not_restore_what_a_cap_removed(server_of: Servers, namespace: str) -> None:
    server = server_of("plain")
    with HistoryStore(server.url, namespace=namespace, max_messages=3) as store:
        wire = Wire(store, server)
        op, sent = _append(user("m", id="m")), wire.now()
        [first] = wire.copy(op, sent=sent)()
        for number in range(5):
            store.append("c", user(str(number)))
        [again] = wire.copy(op, sent=sent)()
        assert (again.revision, again.duplicate, again.message) == (first.revision, False, first.message)
        assert wire.texts() == ["2", "3", "4"]
        wire.close()


def test_a_refused_append_stays_refused(wire: Wire) -> None:
    wire.store.append("c", user("other", id="m"))
    op, sent = _append(user("m", id="m")), wire.now()
    with pytest.raises(MessageConflictError):
        wire.copy(op, sent=sent)()
    fresh, at = _append(user("f", id="f"), must_not_exist=True), wire.now()
    with pytest.raises(ConversationExistsError):
        wire.copy(fresh, sent=at)()
    wire.store.delete_messages("c", ["m"])
    with pytest.raises(MessageConflictError):
        wire.copy(op, sent=sent)()
    wire.store.delete_conversation("c")
    with pytest.raises(ConversationExistsError):
        wire.copy(fresh, sent=at)()
    assert wire.texts() == []


def test_the_same_message_of_another_call_is_stored_again(wire: Wire) -> None:
    """Even if the client's estimate of the server's time is behind."""
    wire.store.append("c", user("m", id="m"))
    sent = wire.now()
    wire.store.delete_messages("c", ["m"])
    [stored] = wire.copy(_append(user("m", id="m")), sent=sent)()
    assert not stored.duplicate
    assert wire.texts() == ["m"]


@pytest.mark.proves("unknown-outcome")
@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_a_call_older_than_the_journal_is_refused(wire: Wire, name: str) -> None:
    wire.store.append_many("c", [user("a", id="a"), user("b", id="b")])
    before = wire.store.get("c"), wire.store.get_conversation("c")
    reply = wire.copy(DESTRUCTIVE[name][0](), sent=wire.now() - 121 * SECOND)()
    assert reply[0] == b"late"
    assert (wire.store.get("c"), wire.store.get_conversation("c")) == before
    reply = wire.copy(DESTRUCTIVE[name][0](), sent=wire.now() + 10 * SECOND)()
    assert reply[0] == b"late", "in the future: the clock was set back"
    assert (wire.store.get("c"), wire.store.get_conversation("c")) == before


def test_an_old_append_is_refused_only_after_a_removal(wire: Wire) -> None:
    wire.store.append("c", user("0", id="0"))
    old = wire.now() - 121 * SECOND
    assert not wire.copy(_append(user("1", id="1")), sent=old)()[0].duplicate
    wire.store.delete_messages("c", ["0"])
    assert wire.copy(_append(user("2", id="2")), sent=old)()[0] == b"late"
    wire.store.delete_conversation("c")
    assert wire.copy(_append(user("3", id="3")), sent=old)()[0] == b"late"
    assert wire.texts() == []


def test_a_late_append_to_an_expired_conversation_is_refused(server_of: Servers, namespace: str) -> None:
    server = server_of("plain")
    with HistoryStore(server.url, namespace=namespace, ttl=1.0) as store:
        wire = Wire(store, server)
        op, sent = _append(user("m", id="m")), wire.now()
        wire.copy(op, sent=sent)()
        wait_until(lambda: store.get_conversation("c") is None, "the conversation to expire")
        assert wire.copy(op, sent=sent)()[0] == b"late"
        wire.close()


def _set_ahead(wire: Wire) -> None:
    """As if the last changes had been made ten minutes later."""
    ahead = 600 * SECOND
    state = wire.client.hgetall(wire.keys.state)
    written, forgotten, first, following, oldest = (
        int.from_bytes(state[b"g"][at : at + size], "big") for at, size in ((0, 7), (7, 7), (14, 4), (18, 4), (22, 7))
    )
    journal = [(written + ahead).to_bytes(7, "big"), forgotten.to_bytes(7, "big"), first.to_bytes(4, "big")]
    journal += [following.to_bytes(4, "big"), (oldest + ahead).to_bytes(7, "big")]
    changed = {b"g": b"".join(journal), b"u": int(state[b"u"]) + ahead}
    for name, entry in state.items():
        if name.startswith(b"j"):
            changed[name] = (int.from_bytes(entry[:7], "big") + ahead).to_bytes(7, "big") + entry[7:]
    wire.client.hset(wire.keys.state, mapping=changed)


@pytest.mark.parametrize("then", ["nothing", "listing", "another message"])
def test_a_late_append_is_refused_after_the_conversation_expired_by_the_ttl_of_another_store(
    server_of: Servers, namespace: str, then: str
) -> None:
    server = server_of("plain")
    with (
        HistoryStore(server.url, namespace=namespace) as store,
        HistoryStore(server.url, namespace=namespace, ttl=1.0) as brief,
    ):
        wire = Wire(store, server)
        op, sent = _append(user("m", id="m")), wire.now()
        wire.copy(op, sent=sent)()
        brief.append("c", user("bye"))
        wait_until(lambda: store.get_conversation("c") is None, "the conversation to expire")
        if then == "listing":
            assert store.list_conversations() == []
        if then == "another message":
            store.append("c", user("later"))
        assert wire.copy(op, sent=sent)()[0] == b"late"
        assert wire.texts() == ["later"] * (then == "another message")
        store.append("c", user("new"))
        wire.close()


@pytest.mark.proves("at-most-once")
def test_calls_work_and_are_not_repeated_after_the_clock_was_set_back(wire: Wire) -> None:
    """As after a failover to a server whose clock is ten minutes behind: the journal is ten minutes ahead."""
    wire.store.append_many("c", [user("a", id="a"), user("b", id="b")])
    op, sent = DeleteMessages("c", ("a",)), wire.now()
    wire.copy(op, sent=sent)()
    _set_ahead(wire)
    wire.store.append("c", user("again", id="a"))
    assert wire.copy(op, sent=sent)() == 1, "recognized by its token"
    assert wire.texts() == ["b", "again"]
    assert wire.store.delete_messages("c", ["a"]) == 1
    assert wire.store.clear("c") > 0
    assert wire.store.delete_conversation("c")


@pytest.mark.proves("at-most-once")
def test_a_conversation_is_writable_after_a_clock_that_was_ahead_was_set_right(wire: Wire) -> None:
    """The clock was ten minutes ahead."""
    wire.store.append_many("c", [user(name, id=name) for name in "abc"])
    wire.store.update_message("c", user("edited", id="a"))
    _set_ahead(wire)
    op, sent = DeleteMessages("c", ("b",)), wire.now()
    assert wire.copy(op, sent=sent, repeated=True)()[0] == b"late", "it may have been executed"
    wire.store.append("c", user("d", id="d"))
    wire.store.update_message("c", user("edited again", id="a"))
    assert wire.store.delete_messages("c", ["b"]) == 1
    wire.store.update_conversation("c", title="t")
    assert wire.texts() == ["edited again", "c", "d"]
    assert wire.store.clear("c") > 0
    assert wire.store.delete_conversation("c")


def test_a_late_batch_with_a_full_journal_stores_nothing(wire: Wire) -> None:
    """The journal is full: the server no longer knows four messages of the batch."""
    for _ in range(17):
        wire.store.restore("c", [user("0", id="0")])
    op, sent = _append(*(user(str(n), id=f"b{n}") for n in range(5))), wire.now()
    first = wire.copy(op, sent=sent)()
    wire.store.update_message("c", user("edited", id="b4"))
    wire.store.delete_conversation("c")
    again = wire.copy(op, sent=sent)()
    assert again == first or again[0] == b"late"
    assert wire.texts() == []


def test_the_journal_expires_and_has_no_content(wire: Wire) -> None:
    wire.store.create_conversation(Conversation("c", title="a secret title", user_id="a secret user"))
    wire.store.append("c", user("a secret text", id="m"))
    wire.store.update_message("c", user("a secret edit", id="m"))
    wire.store.clear("c")
    wire.store.delete_conversation("c")
    left = [
        key for pattern in wire._backend._settings.keyspace.patterns for key in wire.client.scan_iter(match=pattern)
    ]
    assert left
    for key in left:
        assert 0 < wire.client.pttl(key) <= 120_000
        assert b"secret" not in wire.client.dump(key)


@pytest.mark.proves("unknown-outcome")
def test_a_late_retry_raises_outcome_unknown(
    server: RealServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HistoryStore(server.url, namespace=namespace) as store:
        store.append("c", user("a", id="a"))
        backend: Any = store._backend
        node = backend._server.node
        monkeypatch.setattr(node, "time", lambda: int(time.time() * SECOND) - 200 * SECOND)
        store.delete_messages("c", ["z"])  # its only copy was refused as late, and is sent with a later time
        execute = node.execute

        def lost(words: Any) -> None:
            node.execute = execute
            raise ConnectionError("nobody knows how much of it was sent")

        node.execute = lost
        with pytest.raises(OutcomeUnknownError):
            store.delete_messages("c", ["a"])
        assert [message.id for message in store.get("c")] == ["a"]


def test_a_write_that_was_never_sent_raises_backend_unavailable(own_server: Start) -> None:
    server = own_server(tcp=True)
    with HistoryStore(server.url, search="off", retry=RetryPolicy(deadline=0.3)) as store:
        server.kill()
        with pytest.raises(BackendUnavailableError) as caught:
            store.clear("c")
        assert not isinstance(caught.value, OutcomeUnknownError)


def test_a_log_ahead_of_its_conversation_gives_a_reset(wire: Wire) -> None:
    """For example when one key of a conversation was restored from a backup, or half of a change was lost."""
    store, client = wire.store, wire.client
    store.append("c", user("0", id="0"))
    old = client.dump(wire.keys.state)
    store.append("c", user("1", id="1"))
    cursor = store.snapshot("c").cursor
    client.restore(wire.keys.state, 0, old, replace=True)
    store.append("c", user("2", id="2"))
    with store.subscribe("c", after=cursor) as changes:
        event = changes.get(timeout=20)
        assert isinstance(event, Reset)
        assert event.reason == "server_rewound"
        store.append("c", user("3", id="3"))
        event = changes.get(timeout=20)
        assert isinstance(event, MessagesAppended)
        assert [message.text for message in event.messages] == ["3"]
    assert store.delete_conversation("c"), "and it can be deleted"


OPERATIONS = st.one_of(
    st.builds(lambda n, text: _append(user(text, id=f"m{n}")), st.integers(0, 3), st.sampled_from("xy")),
    st.builds(lambda text: _append(user(text, id="m0"), user(text, id="m4")), st.sampled_from("xy")),
    st.builds(lambda n, text: _update(user(text, id=f"m{n}")), st.integers(0, 3), st.sampled_from("xyz")),
    st.builds(lambda n: DeleteMessages("c", (f"m{n}", "m0")), st.integers(1, 3)),
    st.builds(lambda: Clear("c")),
    st.builds(lambda n: _restore(user("r", id=f"m{n}")), st.integers(0, 3)),
    st.builds(lambda title: WriteRecord("c", {"title": title}), st.sampled_from("tu")),
    st.builds(lambda: DeleteConversation("c")),
)


@pytest.mark.proves("at-most-once")
@given(st.data())
def test_copies_in_any_order_change_nothing(server_of: Servers, namespace: str, data: st.DataObject) -> None:
    """Calls are sent one by one; copies of them arrive later, and change nothing."""
    server = server_of("plain")
    server_of.clear(namespace)
    with HistoryStore(server.url, namespace=namespace) as store, HistoryStore("memory://") as model:
        wire = Wire(store, server)
        sent: list[tuple[Any, int, Any]] = []
        for _ in range(data.draw(st.integers(2, 9))):
            if sent and data.draw(st.booleans()):
                op, at, first = data.draw(st.sampled_from(sent))
                assert _outcome(wire.copy(op, sent=at, repeated=data.draw(st.booleans()))) == first
            else:
                op, at = data.draw(OPERATIONS), wire.now()
                first = _outcome(wire.copy(op, sent=at))
                expected = _outcome(lambda op=op: model._backend.execute(op))
                assert type(first) is type(expected)
                sent.append((op, at, first))
            assert [(one.id, one.text) for one in store.get("c")] == [(one.id, one.text) for one in model.get("c")]
            ours, theirs = store.get_conversation("c"), model.get_conversation("c")
            assert (ours is None) == (theirs is None)
            if ours is not None and theirs is not None:
                assert (ours.title, ours.revision) == (theirs.title, theirs.revision)
        wire.close()


def _outcome(run: Callable[[], Any]) -> Any:
    """The outcome of a call, or the name of its error."""
    try:
        return run()
    except (MessageConflictError, RevisionConflictError) as error:
        return type(error).__name__


def test_memory_recognizes_a_repeated_operation() -> None:
    backend = MemoryBackend()
    backend.execute(_append(user("a", id="a")))
    delete = DeleteMessages("c", ("a",))
    assert backend.execute(delete) == 1
    backend.execute(_append(user("again", id="a")))
    assert backend.execute(delete) == 1
    append = _append(user("b", id="b"))
    [first] = backend.execute(append)
    backend.execute(Clear("c"))
    assert backend.execute(append) == [first]
    with HistoryStore(backend=backend) as store:
        assert store.get("c") == []


def test_a_repeated_operation_is_recognized_after_its_message_was_deleted(server: RealServer, namespace: str) -> None:
    """As a history does after a failed save. The message was stored, and another store has deleted it since."""
    with (
        HistoryStore(server.url, namespace=namespace, retry=RetryPolicy(deadline=0)) as store,
        HistoryStore(server.url, namespace=namespace) as other,
    ):
        store.append("c", user("0", id="0"))
        backend: Any = store._backend
        op = _append(user("m", id="m"))
        away = [True]
        lose_replies(store, lambda: bool(away))
        with pytest.raises(OutcomeUnknownError):
            backend.execute(op)
        away.clear()
        assert other.delete_messages("c", ["m"]) == 1
        [stored] = backend.execute(op)
        assert not stored.duplicate
        assert [message.id for message in other.get("c")] == ["0"]


@pytest.mark.proves("stored-once")
def test_one_reply_in_five_is_lost_and_each_message_is_stored_once(own_server: Start, full: bool) -> None:
    count = 1000 if full else 300
    server = own_server(tcp=True)
    proxy = LossyProxy(server.port, loss=0.2)
    patient = RetryPolicy(deadline=30.0, first_wait=0.001, longest_wait=0.01)
    with HistoryStore(f"redis://127.0.0.1:{proxy.port}/0", retry=patient) as store:
        appended = [store.append("c", user(str(number))) for number in range(count)]
    proxy.close()
    assert proxy.dropped > count / 6
    assert not any(item.duplicate for item in appended), "an earlier try of the same call is not a duplicate"
    with HistoryStore(server.url) as store:
        stored = store.get("c")
        assert stored == [item.message for item in appended]
        assert [message.sequence for message in stored] == list(range(1, count + 1))
        assert [message.text for message in stored] == [str(number) for number in range(count)]
        assert store.snapshot("c").cursor.revision == count


@pytest.mark.proves("threads")
async def test_a_cancelled_append_leaves_the_connection_in_order(server: RealServer, namespace: str) -> None:
    """The reply of a cancelled call must not be taken for that of the next one."""
    async with AsyncHistoryStore(server.url, namespace=namespace) as store:
        await store.append("c", user("0"))
        for number in range(200):
            task = asyncio.create_task(store.append("c", user(f"cancelled {number}", id=f"m{number}")))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            kept = await store.append("c", user(f"cancelled {number}", id=f"m{number}"))
            assert kept.message.id == f"m{number}"
        assert [message.id for message in (await store.get("c"))[1:]] == [f"m{number}" for number in range(200)]
