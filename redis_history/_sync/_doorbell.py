# Generated from ../_async by scripts/unasync: do not edit.
"""Wakes subscriptions when conversations change: one connection serves all subscriptions of a store.

It listens to keyspace notifications, and to the channels to which scripts publish for users that may not see or change
the server's setting for notifications. A message only makes subscribers read their change logs. The confirmation of a
subscription does so too, because earlier changes may have been missed.

After any error the doorbell takes a new connection and subscribes again. It does not rely on redis-py's own
reconnection: other code subscribes on the connection while the doorbell's thread reads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from redis_history._sync._node import Node
from redis_history._sync._runtime import Job, Lock, is_cancelled, sleep, spawn
from redis_history.operations.failures import is_transient
from redis_history.operations.keys import Keyspace

_logger = logging.getLogger("redis_history")

#: A channel without messages. Its confirmation, the last one, says that all others are subscribed.
_IDLE: Final = b"rh2:doorbell"
#: Seconds of silence after which the doorbell looks after itself: whether to end, and what to unsubscribe.
_CHECK: Final = 1.0
#: Seconds of silence after which the server must answer, and seconds for its answer.
_QUIET: Final = 5.0
_ANSWER: Final = 5.0
#: Seconds between attempts to connect.
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0
#: Channels in one command.
_BATCH: Final = 1000


class Topic(NamedTuple):
    """A key whose changes are announced, or a pattern of keys; or a channel that is only published to."""

    name: bytes
    is_pattern: bool = False
    only_published: bool = False


class Doorbell:
    """Wakes the watchers of topics. Runs from the first `watch` until `close`.

    `prefix`: what the channels of notifications begin with. `announce`: has the server notify. `hears_published`:
    whether it listens to published messages too.
    """

    def __init__(
        self,
        node: Node,
        prefix: bytes,
        announce: Callable[[Node], object],
        *,
        hears_published: bool = True,
    ) -> None:
        self.hears_published = hears_published
        self._node = node
        self._prefix = prefix
        self._announce = announce
        self._watchers: dict[Topic, list[Any]] = {}
        self._unwatched: set[Topic] = set()
        self._guard = threading.Lock()  # for the two above; never held during a call
        self._sending = Lock()  # for the three below
        self._pubsub: Any = None  # None without a connection
        self._subscribed: set[Topic] = set()
        self._forbidden = False  # this user may not subscribe to the channels that scripts publish to
        self._confirmed = False  # the server has confirmed the subscriptions of this connection
        self._job: Job | None = None
        self._warned: set[str] = set()
        self._closed = False

    @property
    def works(self) -> bool:
        """Whether it has a connection with all its subscriptions."""
        return self._confirmed

    def watch(self, topic: Topic, wake: Any) -> None:
        """Call `wake` after changes: for a pattern with the conversation id, or None if any may have changed; else
        without arguments. Raises no errors of the server."""
        with self._guard:
            if self._closed:
                return
            self._watchers.setdefault(topic, []).append(wake)
            self._unwatched.discard(topic)
            if self._job is None or self._job.ended:  # or somebody cancelled all tasks of the loop
                self._job = spawn(self._run, "redis_history-doorbell")
        with self._sending:
            if self._pubsub is not None and topic not in self._subscribed:
                self._subscribed.add(topic)
                self._send("subscribe", [topic])

    def unwatch(self, topic: Topic, wake: Any) -> None:
        """Undo `watch`. The doorbell unsubscribes a little later."""
        with self._guard:
            wakes = self._watchers.get(topic, [])
            if wake in wakes:
                wakes.remove(wake)
            if not wakes and self._watchers.pop(topic, None) is not None:
                self._unwatched.add(topic)

    def hear_published(self) -> None:
        """Listen to published messages from now on."""
        self.hears_published = True
        self._pubsub = None  # connects anew

    def close(self) -> None:
        with self._guard:
            self._closed = True
            watchers = [(topic, wake) for topic, wakes in self._watchers.items() for wake in wakes]
        for topic, wake in watchers:  # waiting subscriptions see that the store was closed
            call_wake(topic, wake, None)
        with self._sending:
            if self._pubsub is not None:
                with contextlib.suppress(Exception):  # its confirmation ends the wait for messages
                    self._pubsub.unsubscribe(_IDLE)
        if self._job is not None:
            self._job.stop()

    def _should_end(self) -> bool:
        return self._closed or is_cancelled()

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not self._should_end():
            error: Exception | None = None
            pubsub = self._node.client.pubsub()
            try:
                self._listen(pubsub)
            except Exception as caught:  # noqa: BLE001 -- the next connection may work
                error = caught
            finally:
                self._pubsub = None
                if self._confirmed:
                    wait = _FIRST_WAIT
                self._confirmed = False
                with contextlib.suppress(Exception):
                    pubsub.close()
            if error is None or self._should_end():
                continue
            if isinstance(error, NoPermissionError) and self.hears_published and not self._forbidden:
                self._forbidden = True
                continue
            self._log(error)
            until = time.monotonic() + wait
            wait = min(2 * wait, _LONGEST_WAIT)
            while not self._should_end() and (left := until - time.monotonic()) > 0:
                sleep(min(left, 0.1))

    def _listen(self, pubsub: Any) -> None:
        """Listen until the doorbell is closed, or its connection is given up. Raises errors of the connection."""
        # Notifications first: a change before the subscription is found after its confirmation.
        self._announce(self._node)
        pubsub.ping()  # connects
        with self._sending:
            with self._guard:
                self._unwatched.clear()
                self._subscribed = set(self._watchers)
            self._pubsub = pubsub
            self._send("subscribe", self._subscribed)
            pubsub.subscribe(_IDLE)
        heard_at = time.monotonic()
        asked_at: float | None = heard_at
        while self._pubsub is pubsub and not self._should_end():
            message = pubsub.get_message(timeout=_CHECK)
            now = time.monotonic()
            if message is not None:
                heard_at, asked_at = now, None
                self._handle(message)
            elif asked_at is None and now - heard_at >= _QUIET:
                asked_at = now
                with self._sending:
                    pubsub.ping()
            elif asked_at is not None and now - asked_at >= _ANSWER:
                raise ConnectionError(f"no answer for {_ANSWER:g} seconds")
            if self._unwatched:
                with self._sending:
                    with self._guard:
                        left, self._unwatched = self._unwatched & self._subscribed, set()
                    self._subscribed -= left
                    self._send("unsubscribe", left)

    def _send(self, command: str, topics: Iterable[Topic]) -> None:
        """Subscribe to topics, or unsubscribe. After an error the doorbell's thread connects anew."""
        names: dict[str, list[bytes]] = {command: [], f"p{command}": []}
        for topic in topics:
            names[f"p{command}" if topic.is_pattern else command] += self._channels(topic)
        pubsub = self._pubsub
        try:
            for method, channels in names.items():
                for at in range(0, len(channels), _BATCH):
                    getattr(pubsub, method)(*channels[at : at + _BATCH])
        except Exception as error:  # noqa: BLE001 -- redis-py raises all kinds while it reconnects
            _logger.info("the doorbell lost its connection: %s", error)
            self._pubsub = None

    def _channels(self, topic: Topic) -> list[bytes]:
        published = [topic.name] if self.hears_published and not self._forbidden else []
        return published if topic.only_published else [self._prefix + topic.name, *published]

    def _handle(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind not in ("message", "pmessage", "subscribe", "psubscribe"):
            return
        channel = _bytes(message["channel"])
        if channel == _IDLE:
            if self._confirmed:  # redis-py has connected a user's client by itself, perhaps to a restarted server
                raise ConnectionError("the connection was lost")
            self._confirmed = True
            return
        name = _bytes(message["pattern"]) if kind == "pmessage" else channel
        conversation_id = _conversation_of(channel) if kind == "pmessage" else None
        name = name.removeprefix(self._prefix)
        for topic in (Topic(name, kind.startswith("p")), Topic(name, only_published=True)):
            for wake in [*self._watchers.get(topic, ())]:
                call_wake(topic, wake, conversation_id)

    def _log(self, error: Exception) -> None:
        if isinstance(error, ResponseError) and not is_transient(error):
            self._warn("the server refused the doorbell (%s): subscriptions poll", error)
        else:  # redis-py raises all kinds when a connection is closed by another task
            _logger.info("the doorbell lost its connection: %r", error)

    def _warn(self, text: str, *values: object) -> None:
        """Log each text once: every connection would repeat it."""
        if text not in self._warned:
            self._warned.add(text)
            _logger.warning(text, *values)


def call_wake(topic: Topic, wake: Any, conversation_id: str | None) -> None:
    if topic.is_pattern:
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
