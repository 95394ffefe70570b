# Generated from ../_async by scripts/unasync: do not edit.
"""Wakes subscriptions when conversations change: one connection serves all subscriptions of a store.

It listens to keyspace notifications, or to channels that the writing scripts publish to. If the server refuses to turn
notifications on, the mode "auto" listens to both, because some writers may publish.

A message only makes subscribers read their change logs. The confirmation of a subscription does so too, because earlier
changes may have been missed.

Only the doorbell's thread uses the connection. `watch` and `unwatch` record the wanted topics and interrupt
its wait; it then sends the difference. After any error it connects and subscribes again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Final, NamedTuple

from redis import Redis
from redis.exceptions import ConnectionError, NoPermissionError, ResponseError

from redis_history._sync._connections import PubSubConnection
from redis_history._sync._runtime import Job, is_cancelled, reset_after_fork, spawn
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.server_info import merged_flags

_logger = logging.getLogger("redis_history")

#: A channel without messages. Subscribing to it, again and again, shows that the connection works.
_IDLE: Final = b"rh2:doorbell"
_KEYSPACE: Final = b"__keyspace@"
_SETTING: Final = b"notify-keyspace-events"
#: Seconds of silence after which the connection is checked: its owner may have closed it.
_CHECK: Final = 1.0
#: Seconds of silence after which the server must answer, and seconds for its answer.
_QUIET: Final = 5.0
_ANSWER: Final = 5.0
#: Seconds between attempts to connect.
_FIRST_WAIT: Final = 0.02
_LONGEST_WAIT: Final = 2.0


class Topic(NamedTuple):
    """A channel, or a pattern of channels."""

    is_pattern: bool
    name: bytes


class Doorbell:
    """Wakes the watchers of topics. Runs from the first `watch` until `close`.

    `watch` and `unwatch` do not wait for the server, and raise no errors of it.
    """

    def __init__(self, client: Redis, mode: str) -> None:
        self._client = client
        self._asked = mode
        self._watchers: dict[Topic, list[Any]] = {}
        # Topics watched or unwatched since the connection's subscriptions were last updated; None without a connection.
        self._changed: set[Topic] | None = None
        self._prefix = b""
        self._guard = threading.Lock()  # for the three above; never held during a call
        self._connection: PubSubConnection | None = None
        self._job: Job | None = None
        self._confirmed = False  # the server has confirmed the subscriptions of this connection
        self._heard: str | None = None  # the mode of the last message
        self._refused = False  # the server refused to turn notifications on
        self._publish_forbidden = False  # this user may not subscribe to the channels that writers publish to
        self._warned: set[str] = set()
        self._closed = False
        reset_after_fork(self)

    def forget(self) -> None:
        """Reset a forked child: the connection, its thread and the watchers are the parent's."""
        self._watchers = {}
        self._changed = None
        self._guard = threading.Lock()
        self._connection = None
        self._job = None
        self._confirmed = False

    @property
    def mode(self) -> str:
        """ "keyspace", "publish", or "poll" while there is no connection."""
        if not self._confirmed:
            return "poll"
        if self._asked == "publish":
            return "publish"
        return (self._heard or "poll") if self._refused else "keyspace"

    def watch(self, topic: Topic, wake: Any) -> None:
        """Call `wake` after changes: for a pattern with the conversation id, or None if any may have changed; for a
        channel without arguments."""
        with self._guard:
            if self._closed:
                return
            if topic.name.startswith(_KEYSPACE):
                self._prefix = topic.name.partition(b"__:")[0] + b"__:"
            self._watchers.setdefault(topic, []).append(wake)
            if self._changed is not None:
                self._changed.add(topic)
            if self._job is None or self._job.ended:  # or somebody cancelled all tasks of the loop
                self._connection = PubSubConnection(self._client.connection_pool)
                self._job = spawn(self._run, "redis_history-doorbell")
        self._interrupt()

    def unwatch(self, topic: Topic, wake: Any) -> None:
        with self._guard:
            wakes = self._watchers.get(topic, [])
            if wake in wakes:
                wakes.remove(wake)
            if wakes or self._watchers.pop(topic, None) is None:
                return
            if self._changed is not None:
                self._changed.add(topic)
        self._interrupt()

    def _interrupt(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            watchers = [(topic, wake) for topic, wakes in self._watchers.items() for wake in wakes]
        for topic, wake in watchers:  # waiting subscriptions see that the store was closed
            call_wake(topic, wake, None)
        self._interrupt()
        if self._job is not None:
            self._job.stop()

    def _should_end(self) -> bool:
        return self._closed or is_cancelled()

    def _run(self) -> None:
        connection, wait = self._connection, _FIRST_WAIT
        assert connection is not None  # noqa: S101
        try:
            while not self._should_end():
                error: Exception | None = None
                try:
                    connection.connect()
                    self._listen(connection)
                except Exception as caught:  # noqa: BLE001 -- the next connection may work
                    error = caught
                finally:
                    if self._confirmed:
                        wait = _FIRST_WAIT
                    self._confirmed = False
                    self._heard = None
                    with self._guard:
                        self._changed = None
                    with contextlib.suppress(Exception):
                        connection.disconnect()
                if error is None or self._should_end():
                    continue
                if self._uses_both and isinstance(error, NoPermissionError):
                    self._publish_forbidden = True
                    continue
                self._log(error)
                until = time.monotonic() + wait
                wait = min(2 * wait, _LONGEST_WAIT)
                while not self._should_end() and (left := until - time.monotonic()) > 0:
                    connection.receive(left)
        finally:
            connection.close()

    def _listen(self, connection: PubSubConnection) -> None:
        """Listen until the doorbell is closed. Raises errors of the connection."""
        # Notifications first: a change before the subscription is found after its confirmation.
        if self._asked != "publish":
            self._enable_notifications(connection)
        active: set[Topic] = set()
        with self._guard:
            self._changed = set(self._watchers)
        self._update(connection, active)
        connection.send(b"SUBSCRIBE", _IDLE)  # last, so that its confirmation covers all others
        heard_at = time.monotonic()
        asked_at: float | None = heard_at
        while not self._should_end():
            self._update(connection, active)
            message = connection.receive(_CHECK)
            now = time.monotonic()
            if message is not None:
                heard_at, asked_at = now, None
                self._handle(message)
            elif asked_at is None and now - heard_at >= _QUIET:
                asked_at = now
                connection.send(b"SUBSCRIBE", _IDLE)
            elif asked_at is not None and now - asked_at >= _ANSWER:
                raise ConnectionError(f"no answer for {_ANSWER:g} seconds")

    def _update(self, connection: PubSubConnection, active: set[Topic]) -> None:
        """Subscribe and unsubscribe to the changed topics. `active`: the topics of this connection."""
        if not self._changed:
            return
        with self._guard:
            changed, self._changed = self._changed, set()
            wanted = {topic for topic in changed if topic in self._watchers}
        for topics, command in ((wanted - active, b"SUBSCRIBE"), ((changed - wanted) & active, b"UNSUBSCRIBE")):
            for is_pattern, prefix in ((False, b""), (True, b"P")):
                names = [name for topic in topics if topic.is_pattern == is_pattern for name in self._names(topic)]
                if names:
                    connection.send(prefix + command, *names)
        active |= wanted
        active -= changed - wanted

    @property
    def _uses_both(self) -> bool:
        """Whether to listen to both notifications and published messages."""
        return self._refused and self._asked == "auto" and not self._publish_forbidden

    def _names(self, topic: Topic) -> list[bytes]:
        return [topic.name, topic.name.removeprefix(self._prefix)] if self._uses_both else [topic.name]

    def _handle(self, message: Any) -> None:
        if not isinstance(message, list) or len(message) < 3:
            return  # not a pub/sub message
        kind, name, *rest = message
        if name == _IDLE:
            self._confirmed = True
            return
        if kind not in (b"message", b"pmessage", b"subscribe", b"psubscribe"):
            return
        channel = rest[0] if kind == b"pmessage" else name
        if kind in (b"message", b"pmessage"):
            self._heard = "keyspace" if channel.startswith(_KEYSPACE) else "publish"
        conversation_id = _conversation_of(channel) if kind == b"pmessage" else None
        for full in dict.fromkeys((name, self._prefix + name)):
            topic = Topic(kind.startswith(b"p"), full)
            for wake in [*self._watchers.get(topic, ())]:
                call_wake(topic, wake, conversation_id)

    def _enable_notifications(self, connection: PubSubConnection) -> None:
        """Add the missing flags to the server's setting."""
        try:
            setting = connection.ask((b"CONFIG", b"GET", _SETTING), _ANSWER)
            found = [*setting.values()] if isinstance(setting, dict) else setting[1::2]
            flags = merged_flags(found[0] if found else b"")
            if flags is not None:
                connection.ask((b"CONFIG", b"SET", _SETTING, flags.encode()), _ANSWER)
            self._refused = False
        except ResponseError as error:
            if is_transient(error):
                raise
            self._refused = True
            self._warn(
                "keyspace notifications cannot be turned on (%s). If they are off, subscriptions poll, unless all "
                'stores have doorbell="publish". To turn them on: CONFIG SET %s Kl',
                error,
                _SETTING.decode(),
            )

    def _log(self, error: Exception) -> None:
        if is_transient(error):
            _logger.info("the doorbell lost its connection: %s", error)
        elif isinstance(error, ResponseError):
            self._warn("the server refused the doorbell (%s): subscriptions poll", error)
        else:
            _logger.warning("the doorbell failed and connects again", exc_info=error)

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


def _conversation_of(channel: bytes) -> str | None:
    try:
        return Keyspace.id_of_log(channel)
    except ValueError:  # not a channel of this package
        return None
