"""Sends the bytes of calls as often and as late as a test wants."""

from collections.abc import Callable
from typing import Any

from msgspec import structs
from redis.cluster import RedisCluster

from redis_history import HistoryStore
from redis_history.store import operations
from tests.support.steps import first_call, outcome

SECOND = 1_000_000


def append_of(*messages: Any, **options: Any) -> operations.Append:
    return operations.Append.batch("c", messages, operations.Precondition.of(**options)).op


def update_of(message: Any) -> operations.UpdateMessage:
    return operations.UpdateMessage("c", append_of(message).entries[0])


def restore_of(*messages: Any) -> operations.Restore:
    return operations.Restore("c", append_of(*messages).entries)


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

    def merge(self, op: operations.MergeMetadata, seen: bytes | None, *, sent: int) -> Callable[[], Any]:
        """A copy of the writing call of a merge that has read the metadata `seen`. Returns the decoded reply."""
        call = first_call(op, self._backend._settings, seen)
        sent_at = b"%d" % sent
        return lambda: op.decode(
            self._owner().execute_command(*call.words(with_source=True, sent=sent_at), NEVER_DECODE=True)
        )

    def copy(self, op: Any, *, sent: int | None = None, repeated: bool = False) -> Callable[[], Any]:
        """A copy of a call on its way. Calling it delivers it, and returns the outcome."""
        sent_at = b"%s%d" % (b"-" if repeated else b"", self.now() if sent is None else sent)
        settings = self._backend._settings
        call = first_call(op, settings)

        def reply_to(call: Any) -> Any:
            words = call.words(with_source=True, sent=sent_at)
            return self._owner().execute_command(*words, NEVER_DECODE=True)

        def deliver() -> Any:
            reply = reply_to(call)
            if type(reply) is list and reply[0] == b"keys":  # in a cluster; not executed, so the copy goes on with them
                reply = reply_to(structs.replace(call, keys=(*call.keys, *reply[1:])))
            return reply if type(reply) is list and reply[0] == b"late" else outcome(op, settings, reply)

        return deliver

    def texts(self) -> list[str]:
        return [message.text for message in self.store.get("c")]

    def close(self) -> None:
        self.client.close()
