"""Copies of one call reach the server several times and late. Each write takes effect at most once, and no
acknowledged write is undone.

The bytes of a call are kept and sent again over a connection of the test, as a network does that delivers late.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from redis_history import Conversation, HistoryStore, errors, user
from redis_history.store import operations
from redis_history.store.memory.backend import MemoryBackend
from redis_history.values.events import MessagesAppended, Reset
from redis_history.values.ids import new_token
from tests.conftest import Servers
from tests.support.servers import wait_until
from tests.support.wire import SECOND, Wire, append_of, restore_of, update_of


@pytest.fixture(
    params=["redis", *(pytest.param(one, marks=pytest.mark.full) for one in ("cluster", "plain", "valkey"))]
)
def wire(request: pytest.FixtureRequest, server_of: Servers, namespace: str) -> Iterator[Wire]:
    server = server_of(request.param)
    with HistoryStore(server.url, namespace=namespace) as store:
        wire = Wire(store, server)
        yield wire
        wire.close()


#: Destructive calls on a conversation of "a" and "b".
DESTRUCTIVE: dict[str, Callable[[], Any]] = {
    "update": lambda: update_of(user("edited", id="a")),
    "delete": lambda: operations.DeleteMessages("c", ("a",)),
    "erase": lambda: operations.EraseMessages("c", ("a",)),
    "delete an unknown message": lambda: operations.DeleteMessages("c", ("z",)),
    "update an unknown message": lambda: update_of(user("z", id="z")),
    "clear": lambda: operations.Clear("c"),
    "restore": lambda: restore_of(user("r", id="r")),
    "restore nothing": lambda: restore_of(),
    "write a record": lambda: operations.WriteRecord("c", {"title": "old"}),
    "delete a conversation": lambda: operations.DeleteConversation("c"),
}


@pytest.mark.proves("at-most-once")
@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_a_destructive_call_that_is_refused_stays_refused(wire: Wire, name: str) -> None:
    op = DESTRUCTIVE[name]()
    op = type(op)(
        **{field: getattr(op, field) for field in op.__struct_fields__} | {"precondition": operations.Precondition(2)}
    )
    late = wire.copy(op)
    wire.store.append("c", user("a", id="a"))
    with pytest.raises(errors.RevisionConflictError):
        wire.copy(op)()
    wire.store.append("c", user("b", id="b"))  # now the conversation is at the revision that was expected
    before = wire.store.get("c")
    with pytest.raises(errors.RevisionConflictError):
        late()
    assert wire.store.get("c") == before


@pytest.mark.proves("at-most-once", "turns")
def test_late_copies_of_calls_about_turns_change_nothing(wire: Wire) -> None:
    def turns() -> list[tuple[str, tuple[str, ...]]]:
        found = wire.store.backend.execute(operations.ReadTurns("c"))
        return [(turn.status, turn.message_ids) for turn in found]

    def answer(how: str) -> None:
        claim = operations.Claim(None, 1, 0, 0)
        take = operations.TakeRun("c", ((new_token(), None),), False, claim=claim)
        late_takes.append(wire.copy(take))
        run = wire.store.backend.execute(take)
        end = operations.EndRun("c", run.fence, "completed", turn=operations.TurnEnd(how))
        late_ends.append(wire.copy(end))
        assert wire.store.backend.execute(end).done

    late_takes: list[Any] = []
    late_ends: list[Any] = []
    question = replace(append_of(user("x", id="q")), asking=operations.Asking(None, 0))
    late_ask = wire.copy(question)
    wire.store.append("c", user("0", id="0"))
    wire.copy(question)()
    assert turns() == [("owed", ("q",))]
    answer("done")
    late_ask()
    assert turns() == []
    drop, retry = operations.ChangeTurns("c", "drop"), operations.ChangeTurns("c", "retry")
    wire.store.ask("c", user("y", id="r"))
    late_drop = wire.copy(drop)
    assert wire.copy(drop)() == 1
    wire.store.ask("c", user("z", id="s"))
    assert late_drop() == 1  # the outcome of the first copy
    assert turns() == [("owed", ("s",))]
    answer("ValueError")
    assert turns() == [("parked", ("s",))]
    late_retry = wire.copy(retry)
    assert wire.copy(retry)() == 1
    answer("ValueError")
    assert late_retry() == 1
    assert turns() == [("parked", ("s",))]
    opening = operations.ChangeTurns("c", "open", "b", False, 0, ("q",))
    late_opening = wire.copy(opening)
    assert wire.copy(opening)() == 1
    wire.copy(operations.ChangeTurns("c", "drop", "b", False))()
    assert late_opening() == 1
    assert turns() == [("parked", ("s",))]
    for late in (*late_takes, *late_ends):
        late()
    assert turns() == [("parked", ("s",))]
    assert not wire.store.get_run("c").is_active  # type: ignore[union-attr]


def test_a_late_append_does_not_restore_what_left_after_many_others(wire: Wire) -> None:
    """The newest entries of a long journal are kept like the others, or such a copy cannot be decided."""
    for turn in range(2):
        wire.store.append_many("c", [user("x", id=f"{turn} {number}") for number in range(1000)])
        wire.store.clear("c")
    op, sent = append_of(user("m", id="m")), wire.now()
    first = wire.copy(op, sent=sent)()
    wire.store.delete_messages("c", ["m"])
    wire.store.append("c", user("0", id="0"))
    wire.store.clear("c")
    with suppress(errors.OutcomeUnknownError):
        assert wire.copy(op, sent=sent)() == first
    assert wire.texts() == []


def test_a_late_append_does_not_restore_what_a_cap_removed(server_of: Servers, namespace: str) -> None:
    server = server_of("plain")
    with HistoryStore(server.url, namespace=namespace, max_messages=3) as store:
        wire = Wire(store, server)
        op, sent = append_of(user("m", id="m")), wire.now()
        [first] = wire.copy(op, sent=sent)()
        for number in range(5):
            store.append("c", user(str(number)))
        [again] = wire.copy(op, sent=sent)()
        assert (again.revision, again.duplicate, again.message) == (first.revision, False, first.message)
        assert wire.texts() == ["2", "3", "4"]
        wire.close()


def test_a_refused_append_stays_refused(wire: Wire) -> None:
    wire.store.append("c", user("other", id="m"))
    op, sent = append_of(user("m", id="m")), wire.now()
    with pytest.raises(errors.MessageConflictError):
        wire.copy(op, sent=sent)()
    fresh, at = append_of(user("f", id="f"), must_not_exist=True), wire.now()
    with pytest.raises(errors.ConversationExistsError):
        wire.copy(fresh, sent=at)()
    wire.store.delete_messages("c", ["m"])
    with pytest.raises(errors.MessageConflictError):
        wire.copy(op, sent=sent)()
    wire.store.delete_conversation("c")
    with pytest.raises(errors.ConversationExistsError):
        wire.copy(fresh, sent=at)()
    assert wire.texts() == []


def test_the_same_message_of_another_call_is_stored_again(wire: Wire) -> None:
    """Even if the client's estimate of the server's time is behind."""
    wire.store.append("c", user("m", id="m"))
    sent = wire.now()
    wire.store.delete_messages("c", ["m"])
    [stored] = wire.copy(append_of(user("m", id="m")), sent=sent)()
    assert not stored.duplicate
    assert wire.texts() == ["m"]


@pytest.mark.proves("at-most-once")
def test_copies_of_a_merge_change_nothing(wire: Wire) -> None:
    """Also when the metadata have the value again that a copy was computed from."""
    wire.store.create_conversation(Conversation("c", metadata={"a": 1}))
    old = wire.client.hget(wire.keys.state, "M")
    made = operations.MergeMetadata.of("c", {"b": 2})
    made_copy = wire.merge(made, old, sent=wire.now())
    refused_copy = wire.merge(operations.MergeMetadata.of("c", {"c": 3}), old, sent=wire.now())
    assert made_copy() == 2
    assert refused_copy() == b"changed"
    wire.store.update_conversation("c", metadata={"a": 1})
    before = wire.store.get_conversation("c")
    assert wire.client.hget(wire.keys.state, "M") == old
    assert made_copy() == 2, "recognized by its token"
    assert refused_copy() == b"changed", "still refused"
    assert wire.store.get_conversation("c") == before
    wire.store.delete_conversation("c")
    wire.store.create_conversation(Conversation("c", metadata={"a": 1}))
    assert made_copy() == 2
    assert refused_copy() == b"changed"
    assert [one.conversation.metadata for one in wire.store.list_conversations(preview=True)] == [{"a": 1}]


@pytest.mark.proves("unknown-outcome")
@pytest.mark.parametrize("name", DESTRUCTIVE)
def test_a_call_older_than_the_journal_is_refused(wire: Wire, name: str) -> None:
    wire.store.append_many("c", [user("a", id="a"), user("b", id="b")])
    before = wire.store.get("c"), wire.store.get_conversation("c")
    reply = wire.copy(DESTRUCTIVE[name](), sent=wire.now() - 121 * SECOND)()
    assert reply[0] == b"late"
    assert (wire.store.get("c"), wire.store.get_conversation("c")) == before
    reply = wire.copy(DESTRUCTIVE[name](), sent=wire.now() + 10 * SECOND)()
    assert reply[0] == b"late", "in the future: the clock was set back"
    assert (wire.store.get("c"), wire.store.get_conversation("c")) == before


def test_an_old_append_is_refused_only_after_a_removal(wire: Wire) -> None:
    wire.store.append("c", user("0", id="0"))
    old = wire.now() - 121 * SECOND
    assert not wire.copy(append_of(user("1", id="1")), sent=old)()[0].duplicate
    wire.store.delete_messages("c", ["0"])
    assert wire.copy(append_of(user("2", id="2")), sent=old)()[0] == b"late"
    wire.store.delete_conversation("c")
    assert wire.copy(append_of(user("3", id="3")), sent=old)()[0] == b"late"
    assert wire.texts() == []


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
@pytest.mark.full
def test_a_late_append_is_refused_after_the_conversation_expired_by_the_ttl_of_another_store(
    server_of: Servers, namespace: str, then: str
) -> None:
    server = server_of("plain")
    with (
        HistoryStore(server.url, namespace=namespace) as store,
        HistoryStore(server.url, namespace=namespace, ttl=1.0) as brief,
    ):
        wire = Wire(store, server)
        op, sent = append_of(user("m", id="m")), wire.now()
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
    op, sent = operations.DeleteMessages("c", ("a",)), wire.now()
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
    op, sent = operations.DeleteMessages("c", ("b",)), wire.now()
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
    op, sent = append_of(*(user(str(n), id=f"b{n}") for n in range(5))), wire.now()
    first = wire.copy(op, sent=sent)()
    wire.store.update_message("c", user("edited", id="b4"))
    wire.store.delete_conversation("c")
    again = wire.copy(op, sent=sent)()
    assert again == first or again[0] == b"late"
    assert wire.texts() == []


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
    st.builds(lambda n, text: append_of(user(text, id=f"m{n}")), st.integers(0, 3), st.sampled_from("xy")),
    st.builds(lambda text: append_of(user(text, id="m0"), user(text, id="m4")), st.sampled_from("xy")),
    st.builds(lambda n, text: update_of(user(text, id=f"m{n}")), st.integers(0, 3), st.sampled_from("xyz")),
    st.builds(lambda n: operations.DeleteMessages("c", (f"m{n}", "m0")), st.integers(1, 3)),
    st.builds(lambda n: operations.EraseMessages("c", (f"m{n}",)), st.integers(0, 3)),
    st.builds(lambda: operations.Clear("c")),
    st.builds(lambda n: restore_of(user("r", id=f"m{n}")), st.integers(0, 3)),
    st.builds(lambda title: operations.WriteRecord("c", {"title": title}), st.sampled_from("tu")),
    st.builds(lambda: operations.DeleteConversation("c")),
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
    except (errors.MessageConflictError, errors.RevisionConflictError) as error:
        return type(error).__name__


def test_memory_recognizes_a_repeated_operation() -> None:
    backend = MemoryBackend()
    backend.execute(append_of(user("a", id="a")))
    delete = operations.DeleteMessages("c", ("a",))
    assert backend.execute(delete) == 1
    backend.execute(append_of(user("again", id="a")))
    assert backend.execute(delete) == 1
    append = append_of(user("b", id="b"))
    [first] = backend.execute(append)
    backend.execute(operations.Clear("c"))
    assert backend.execute(append) == [first]
    with HistoryStore(backend=backend) as store:
        assert store.get("c") == []
