"""Redis does what the memory backend does: random operations by two clients, some of whose replies are lost."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from redis_history import (
    Conversation,
    HistoryStore,
    Message,
    MessageUpdated,
    PartialMessage,
    Position,
    RetryPolicy,
    RunChanged,
    Turn,
    TurnChanged,
    Usage,
    assistant,
    system,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import RedisHistoryError
from redis_history.store.memory.backend import MemoryBackend
from redis_history.store.operations import ChangeTurns, Claim, EndRun, ReadTurns, TakeRun, TurnEnd
from redis_history.store.operations.compact import Compacted
from redis_history.store.operations.keys import Keyspace, content_name
from redis_history.values import beside
from redis_history.values.events import Event, MessagesAppended
from redis_history.values.ids import new_token
from tests.support.faults import FlakyStore
from tests.support.servers import RealServer, wait_until

CONVERSATIONS = st.sampled_from(["a", "b{}:*"])
LARGE = "a large text"  # here, and so stored apart from its message
OWNERS: st.SearchStrategy[int | str] = st.sampled_from(["u", 1, "1", 0])
AGENTS = st.sampled_from([None, "a"])
IDS = st.sampled_from([f"m{number}" for number in range(8)])
SUMMARY_IDS = st.sampled_from(["s0", "s1", "s2", "s3"])
ANY_IDS = st.one_of(IDS, SUMMARY_IDS)
# Far from now on both sides, so that the two clocks cannot disagree about the order.
TIMES = st.sampled_from([None, "1999-01-01", "1999-01-01", "2200-01-01"])
PARTS = st.lists(
    st.sampled_from(
        [
            "x",
            "y",
            LARGE,
            f"y {LARGE}",
            tool_use("1", "f"),
            tool_use("2", "f"),
            tool_result("1", "r"),
            tool_result("2", "r"),
        ]
    ),
    min_size=1,
    max_size=3,
)
ROLES = st.sampled_from([user, user, assistant, assistant, system])
USAGES = st.sampled_from([None, None, Usage(1), Usage(200, 30, cost=0.5)])
MESSAGES = st.builds(
    lambda role, id, parts, time, usage: role(parts, id=id, timestamp=time, usage=usage),
    *(ROLES, IDS, PARTS, TIMES, USAGES),
)
SUMMARIES = st.builds(
    lambda id, text, usage: user(text, id=id, metadata={"is_summary": True}, usage=usage),
    *(SUMMARY_IDS, st.sampled_from(["x", "y", LARGE]), USAGES),
)
# Inside the messages of one time, where places are found by halving.
POSITIONS = [Position(915_148_800_000_000, sequence) for sequence in (1, 2, 3, 5, 8)]
QUERIES = st.sampled_from(["x", "y", "large", "x y", '"x"', "r f", "nothing", "f*", "fo*"])
FILTERS = st.sampled_from(
    [
        {},
        {"roles": ["user"]},
        {"roles": ["tool"]},
        {"before": "2000-01-01"},
        {"tool_names": ["f"]},
        {"archived": True},
        {"archived": False},
    ]
)
REVISIONS = st.one_of(st.none(), st.integers(0, 12))


def without_times(outcome: Any) -> Any:
    """An outcome without the times of the two clocks."""
    if isinstance(outcome, RedisHistoryError):
        return type(outcome), re.sub(r"\d{16}", "now", str(outcome))
    if isinstance(outcome, Message):
        stamped = outcome.timestamp is not None and 2000 < outcome.timestamp.year < 2200
        return replace(outcome, timestamp=None) if stamped else outcome
    if isinstance(outcome, Conversation):
        dates = ("created_at", "updated_at", "first_message_at", "last_message_at")
        return replace(outcome, **dict.fromkeys(dates))
    if isinstance(outcome, list):
        return [without_times(item) for item in outcome]
    if isinstance(outcome, Compacted):
        return outcome.revision, without_times(outcome.summary), outcome.count, outcome.changed
    if hasattr(outcome, "message"):
        return outcome.revision, without_times(outcome.message), outcome.duplicate
    return outcome


def without_event_times(event: Event) -> Any:
    if isinstance(event, MessagesAppended):
        return event.revision, without_times(list(event.messages))
    if isinstance(event, MessageUpdated):
        return event.revision, without_times(event.message)
    names = ("message_ids", "reason", "fields", "removed_ids", "summary", "summary_id", "count")
    rest = {name: without_times(getattr(event, name, None)) for name in names}
    return type(event), event.revision, rest, without_times(list(getattr(event, "messages", ())))


def _change(subscription: Any, timeout: float) -> Event | None:
    """The next change of the history: runs and turns have a state, of which any may be left out."""
    while isinstance(event := subscription.get(timeout=timeout), RunChanged | TurnChanged):
        pass
    return event  # type: ignore[no-any-return]


def _shape(turn: Turn) -> Any:
    return turn.agent_name, turn.status, turn.attempt, turn.error, turn.message_ids


def by_either(**arguments: st.SearchStrategy[Any]) -> Any:
    """A rule for either client and any conversation."""
    return rule(client=st.integers(0, 1), conversation=CONVERSATIONS, **arguments)


class RedisLikeMemory(RuleBasedStateMachine):
    server: RealServer
    cap: int | None = None

    @initialize()
    def begin(self) -> None:
        with self.server.client() as client:
            client.flushall()
        cap = self.cap
        self.model = HistoryStore(backend=MemoryBackend(max_messages=cap, max_conversations=None))
        retry = RetryPolicy(deadline=10, first_wait=0.001, longest_wait=0.002)
        self.clients = [
            FlakyStore(HistoryStore(self.server.url, retry=retry, max_messages=cap), seed) for seed in (1, 2)
        ]
        self.model_changes = {name: self.model.subscribe(name) for name in ("a", "b{}:*")}
        self.changes = {name: self.clients[0].subscribe(name) for name in ("a", "b{}:*")}
        for name, subscription in self.changes.items():
            # The server must have the subscription: deletions are sent to subscribers only.
            self._listening(name)
            assert subscription.get(timeout=0) is None

    def _listening(self, name: str) -> None:
        channel = b"__keyspace@0__:" + Keyspace("default").conversation(name).log
        with self.server.client() as client:
            wait_until(lambda: client.pubsub_numsub(channel)[0][1] > 0, "the subscription")

    def both(self, client: int, name: str, *args: Any, **options: Any) -> None:
        self.compare(self.clients[client], name, *args, **options)

    def compare(self, other: Any, name: str, *args: Any, **options: Any) -> None:
        outcomes = []
        for store in (self.model, other):
            try:
                outcomes.append(without_times(getattr(store, name)(*args, **options)))
            except RedisHistoryError as error:
                outcomes.append(without_times(error))
        if name == "append_many" and isinstance(outcomes[1], list):
            # The cap may remove a message in a change whose reply is lost: its place is then unknown.
            outcomes = [
                [item for item, real in zip(outcome, outcomes[1], strict=True) if real[1].sequence is not None]
                for outcome in outcomes
            ]
        assert outcomes[0] == outcomes[1]

    @by_either(message=MESSAGES, revision=REVISIONS)
    def append(self, client: int, conversation: str, message: Message, revision: int | None) -> None:
        self.both(client, "append", conversation, message, expected_revision=revision)

    @by_either(
        messages=st.lists(MESSAGES, max_size=6),
        exist=st.sampled_from([{}, {}, {"must_exist": True}, {"must_not_exist": True}]),
    )
    def append_many(self, client: int, conversation: str, messages: list[Message], exist: dict[str, bool]) -> None:
        self.both(client, "append_many", conversation, messages, **exist)

    @by_either(ids=st.lists(ANY_IDS, max_size=4), revision=REVISIONS)
    def delete(self, client: int, conversation: str, ids: list[str], revision: int | None) -> None:
        self.both(client, "delete_messages", conversation, ids, expected_revision=revision)

    @by_either(message=MESSAGES | SUMMARIES, revision=REVISIONS)
    def update_message(self, client: int, conversation: str, message: Message, revision: int | None) -> None:
        self.both(client, "update_message", conversation, message, expected_revision=revision)

    @by_either(through=ANY_IDS | st.sampled_from(POSITIONS), summary=SUMMARIES, revision=REVISIONS)
    def compact(self, client: int, conversation: str, through: Any, summary: Message, revision: int | None) -> None:
        self.both(client, "compact", conversation, through=through, summary=summary, expected_revision=revision)

    @by_either(data=st.data(), summary=SUMMARIES)
    def compact_what_was_seen(self, client: int, conversation: str, data: Any, summary: Message) -> None:
        live = self.model.get(conversation)
        if not live:
            return
        seen = live[: data.draw(st.integers(1, len(live)), "messages")]
        missing = data.draw(st.sampled_from([None, None, None, *seen]), "missing")
        left = [message for message in seen if message is not missing]
        self.both(client, "compact", conversation, through=seen[-1].id, summary=summary, seen=left)

    @by_either(data=st.data(), often=st.integers(1, 3))
    def talk_and_compact(self, client: int, conversation: str, data: Any, often: int) -> None:
        """Rolling on, as a compressor does."""
        for name in ["s0", "s1", "s2", "s3"][:often]:
            ids = data.draw(st.lists(IDS, max_size=3, unique=True), "ids")
            self.both(client, "append_many", conversation, [user("x", id=id) for id in ids])
            live = self.model.get(conversation)
            if live:
                through = live[data.draw(st.integers(0, len(live) - 1), "through")].id
                one = user("x y", id=name, metadata={"is_summary": True})
                self.both(client, "compact", conversation, through=through, summary=one)

    @by_either(id=SUMMARY_IDS, revision=REVISIONS)
    def expand(self, client: int, conversation: str, id: str, revision: int | None) -> None:
        self.both(client, "expand", conversation, id, expected_revision=revision)

    @by_either()
    def expand_the_summary(self, client: int, conversation: str) -> None:
        for message in self.model.get(conversation):
            if message.is_summary:
                self.both(client, "expand", conversation, message.id)

    @by_either(revision=REVISIONS)
    def clear(self, client: int, conversation: str, revision: int | None) -> None:
        self.both(client, "clear", conversation, expected_revision=revision)

    @by_either(messages=st.lists(MESSAGES, max_size=6), revision=REVISIONS)
    def restore(self, client: int, conversation: str, messages: list[Message], revision: int | None) -> None:
        self.both(client, "restore", conversation, messages, expected_revision=revision)

    @by_either(title=st.sampled_from([None, "t"]), owner=OWNERS)
    def create_conversation(self, client: int, conversation: str, title: str | None, owner: int | str) -> None:
        self.both(client, "create_conversation", Conversation(conversation, user_id=owner, title=title))

    @rule(owner=OWNERS)
    def list_of_an_owner(self, owner: int | str) -> None:
        found = [
            {(one.conversation_id, type(one.user_id), one.user_id) for one in store.list_conversations(user_id=owner)}
            for store in (self.model, self.clients[0])
        ]
        assert found[0] == found[1]
        totals = [store.usage_by("agent", user_id=owner) for store in (self.model, self.clients[0])]
        assert totals[0] == totals[1]

    @by_either(title=st.sampled_from(["a", "b"]), revision=REVISIONS)
    def update_conversation(self, client: int, conversation: str, title: str, revision: int | None) -> None:
        self.both(client, "update_conversation", conversation, title=title, expected_revision=revision)

    @by_either(key=st.sampled_from(["a", "b"]), value=st.sampled_from([None, 1, {"deep": [1.5, None]}]))
    def merge_metadata(self, client: int, conversation: str, key: str, value: Any) -> None:
        self.both(client, "merge_metadata", conversation, {key: value})

    @by_either(owner=OWNERS | st.none())
    def change_owner(self, client: int, conversation: str, owner: int | str | None) -> None:
        self.both(client, "update_conversation", conversation, user_id=owner, agent_name=owner and str(owner))

    @by_either(message=MESSAGES, agent=AGENTS)
    def ask(self, client: int, conversation: str, message: Message, agent: str | None) -> None:
        self.both(client, "ask", conversation, message, agent_name=agent)

    @by_either(action=st.sampled_from(["retry", "wait", "drop"]), agent=AGENTS, every=st.booleans())
    def change_turns(self, client: int, conversation: str, action: Any, agent: str | None, every: bool) -> None:
        op = ChangeTurns(conversation, action, agent, every)
        assert self.clients[client].backend.execute(op) == self.model.backend.execute(op)

    @by_either(
        agent=AGENTS,
        how=st.sampled_from(["done", "done", "wait", "back", "ValueError"]),
        taken=st.lists(IDS, max_size=2),
    )
    def answer(self, client: int, conversation: str, agent: str | None, how: str, taken: list[str]) -> None:
        """Take a turn and end it, as a worker does."""
        op = TakeRun(conversation, ((new_token(), agent),), False, claim=Claim(agent, 2, 0, 0))
        real, model = (store.backend.execute(op) for store in (self.clients[client], self.model))
        assert (real.turn is None) is (model.turn is None)
        if real.turn is None:
            return
        assert _shape(real.turn.turn) == _shape(model.turn.turn)
        status = {"back": "interrupted", "ValueError": "failed"}.get(how, "completed")
        for store, outcome in ((self.clients[client], real), (self.model, model)):
            end = EndRun(conversation, outcome.fence, status, turn=TurnEnd(how, tuple(taken)))
            assert store.backend.execute(end).done

    @rule(conversation=CONVERSATIONS)
    def delete_conversation(self, conversation: str) -> None:
        # The outcome is exact only without lost replies, as documented.
        with self.clients[0].reliable():
            self.both(0, "delete_conversation", conversation)

    @by_either(id=ANY_IDS)
    def get_message(self, client: int, conversation: str, id: str) -> None:
        self.both(client, "get_message", conversation, id)

    @by_either(
        limit=st.one_of(st.none(), st.integers(0, 5)),
        since=st.sampled_from([None, "1999-01-02", *POSITIONS]),
        before=st.sampled_from([None, "2100-01-01", *POSITIONS]),
        archived=st.booleans(),
    )
    def get(self, client: int, conversation: str, limit: int | None, since: Any, before: Any, archived: bool) -> None:
        self.both(client, "get", conversation, limit=limit, since=since, before=before, include_archived=archived)

    @rule(conversation=CONVERSATIONS, batch=st.integers(1, 3), archived=st.booleans())
    def iterate(self, conversation: str, batch: int, archived: bool) -> None:
        found = list(self.clients[0].iter(conversation, batch=batch, include_archived=archived))
        assert without_times(found) == without_times(self.model.get(conversation, include_archived=archived))

    @rule(conversation=CONVERSATIONS)
    def follow(self, conversation: str) -> None:
        """All changes so far, in order, are the same on both sides."""
        ours, models = self.changes[conversation], self.model_changes[conversation]
        while (expected := _change(models, 0)) is not None:
            event = _change(ours, 10)
            assert event is not None
            assert without_event_times(event) == without_event_times(expected)
        assert _change(ours, 0) is None

    @by_either(query=QUERIES, filters=FILTERS)
    def search(self, client: int, conversation: str, query: str, filters: dict[str, Any]) -> None:
        """The same messages are found; their scores, and so their order, are not compared."""
        found = [
            {hit.message.id for hit in store.search(conversation, query, limit=100, token_cap=None, **filters)}
            for store in (self.model, self.clients[client])
        ]
        assert found[0] == found[1]
        every = self.clients[client].search_all(query, limit=100, token_cap=None, **filters)
        assert {hit.message.id for hit in every if hit.conversation_id == conversation} == found[0]

    @rule(conversation=CONVERSATIONS, message=MESSAGES)
    def append_without_search(self, conversation: str, message: Message) -> None:
        """By a process without an index: the next search adds the missing documents."""
        with HistoryStore(self.server.url, max_messages=self.cap, search="off") as store:
            self.compare(store, "append", conversation, message)
        self.clients[0].search(conversation, "x")

    @invariant()
    def documents_are_those_of_messages(self) -> None:
        if not hasattr(self, "clients"):
            return
        keyspace = Keyspace("default")
        with self.server.client() as client:
            documents = [keyspace.document_of(key) for key in client.scan_iter(match=keyspace.patterns[1])]
            assert client.keys("rh2:{default:*}:g*") == []
            indexed = client.execute_command("FT.SEARCH", keyspace.index, "*", "LIMIT", "0", "0")
        messages = []
        for name in ("a", "b{}:*"):
            live = [one.id for one in self.clients[0].snapshot(name).messages]
            for one in self.clients[0].get(name, include_archived=True):
                if not one.id.startswith("s"):
                    messages.append((name, one.sequence))
                elif one.id in live:  # former summaries are not indexed
                    messages.append((name, -(one.sequence or 0)))
        assert sorted((one[0][0], one[1]) for one in documents if one) == sorted(messages)
        assert (indexed[b"total_results"] if isinstance(indexed, dict) else indexed[0]) == len(messages)

    @invariant()
    def large_contents_are_those_of_messages(self) -> None:
        if not hasattr(self, "clients"):
            return
        wanted: set[bytes] = set()
        for name in ("a", "b{}:*"):
            keys = Keyspace("default").conversation(name)
            for one in self.clients[0].get(name, include_archived=True, contents=False):
                if isinstance(one, PartialMessage):
                    names = (content_name(one.id, each.digest) for each in beside.references_in(one.stored))
                    wanted |= {keys.content(each) for each in names}
        with self.server.client() as client:
            found = {key: client.pttl(key) for key in client.scan_iter(match="rh2:{default:*}:*:b:*")}
        assert {key for key, ttl in found.items() if ttl == -1} == wanted
        assert all(ttl <= 60_000 for ttl in found.values())

    @invariant()
    def everything_is_equal(self) -> None:
        if not hasattr(self, "clients"):
            return
        for name in ("a", "b{}:*"):
            model, real = self.model.snapshot(name), self.clients[0].snapshot(name)
            assert without_times(real.messages) == without_times(model.messages)
            assert real.message_count == model.message_count == len(model.messages)
            assert real.cursor.revision == model.cursor.revision
            turns = [store.backend.execute(ReadTurns(name)) for store in (self.clients[0], self.model)]
            assert [*map(_shape, turns[0])] == [*map(_shape, turns[1])]
            everything = [
                without_times(store.get(name, include_archived=True)) for store in (self.clients[0], self.model)
            ]
            assert everything[0] == everything[1]
            assert sum(message.id.startswith("s") for message in real.messages) <= 1
            assert without_times(self.clients[0].get_conversation(name)) == without_times(
                self.model.get_conversation(name)
            )
        assert self.clients[0].usage() == self.model.usage()
        listed = [one.conversation_id for one in self.clients[0].list_conversations()]
        assert sorted(listed) == sorted(one.conversation_id for one in self.model.list_conversations())

    def teardown(self) -> None:
        if hasattr(self, "clients"):
            for subscription in self.changes.values():
                subscription.close()
            for store in self.clients:
                store.close()


class CappedRedisLikeMemory(RedisLikeMemory):
    cap = 4


@pytest.mark.proves("faults", "index")
@pytest.mark.parametrize("machine", [RedisLikeMemory, CappedRedisLikeMemory])
def test_redis_does_what_memory_does(
    own_server: Any, full: bool, machine: type[RedisLikeMemory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "LARGE_BYTES", 10)
    monkeypatch.setattr(beside, "BEGINNING_BYTES", 2)
    machine.server = own_server()
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=40 if full else 5,
            stateful_step_count=50,
            deadline=None,
            # Shrinking a failure takes minutes: done when asked for the long run.
            phases=list(Phase) if full else [phase for phase in Phase if phase is not Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
