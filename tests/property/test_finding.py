"""A poll of the registries finds every conversation that has changed, whatever happened since the last poll.

Without the sweep over known conversations, which would hide gaps of the rest.
"""

import uuid
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redis_history import Cursor, HistoryStore, user
from redis_history.store.operations import ReadHead, poll
from redis_history.store.operations.backend import ChangeQuery
from redis_history.store.operations.keys import Keyspace
from redis_history.values.events import BEGINNING
from tests.support.servers import RealServer

#: Two buckets: 0 to 2 share one, 3 to 5 another.
NAMES: list[str] = []
for bucket in (0, 1):
    NAMES += [f"c{number}" for number in range(2000) if Keyspace.bucket_of(f"c{number}") == bucket][:3]

_ops = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["append", "append", "ahead", "delete", "read"]), st.sampled_from(NAMES)),
        st.tuples(st.sampled_from(["look", "look", "save", "rewind", "flush"]), st.just("")),
    ),
    max_size=40,
)
_A, _B = NAMES[:2]
_START = [("append", _A), ("append", _B), ("look", "")]
_CLOCK_SET_BACK = [*_START, ("ahead", _A), ("look", ""), ("append", _B)]
#: The last changed conversation has a higher score again, so only its Reset makes the store check the other.
_WRITTEN_ONCE_MORE = [("save", ""), ("append", _B), ("append", _A), ("look", "")]
_REWOUND_AND_WRITTEN_AGAIN = [*_START, *_WRITTEN_ONCE_MORE, ("rewind", ""), ("append", _A)]


class _Model:
    def __init__(self, server: RealServer) -> None:
        self.namespace = f"finding-{uuid.uuid4().hex[:8]}"
        self.store = HistoryStore(server.url, namespace=self.namespace)
        self.backend: Any = self.store._backend
        self.client = server.client()
        self.keys = Keyspace(self.namespace)
        self.known: dict[str, Cursor] = {}
        self.news: set[str] = set()
        self.doubted: set[str] = set()
        self.position: Any = None
        self.saved: dict[bytes, bytes] = {}

    def heads(self) -> dict[str, Cursor]:
        heads = {name: self.backend.execute(ReadHead(name)).cursor for name in NAMES}
        return {name: head for name, head in heads.items() if head.epoch != BEGINNING.epoch}

    def append(self, name: str) -> None:
        self.store.append(name, user("x"))

    def ahead(self, name: str) -> None:
        """A change while the clock was an hour ahead."""
        self.store.append(name, user("x"))
        keys = self.keys.conversation(name)
        self.client.zincrby(keys.registry, 3_600_000_000, keys.name)

    def delete(self, name: str) -> None:
        self.store.delete_conversation(name)

    def read(self, name: str) -> None:
        """The doorbell rang for this conversation before any poll."""
        self.learn(name, self.heads().get(name, BEGINNING))

    def save(self, _: str) -> None:
        self.saved = {key: self.client.dump(key) for key in self.stored()}

    def rewind(self, _: str) -> None:
        self.flush("")
        for key, value in self.saved.items():
            self.client.restore(key, 0, value)

    def flush(self, _: str) -> None:
        if found := self.stored():
            self.client.unlink(*found)

    def stored(self) -> list[bytes]:
        return [key for pattern in self.keys.patterns for key in self.client.scan_iter(match=pattern)]

    def look(self, _: str) -> None:
        """Every difference is found, at the latest by the poll after a Reset."""
        for _attempt in range(2):
            found = self.backend.poll_changes(ChangeQuery(self.known, self.position, self.news, self.doubted))
            self.position, self.news, self.doubted = found.position, set(), set()
            for name, head in found.heads.items():
                self.learn(name, head)
            if not self.doubted:
                break
        assert self.known == self.heads()

    def learn(self, name: str, head: Cursor) -> None:
        """As a subscriber does: it doubts a conversation whose changes have a gap."""
        before = self.known.get(name)
        if before is not None and (head.epoch != before.epoch or head.revision < before.revision or self._lost(name)):
            self.doubted.add(name)
        if head.revision == 0:
            self.known.pop(name, None)
        else:
            self.known[name] = head
        self.news.add(name)

    def _lost(self, name: str) -> bool:
        """Whether the last known change is gone from the log, or has been replaced."""
        known = self.known[name]
        keys = self.keys.conversation(name)
        behind = int(self.client.hget(keys.state, "r") or 0) - known.revision
        entry = self.client.lindex(keys.log, -1 - behind) if behind >= 0 else None
        return entry is None or entry[:10].hex() != known.token


@pytest.mark.proves("notifications")
@pytest.mark.parametrize("page", [2, 1000], ids=["short pages", "long pages"])
@given(ops=_ops)
@example(ops=_CLOCK_SET_BACK)
@example(ops=_REWOUND_AND_WRITTEN_AGAIN)
def test_every_change_is_found(server: RealServer, page: int, ops: list[tuple[str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(poll, "_SWEEP", 0)
        patch.setattr(poll, "_MEMBERS", page)
        model = _Model(server)
        try:
            for what, name in ops:
                getattr(model, what)(name)
            model.look("")
        finally:
            model.flush("")
            model.store.close()
            model.client.close()
