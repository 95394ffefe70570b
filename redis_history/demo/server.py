"""The server of a run: reached before anything starts, its subscriber cut, its keys removed at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from redis import Redis
from redis.exceptions import ResponseError

from redis_history import HistoryStore, RetryPolicy
from redis_history._ids import new_token
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.urls import embedded_server, parse_url
from redis_history.errors import ConfigurationError

__all__ = ["Server", "reach"]

_PATIENCE = RetryPolicy(deadline=2.0)


class Server:
    """Where a run takes place. `url` is for stores; `watcher_url` too, its connections bear a name we can find."""

    def __init__(self, url: str, plain_url: str, store: HistoryStore, client: Redis) -> None:
        self.url = url
        self.address = parse_url(url).address
        self.store = store
        self.namespace = store.namespace
        self._client: Any = client
        self._name = f"redis_history-{self.namespace}"
        self.watcher_url = f"{plain_url}{'&' if urlsplit(plain_url).query else '?'}client_name={self._name}"

    def cut_subscriber(self) -> int:
        """CLIENT KILL of the watcher's subscribed connections; how many there were. Raises RedisError if refused."""
        found = [
            client["id"]
            for client in self._client.client_list()
            if client.get("name") == self._name and (client.get("sub", "0"), client.get("psub", "0")) != ("0", "0")
        ]
        return sum(self._client.client_kill_filter(_id=number) for number in found)

    def clean(self, conversation_ids: Iterable[str]) -> None:
        """Remove every key and the search index of this run."""
        keyspace = Keyspace(self.namespace)
        for conversation_id in conversation_ids:
            self.store.delete_conversation(conversation_id)
            keys = keyspace.conversation(conversation_id)
            # Both would end by themselves: the log of a conversation that is deleted while somebody listens, and the
            # lease of a compressor that was killed.
            self._client.unlink(keys.log, keys.lease)
        self._drop_indexes(keyspace)

    def _drop_indexes(self, keyspace: Keyspace) -> None:
        """Where the server can search, there is an index for each namespace; nobody will use this one again."""
        try:
            indexes = self._client.execute_command("FT._LIST")
        except ResponseError:  # no search here
            return
        for index in indexes:
            if index.startswith(f"{keyspace.index.decode()}:"):
                self._client.execute_command("FT.DROPINDEX", index)


@contextmanager
def reach(url: str) -> Iterator[Server]:
    """A server that answers, with a namespace of its own for this run.

    Raises ConfigurationError for a URL that cannot be used, BackendError if no server answers.
    """
    target = parse_url(url)
    if target.scheme == "memory":
        raise ConfigurationError("memory:// is within one process, and the agents are several; use embedded://")
    with ExitStack() as stack:
        plain_url = url
        if target.scheme == "embedded":
            plain_url = stack.enter_context(embedded_server(target)).url
        namespace = f"demo-{new_token()}"
        with HistoryStore(url, namespace=namespace, retry=_PATIENCE) as probe:
            probe.get("-", limit=1)
        store = stack.enter_context(HistoryStore(url, namespace=namespace))
        client = Redis.from_url(plain_url, decode_responses=True)
        stack.callback(client.close)
        yield Server(url, plain_url, store, client)
