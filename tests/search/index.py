"""An index on a real server, filled by hand: what the store does, without it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote

from redis_history import Message
from redis_history._time import to_microseconds
from redis_history.requests import ANYTHING, Filters
from redis_history.requests.store_options import VectorField
from redis_history.search.query import Query, parse_query
from redis_history.search.ranking import Ranked, rank
from redis_history.search.redisearch import (
    ARCHIVED,
    CONVERSATION,
    NAMESPACE,
    TIME,
    VECTOR,
    Found,
    Namespace,
    count_command,
    create_arguments,
    document,
    nearest_command,
    read_found,
    read_matches,
    search_commands,
    tag,
)


class Index:
    """Documents have the keys `rhd2:{name}:conversation:sequence`; conversations come back as their ids."""

    def __init__(self, client: Any, *, language: str = "english", vector: VectorField | None = None) -> None:
        self.name = uuid.uuid4().hex[:12].encode()
        self.language = language
        self._client = client
        self._prefix = b"rhd2:{%b}:" % self.name
        self.send([create_arguments(self.name, [self._prefix], language=language, vector=vector)])

    def send(self, commands: Iterable[Sequence[bytes]]) -> list[Any]:
        """The raw replies, an error as a value."""
        pipe = self._client.pipeline(transaction=False)
        for command in commands:
            pipe.execute_command(*command, NEVER_DECODE=True)
        return list(pipe.execute(raise_on_error=False)) if len(pipe) else []

    def add(
        self,
        conversation_id: str,
        messages: Iterable[Message],
        *,
        archived: bool = False,
        vectors: Sequence[bytes] | None = None,
    ) -> None:
        """Write messages that have a sequence."""
        commands = []
        for at, message in enumerate(messages):
            command = [b"HSET", self._key(conversation_id, message.sequence or 0), *document(message)]
            time = 0 if message.timestamp is None else to_microseconds(message.timestamp)
            command += [CONVERSATION, tag(conversation_id), TIME, b"%d" % time]
            command += [ARCHIVED, b"1"] if archived else []
            command += [VECTOR, vectors[at]] if vectors is not None else []
            commands.append(command)
        for reply in self.send(commands):
            assert isinstance(reply, int), reply

    def remove(self, conversation_id: str, sequence: int) -> None:
        self.send([[b"UNLINK", self._key(conversation_id, sequence)]])

    def search(
        self, scope: Sequence[str] | Namespace, query: str | Query, filters: Filters = ANYTHING, **options: Any
    ) -> list[Ranked]:
        """All that is found, best first. Fails for an error of the server."""
        parsed = parse_query(query, self.language) if isinstance(query, str) else query
        replies = self.send(search_commands(self.name, scope, parsed, filters, language=self.language, **options))
        for reply in replies:
            assert not isinstance(reply, Exception), (query, reply)
        matches, together = read_matches(replies, parsed, self.place)
        return rank(parsed, matches, together=together)

    def sequences(self, scope: Sequence[str] | Namespace, query: str, filters: Filters = ANYTHING) -> list[int]:
        return [found.sequence for found in self.search(scope, query, filters)]

    def nearest(self, scope: Sequence[str] | Namespace, vector: bytes, filters: Filters = ANYTHING) -> list[Any]:
        (reply,) = self.send([nearest_command(self.name, scope, vector, filters)])
        assert not isinstance(reply, Exception), reply
        return [self.place(key) for key, _ in read_found(reply).documents]

    def count(self, scope: Sequence[str] | Namespace = NAMESPACE, filters: Filters = ANYTHING) -> int:
        (reply,) = self.send([count_command(self.name, scope, filters)])
        found: Found = read_found(reply)
        return found.total

    def place(self, key: bytes) -> tuple[str, int]:
        """Fails for a document of anybody else."""
        assert key.startswith(self._prefix), key
        name, _, sequence = key[len(self._prefix) :].rpartition(b":")
        return unquote(name.decode(), errors="surrogatepass"), int(sequence)

    def _key(self, conversation_id: str, sequence: int) -> bytes:
        name = quote(conversation_id.encode("utf-8", "surrogatepass"), safe="")
        return b"%b%b:%d" % (self._prefix, name.encode(), sequence)

    def drop(self) -> None:
        self._client.execute_command("FT.DROPINDEX", self.name, "DD")
