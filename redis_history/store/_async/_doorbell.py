"""Wakes subscriptions when conversations change: one connection serves all subscriptions of a store.

It listens to keyspace notifications, and to the channels to which scripts publish for users that may not see or change
the server's setting for notifications. A message only makes subscribers read their change logs. The confirmation of a
subscription does so too, because earlier changes may have been missed.

The doorbell's task alone uses the connection: others change the wanted channels, and interrupt its wait for messages.
After any error of the connection it takes a new one and subscribes again. A command that the server refuses is no such
error: many managed servers lack PSUBSCRIBE. The other channels stay, and what the refused ones would wake polls.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Any, Final, Literal, NamedTuple

from redis.exceptions import ConnectionError, MovedError, ResponseError

from redis_history.store._async._node import AsyncNode
from redis_history.store._async._runtime import Job, Receiver, is_cancelled, sleep, spawn
from redis_history.store.operations.failures import is_transient
from redis_history.store.operations.keys import Keyspace

_logger = logging.getLogger("redis_history")

#: A channel without messages. Its confirmation comes last, so all other channels are subscribed by then.
_IDLE: Final = b"rh2:doorbell"
#: Seconds without messages after which the server is pinged: the poll interval of the store, within these limits.
#: Providers bill commands, and close connections that are idle for some minutes.
_QUIET: Final = 5.0
_LONGEST_QUIET: Final = 60.0
#: Seconds to wait for an answer.
_ANSWER: Final = 5.0
#: Seconds after which refused commands are tried again, because the user may have got the right, and notifications are
#: turned on again, because another program may have changed the server's setting.
_TRY_AGAIN: Final = 600.0
#: Seconds in which a working doorbell ends without being cancelled, unless its server hangs.
_PATIENCE: Final = 0.5
#: Seconds between attempts to connect.
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
#: Channels in one command.
_BATCH: Final = 1000

#: How a doorbell hears of changes.
Way = Literal["notifications", "publish"]


class Topic(NamedTuple):
    """A key whose changes are announced, or a pattern of keys; or a channel that only scripts publish to. `of_turns`: a
    channel whose messages name a conversation; in a cluster, each node counts its own listeners."""

    name: bytes
    is_pattern: bool = False
    only_published: bool = False
    of_turns: bool = False


class Group(NamedTuple):
    """The channels that a server accepts or refuses together. `kind`: "p" for patterns, "s" for the sharded channels of
    a cluster. `published`: by scripts, not by the server."""

    kind: Literal["", "p", "s"]
    published: bool


_SHARDED: Final = Group("s", True)


class Channel(NamedTuple):
    """A channel or pattern of a connection."""

    name: bytes
    group: Group


class _Asked(NamedTuple):
    """A command, and the channels that the server has not confirmed yet. `group`: of those to subscribe to."""

    names: set[bytes]
    group: Group | None = None


class AsyncLine:
    """A connection with its subscriptions. `refused`: the groups that the server refuses, and why."""

    def __init__(self, pubsub: Any) -> None:
        self.refused: dict[Group, ResponseError] = {}
        self.subscribed: set[Channel] = set()
        self._pubsub = pubsub
        # The commands without an answer, oldest first. A server answers in order, so an error belongs to the first.
        self._asked: deque[_Asked] = deque()

    async def ping(self) -> None:
        self._asked.append(_Asked(set()))
        await self._pubsub.ping()

    async def subscribe_to(self, wanted: set[Channel]) -> None:
        """Subscribe to these channels, except those of refused groups, and unsubscribe from the rest."""
        wanted = {channel for channel in wanted if channel.group not in self.refused}
        added, removed = wanted - self.subscribed, self.subscribed - wanted
        for channels, prefix in ((added, ""), (removed, "un")):
            for group in {channel.group for channel in channels}:
                names = [channel.name for channel in channels if channel.group == group]
                for batch in _batches(names, sharded=group == _SHARDED):
                    await self.send(f"{group.kind}{prefix}subscribe", batch, None if prefix else group)
        self.subscribed = wanted

    async def send(self, command: str, names: Collection[bytes], group: Group | None = None) -> None:
        self._asked.append(_Asked({*names}, group))
        await getattr(self._pubsub, command)(*names)

    def answered(self, name: bytes | None = None) -> bool:
        """Note the answer to a ping, or the confirmation for a channel. Returns whether it was expected."""
        if not self._asked or (name is None) == bool(self._asked[0].names):
            return False
        if name is not None:
            if name not in self._asked[0].names:
                return False
            self._asked[0].names.discard(name)
        if not self._asked[0].names:
            self._asked.popleft()
        return True

    def failed(self, error: ResponseError) -> _Asked:
        """Return the command that the server has answered with an error. Raises the error if it is not the answer to a
        command of this object."""
        if not self._asked:
            raise error
        asked = self._asked.popleft()
        if asked.group is not None:
            if isinstance(error, MovedError):  # another node has the slot
                lost = {channel for channel in self.subscribed if channel.name in asked.names}
            else:
                self.refused[asked.group] = error
                lost = {channel for channel in self.subscribed if channel.group == asked.group}
            self.subscribed -= lost
        return asked


def _batches(names: list[bytes], *, sharded: bool) -> Iterable[list[bytes]]:
    """The channels of each command. Sharded ones in a command must be of one slot."""
    by_slot: dict[bytes, list[bytes]] = {}
    for name in names:
        by_slot.setdefault(name.partition(b"}")[0] if sharded else b"", []).append(name)
    for group in by_slot.values():
        for at in range(0, len(group), _BATCH):
            yield group[at : at + _BATCH]


def _no_shards(topic: Topic) -> list[bytes]:
    return []


class AsyncDoorbell:
    """Wakes the watchers of topics. Runs from the first `watch` until `aclose`.

    `prefix` is the prefix of the notification channels. `announce` makes the server send notifications.
    `poll_interval`: of the store, in seconds. `hears_published`: whether it listens to published messages too. `warns`:
    whether to log refusals as warnings. `shards`: the sharded channels for a topic that this node of a cluster serves
    at present; `moved` is called when it serves other ones.
    """

    def __init__(
        self,
        node: AsyncNode,
        prefix: bytes,
        announce: Callable[[AsyncNode], Awaitable[object]],
        *,
        poll_interval: float = 0.0,
        hears_published: bool = True,
        warns: bool = True,
        shards: Callable[[Topic], list[bytes]] = _no_shards,
        moved: Callable[[], None] | None = None,
    ) -> None:
        self.hears_published = hears_published
        self._node = node
        self._prefix = prefix
        self._announce = announce
        self._quiet = min(max(_QUIET, poll_interval), _LONGEST_QUIET)
        self._shards = shards
        self._moved = moved
        self._watchers: dict[Topic, list[Any]] = {}
        self._changed = False  # the topics, since they were compared with the subscriptions
        self._guard = threading.Lock()  # for the two above; never held during a call
        self._line: AsyncLine | None = None
        self._confirmed = False  # the server has answered for all subscriptions of this connection
        self._job: Job | None = None
        self._receiver = Receiver()
        self._warned: set[str] = set()
        self._level = logging.WARNING if warns else logging.DEBUG
        self._closed = self._abandoned = False

    @property
    def works(self) -> bool:
        """Whether it has a connection with all its subscriptions, except those that the server refuses."""
        return self._confirmed

    def ways(self, *, is_pattern: bool) -> set[Way]:
        """How it hears of changes at present: of the topics that are patterns, or of the others."""
        line = self._line
        if line is None or not self._confirmed:
            return set()
        kind: Literal["", "p"] = "p" if is_pattern else ""
        ways: set[Way] = set()
        if Group(kind, False) not in line.refused:
            ways.add("notifications")
        # In a cluster scripts publish to all nodes only if the server does not know sharded channels.
        to_shards = self._moved is not None and "unknown" not in str(line.refused.get(_SHARDED, "")).lower()
        if _SHARDED not in line.refused if to_shards else Group(kind, True) not in line.refused:
            ways.add("publish")
        return ways

    def watch(self, topic: Topic, wake: Any) -> None:
        """Call `wake` when the server has confirmed the subscription, and after changes: for a pattern with the
        conversation id, or None if any may have changed. Otherwise without arguments."""
        with self._guard:
            if self._closed:
                return
            self._watchers.setdefault(topic, []).append(wake)
            self._change()
            if self._job is None or self._job.ended:  # or all tasks of the loop were cancelled
                self._job = spawn(self._run, "redis_history-doorbell")

    def unwatch(self, topic: Topic, wake: Any) -> None:
        """Undo `watch`."""
        with self._guard:
            wakes = self._watchers.get(topic, [])
            if wake in wakes:
                wakes.remove(wake)
            if not wakes:
                self._watchers.pop(topic, None)
                self._change()

    def hear_published(self) -> None:
        """Listen to published messages from now on."""
        self.hears_published = True
        self._change()

    def compare(self) -> None:
        """Compare the subscriptions with the topics: this node may serve other shards."""
        self._change()

    def _change(self) -> None:
        self._changed = True
        self._receiver.interrupt()

    async def aclose(self) -> None:
        with self._guard:
            self._closed = True
            watchers = [(topic, wake) for topic, wakes in self._watchers.items() for wake in wakes]
        for topic, wake in watchers:  # waiting subscriptions see that the store was closed
            call_wake(topic, wake, None)
        if self._job is not None:
            self._receiver.interrupt()
            # A connection whose use was cancelled is not closed when this returns, and then the loop may end too early.
            await self._job.stop(_PATIENCE if self._confirmed else 0.0)

    def abandon(self) -> None:
        """End soon and close the connections to the server in the background. Can be called from any thread at any
        moment, because the garbage collector calls it."""
        self._closed = self._abandoned = True
        self._receiver.interrupt_from_outside()

    def _should_end(self) -> bool:
        return self._closed or is_cancelled()

    async def _run(self) -> None:
        wait = _FIRST_WAIT
        while not self._should_end():
            error: Exception | None = None
            pubsub = self._node.client.pubsub()
            try:
                await self._listen(pubsub)
            except Exception as caught:  # noqa: BLE001 -- the next connection may work
                error = caught
            finally:
                if self._confirmed:
                    wait = _FIRST_WAIT
                self._confirmed = False
                with contextlib.suppress(Exception):
                    # `aclose` alone does not wait until the connection is closed; with TLS that takes a round trip.
                    if self._closed and pubsub.connection is not None:
                        await pubsub.connection.disconnect()
                    await pubsub.aclose()
            if error is None or self._should_end():
                continue
            # redis-py raises all kinds of errors when a user closes the connections of the client.
            _logger.info("the doorbell lost its connection: %r", error)
            until = time.monotonic() + wait
            wait = min(2 * wait, _LONGEST_WAIT)
            while not self._should_end() and (left := until - time.monotonic()) > 0:
                await sleep(min(left, 0.1))
        if self._abandoned:
            await self._node.aclose()

    async def _listen(self, pubsub: Any) -> None:
        """Listen until the doorbell is closed. Raises errors of the connection."""
        # Notifications first: a change before the subscription is found after its confirmation.
        await self._announce(self._node)
        line = self._line = AsyncLine(pubsub)
        await line.ping()  # connects
        await self._subscribe(line)
        await line.send("subscribe", [_IDLE])
        asked, due = True, time.monotonic() + _ANSWER
        try_again_at = time.monotonic() + _TRY_AGAIN
        while not self._should_end():
            if self._changed:
                await self._subscribe(line)
                continue
            answered = True
            try:
                message = await self._receiver.get(pubsub, max(0.0, due - time.monotonic()))
                if message is None:
                    answered = False
                else:
                    self._handle(line, message)
            except ResponseError as error:
                if is_transient(error):
                    raise
                self._note_refusal(line, error)
            now = time.monotonic()
            if answered:
                asked, due = False, now + self._quiet
            elif now >= due:
                if asked:
                    raise ConnectionError(f"no answer for {_ANSWER:g} seconds")
                if now >= try_again_at:
                    try_again_at, self._changed = now + _TRY_AGAIN, True
                    line.refused.clear()
                    await self._announce(self._node)
                asked, due = True, time.monotonic() + _ANSWER
                await line.ping()

    async def _subscribe(self, line: AsyncLine) -> None:
        """Subscribe to the watched channels, and unsubscribe from the rest."""
        with self._guard:
            self._changed = False
            wanted = {channel for topic in self._watchers for channel in self._channels(topic)}
        await line.subscribe_to(wanted)

    def _channels(self, topic: Topic) -> list[Channel]:
        kind: Literal["", "p"] = "p" if topic.is_pattern else ""
        channels = [] if topic.only_published else [Channel(self._prefix + topic.name, Group(kind, False))]
        if self.hears_published or topic.of_turns:
            channels.append(Channel(topic.name, Group(kind, True)))
        return [*channels, *(Channel(name, _SHARDED) for name in self._shards(topic))]

    def _handle(self, line: AsyncLine, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "pong":
            line.answered()
            return
        channel = _bytes(message["channel"])
        if kind.endswith("subscribe"):
            expected = line.answered(channel)
            if channel == _IDLE:
                if self._confirmed:  # redis-py has connected a user's client automatically, perhaps to another server
                    raise ConnectionError("the connection was lost")
                self._confirm(line)
                return
            if kind == "sunsubscribe" and not expected:  # the slot has moved to another node
                line.subscribed.discard(Channel(channel, _SHARDED))
                self._note_move()
            elif kind.endswith("unsubscribe"):
                return
        if channel.endswith(b":c"):  # of a registry: see lua/_publish.lua
            name = _bytes(message["data"]) if kind == "smessage" else b""
            self._wake_all(Keyspace.name_to_id(name) or None)
            return
        is_pattern = kind in ("pmessage", "psubscribe")
        name = _bytes(message["pattern"]) if kind == "pmessage" else channel
        conversation_id = _conversation_of(channel) if kind == "pmessage" else None
        name = name.removeprefix(self._prefix)
        for topic in (Topic(name, is_pattern), Topic(name, only_published=True)):
            for wake in [*self._watchers.get(topic, ())]:
                call_wake(topic, wake, conversation_id)
        of_turns = Topic(name, only_published=True, of_turns=True)
        for wake in [*self._watchers.get(of_turns, ())]:
            named = Keyspace.name_to_id(_bytes(message["data"])) if kind == "message" else None
            call_wake(of_turns, wake, named or None)

    def _wake_all(self, conversation_id: str | None) -> None:
        """Wake the watchers of patterns."""
        for topic, wakes in [*self._watchers.items()]:
            for wake in [*wakes] if topic.is_pattern else ():
                wake(conversation_id)

    def _note_refusal(self, line: AsyncLine, error: ResponseError) -> None:
        asked = line.failed(error)
        if isinstance(error, MovedError):
            self._note_move()
        elif _IDLE in asked.names:
            self._confirm(line)
        elif self._confirmed:
            self._warn(line)

    def _note_move(self) -> None:
        if self._moved is not None:
            self._moved()

    def _confirm(self, line: AsyncLine) -> None:
        self._confirmed = True
        self._warn(line)

    def _warn(self, line: AsyncLine) -> None:
        """Log which subscriptions poll, because the server refuses to wake them. Once, because every connection would
        repeat it."""
        for is_pattern, what in ((False, "subscriptions"), (True, "subscribe_all")):
            watched = any(topic.is_pattern is is_pattern for topic in [*self._watchers])
            if line.refused and watched and what not in self._warned and not self.ways(is_pattern=is_pattern):
                self._warned.add(what)
                errors = [error for group, error in line.refused.items() if (group.kind == "p") is is_pattern]
                _logger.log(self._level, "%s will poll, because the server refuses: %s", what, errors[-1])


def call_wake(topic: Topic, wake: Any, conversation_id: str | None) -> None:
    if topic.is_pattern or topic.of_turns:
        wake(conversation_id)
    else:
        wake()


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value  # a user's client may decode


def _conversation_of(channel: bytes) -> str | None:
    try:
        return Keyspace.id_of_log(channel)
    except ValueError:  # not a channel of this package
        return None
