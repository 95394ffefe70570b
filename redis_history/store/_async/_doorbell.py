"""Wakes subscriptions when conversations change: one connection serves all subscriptions of a store.

It listens to keyspace notifications, and to the channels to which scripts publish for users that may not see or change
the server's setting for notifications. A message only makes subscribers read their change logs. The confirmation of a
subscription does so too, because earlier changes may have been missed.

The doorbell's task alone uses the connection: others change the wanted channels, and interrupt its wait for messages.
After any error it takes a new connection and subscribes again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from redis_history.store._async._node import AsyncNode
from redis_history.store._async._runtime import Job, Receiver, is_cancelled, sleep, spawn
from redis_history.store.operations.failures import is_transient
from redis_history.store.operations.keys import Keyspace

_logger = logging.getLogger("redis_history")

#: A channel without messages. Its confirmation comes last, so all other channels are subscribed by then.
_IDLE: Final = b"rh2:doorbell"
#: Seconds without messages after which the server is pinged, and seconds to wait for its answer.
_QUIET: Final = 5.0
_ANSWER: Final = 5.0
#: Seconds in which a working doorbell ends without being cancelled, unless its server hangs.
_PATIENCE: Final = 0.5
#: Seconds between attempts to connect.
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
#: Channels in one command.
_BATCH: Final = 1000


class Topic(NamedTuple):
    """A key whose changes are announced, or a pattern of keys; or a channel that only scripts publish to. `of_turns`: a
    channel whose messages name a conversation; in a cluster, each node counts its own listeners."""

    name: bytes
    is_pattern: bool = False
    only_published: bool = False
    of_turns: bool = False


class Channel(NamedTuple):
    """The channels and patterns of a connection."""

    name: bytes
    is_pattern: bool


class AsyncDoorbell:
    """Wakes the watchers of topics. Runs from the first `watch` until `aclose`.

    `prefix` is the prefix of the notification channels. `announce` makes the server send notifications.
    `hears_published`:
    whether it listens to published messages too.
    """

    def __init__(
        self,
        node: AsyncNode,
        prefix: bytes,
        announce: Callable[[AsyncNode], Awaitable[object]],
        *,
        hears_published: bool = True,
    ) -> None:
        self.hears_published = hears_published
        self._node = node
        self._prefix = prefix
        self._announce = announce
        self._watchers: dict[Topic, list[Any]] = {}
        self._changed = False  # the topics, since they were compared with the subscriptions
        self._guard = threading.Lock()  # for the two above; never held during a call
        self._forbidden = False  # this user may not subscribe to the channels that scripts publish to
        self._confirmed = False  # the server has confirmed the subscriptions of this connection
        self._job: Job | None = None
        self._receiver = Receiver()
        self._warned = False
        self._closed = self._abandoned = False

    @property
    def works(self) -> bool:
        """Whether it has a connection with all its subscriptions."""
        return self._confirmed

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
            if isinstance(error, NoPermissionError) and self.hears_published and not self._forbidden:
                self._forbidden = True
                continue
            self._log(error)
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
        await pubsub.ping()  # connects
        subscribed = await self._subscribe(pubsub, set())
        await pubsub.subscribe(_IDLE)
        asked, due = True, time.monotonic() + _ANSWER
        while not self._should_end():
            if self._changed:
                subscribed = await self._subscribe(pubsub, subscribed)
                continue
            message = await self._receiver.get(pubsub, max(0.0, due - time.monotonic()))
            now = time.monotonic()
            if message is not None:
                asked, due = False, now + _QUIET
                self._handle(message)
            elif now >= due:
                if asked:
                    raise ConnectionError(f"no answer for {_ANSWER:g} seconds")
                asked, due = True, now + _ANSWER
                await pubsub.ping()

    async def _subscribe(self, pubsub: Any, subscribed: set[Channel]) -> set[Channel]:
        """Subscribe to the watched channels, and unsubscribe from the rest. Returns the subscribed channels."""
        with self._guard:
            self._changed = False
            wanted = {channel for topic in self._watchers for channel in self._channels(topic)}
        for is_pattern, prefix in ((False, ""), (True, "p")):
            for command, channels in (("subscribe", wanted - subscribed), ("unsubscribe", subscribed - wanted)):
                names = [channel.name for channel in channels if channel.is_pattern is is_pattern]
                for at in range(0, len(names), _BATCH):
                    await getattr(pubsub, prefix + command)(*names[at : at + _BATCH])
        return wanted

    def _channels(self, topic: Topic) -> list[Channel]:
        names = [] if topic.only_published else [self._prefix + topic.name]
        if (self.hears_published or topic.of_turns) and not self._forbidden:
            names.append(topic.name)
        return [Channel(name, topic.is_pattern) for name in names]

    def _handle(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind not in ("message", "pmessage", "subscribe", "psubscribe"):
            return
        channel = _bytes(message["channel"])
        if channel == _IDLE:
            if self._confirmed:  # redis-py has connected a user's client automatically, perhaps to a restarted server
                raise ConnectionError("the connection was lost")
            self._confirmed = True
            return
        name = _bytes(message["pattern"]) if kind == "pmessage" else channel
        conversation_id = _conversation_of(channel) if kind == "pmessage" else None
        name = name.removeprefix(self._prefix)
        for topic in (Topic(name, kind.startswith("p")), Topic(name, only_published=True)):
            for wake in [*self._watchers.get(topic, ())]:
                call_wake(topic, wake, conversation_id)
        of_turns = Topic(name, only_published=True, of_turns=True)
        for wake in [*self._watchers.get(of_turns, ())]:
            named = Keyspace.name_to_id(_bytes(message["data"])) if kind == "message" else None
            call_wake(of_turns, wake, named or None)

    def _log(self, error: Exception) -> None:
        if not isinstance(error, ResponseError) or is_transient(error):
            # redis-py raises all kinds when a user closes the connections of the client
            _logger.info("the doorbell lost its connection: %r", error)
        elif not self._warned:  # every connection would repeat it
            self._warned = True
            _logger.warning("the server refused the doorbell (%s): subscriptions poll", error)


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
