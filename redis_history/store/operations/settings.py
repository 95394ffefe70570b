"""The settings that all calls of a store to a Redis server share, and the facts learned about the server."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from redis_history.store.leases import Contact
from redis_history.store.operations.keys import Keyspace, is_list, is_of_turns, is_reply_or_archive, without_digest
from redis_history.store.search.redisearch import create_arguments

if TYPE_CHECKING:
    from redis_history.store.durability import Confirmation


@dataclass(frozen=True, slots=True)
class Searching:
    """The form of a search index. `vectors`: their dimension. `required`: fail without search on the server."""

    language: str = "english"
    vectors: int | None = None
    required: bool = False

    def index(self, keyspace: Keyspace) -> tuple[bytes, list[bytes]]:
        """The end of the name of an index of this form, behind its alias, and the command that creates the index,
        without the name."""
        command = create_arguments(b"", [keyspace.documents], language=self.language, vectors=self.vectors)
        form = hashlib.sha256(b"\0".join(command)).hexdigest()[:8].encode()
        return b":%d:%b" % (DOCUMENT_VERSION, form), command


#: Raised when the fields of documents change: the index then has another name, and documents are written again.
DOCUMENT_VERSION: Final = 1


class SearchIndex:
    """A backend's index. `form`: the wanted form; `names`: the aliases that it may have, one for each bucket if each
    node of a cluster has its own index, else one."""

    def __init__(self, form: Searching, keyspace: Keyspace, *, cluster: bool) -> None:
        self.form = form
        self._whole = keyspace.index
        self.names = keyspace.index_names(cluster=cluster)
        self.ending, self.create = form.index(keyspace)
        #: The names of the buckets by node, as far as is known, and for each name the alias of the index on its node.
        self.nodes: list[list[bytes]] | None = None
        self.aliases = {name: name for name in self.names}
        #: Whether the server searches; None before the first call. And why it does not.
        self.works: bool | None = None
        self.why = ""
        #: Why this server's search is never used, if so.
        self.unusable = ""
        #: Whether searches use the index of this form; until it is filled, they use the former one.
        self.settled = False
        #: Whether scripts can search. In clusters of Redis 8, where one node searches for all, they cannot.
        self.scripts = True

    def use_any_node(self) -> None:
        """There is one index, and each node of the cluster answers for all."""
        self.names, self.scripts = [self._whole], False
        self.aliases = {self._whole: self._whole}

    def alias(self, conversation_id: str) -> bytes:
        """The alias of the index with the documents of a conversation."""
        return self.aliases[self.names[Keyspace.bucket_of(conversation_id) % len(self.names)]]


#: Two free-running clocks differ by less than 1 in 1,000 (NTP slews by 1 in 2,000 at most).
_SLOWEST_CLOCK: Final = 0.999


class ServerClock:
    """The time of a server, rather early than late, by its last report.

    Another server may use the address after a failover, so the report counts only while the connections last, and for
    `_TRUSTED` seconds after the last reply.
    """

    _TRUSTED: Final = 5.0

    def __init__(self) -> None:
        self._report: tuple[int, float] | None = None
        self._heard = float("-inf")

    def learn(self, microseconds: int) -> None:
        """The server has just reported this time."""
        self._heard = time.monotonic()
        self._report = microseconds, self._heard

    def heard(self) -> None:
        """The server has just replied."""
        self._heard = time.monotonic()

    def forget(self) -> None:
        """A connection was lost or made, or the server is not the primary."""
        self._report = None

    @property
    def is_near(self) -> bool:
        """Whether the server has replied a short time ago."""
        return time.monotonic() - self._heard <= self._TRUSTED

    @property
    def now(self) -> int:
        """The time in microseconds; 0 if it is not known."""
        report = self._report
        if report is None or not self.is_near:
            return 0
        return int(report[0] + (time.monotonic() - report[1]) * 1e6 * _SLOWEST_CLOCK)


class ExtraKeys:
    """Keys that scripts have asked for (lua/_change.lua), by the key of the state. With them, the next call takes one
    round trip. `wanted`: which keys to remember; `seconds`: for how long, because replies and archives leave."""

    _CONVERSATIONS: Final = 10_000
    _KEYS: Final = 8  # of each

    def __init__(self, wanted: Callable[[bytes], bool], seconds: float = math.inf) -> None:
        self._wanted = wanted
        self._seconds = seconds
        self._known: dict[bytes, tuple[float, tuple[bytes, ...]]] = {}

    def of(self, state: bytes) -> tuple[bytes, ...]:
        found = self._known.get(state) if self._known else None
        return () if found is None or found[0] < time.monotonic() else found[1]

    def learn(self, state: bytes, keys: Iterable[bytes]) -> None:
        """Remember the newest of these keys. A list takes the place of the one for the former owner."""
        kinds = {without_digest(key): key for key in keys if self._wanted(key)}
        if kinds:
            if len(self._known) >= self._CONVERSATIONS:
                self._known.clear()
            self._known[state] = time.monotonic() + self._seconds, tuple(kinds.values())[-self._KEYS :]


def _one_contact() -> Callable[[bytes], Contact]:
    contact = Contact()
    return lambda _: contact


@dataclass(eq=False)
class Settings:
    """The settings that all calls of a store share. `log_length`: the least number of changes kept per conversation.
    `ttl`: seconds. `confirm`: None if the reply is enough. `index`: None without search.
    `zstd`: whether to compress messages that become smaller. `publishes`: the scripts publish each change, because this
    user may not see or change the server's setting for keyspace notifications, as the first call finds out.
    `poll_interval`: seconds between reads of an idle subscription.
    `contact_of`: with the server of a key.
    `lists`: those of owners, agents and forks that writing scripts have asked for. `contents`: those of replies and
    archives that reading scripts have asked for; not in a cluster, where a key that has left would stop the call while
    its slot moves. `turn_keys`: those of turns, for calls that change turns. `locking`: see `with_key_locking`.
    `durable`: the server acknowledges only durable writes, says its operator. `audit`: seconds for which the audit
    trail keeps changes; None: there is none.
    """

    keyspace: Keyspace
    log_length: int
    database: int = 0
    ttl: float | None = None
    max_messages: int | None = None
    confirm: Confirmation | None = None
    index: SearchIndex | None = None
    zstd: bool = False
    publishes: bool = False
    contact_of: Callable[[bytes], Contact] = field(default_factory=_one_contact)
    cluster: bool = False
    poll_interval: float = 3.0
    locking: bool = False
    durable: bool = False
    lists: ExtraKeys = field(default_factory=partial(ExtraKeys, is_list))
    audit: float | None = None
    contents: ExtraKeys | None = field(default_factory=partial(ExtraKeys, is_reply_or_archive, 10.0))
    turn_keys: ExtraKeys = field(default_factory=partial(ExtraKeys, is_of_turns))

    def __post_init__(self) -> None:
        if self.cluster:
            self.contents = None

    @cached_property
    def header(self) -> tuple[bytes, bytes, bytes]:
        """The arguments log_length, ttl and flags of every writing script: see lua/_change.lua."""
        ttl = b"" if self.ttl is None else b"%d" % round(self.ttl * 1000)
        kept = (b"" if self.confirm is None else b"1") + (b"c" if self.cluster else b"")
        if self.audit is not None:
            kept += b";%d" % round(self.audit * 1000)
        return b"%d" % self.log_length, ttl, kept

    @property
    def publish_command(self) -> bytes:
        """The command with which scripts publish: see lua/_publish.lua."""
        return b"SPUBLISH" if self.cluster else b"PUBLISH"

    @property
    def publishing(self) -> bytes:
        """The argument of this name of every writing script: the command that publishes the change, or empty."""
        return self.publish_command if self.publishes else b""

    @property
    def indexed(self) -> bool:
        """Whether to write documents. Changes when the index is found or lost, so each operation reads it once."""
        return self.index is not None and self.index.works is True

    @property
    def notifications(self) -> bytes:
        """The prefix of the channels of keyspace notifications. The key follows."""
        return b"__keyspace@%d__:" % self.database
