# Generated from ../_async by scripts/unasync: do not edit.
"""Hears that something changed: keyspace notifications on one connection for all subscriptions of a store.

What it hears is never trusted: a notification only makes subscribers read their change logs. So is every
confirmation of a subscription, because redis-py connects anew in silence when the server has cut a connection, and the
confirmation is then the only sign that notifications were missed.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from redis_history._sync._runtime import Job, Lock, ending, reset_after_fork, sleep, spawn
from redis_history.backends.base import Wake
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.notifications import merged_flags

__all__ = ["Doorbell"]

_logger = logging.getLogger("redis_history")

#: Subscribed to from the start: redis-py's PubSub must have one channel to be read from.
_IDLE: Final = b"rh:doorbell"
#: Seconds after which a quiet connection looks whether it should end.
_LOOK: Final = 1.0
#: Seconds between tries to connect.
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 2.0


class Doorbell:
    """Wakes those who watch a channel. Runs from the first `watch` until `close`."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._wakes: dict[bytes, list[Wake]] = {}
        self._pubsub: Any = None
        self._job: Job | None = None
        self._lock = Lock()
        self._closed = False
        self._refused = False
        self._told = False
        reset_after_fork(self)

    def forget(self) -> None:
        """In a forked child: the connection and those who watch are the parent's."""
        self._wakes = {}
        self._pubsub = None
        self._job = None
        self._lock = Lock()

    def watch(self, channel: bytes, wake: Wake) -> None:
        with self._lock:
            wakes = self._wakes.setdefault(channel, [])
            wakes.append(wake)
            if self._job is None and not self._closed:
                self._job = spawn(self._run, "redis_history-doorbell")
            elif len(wakes) == 1 and self._pubsub is not None:
                # On failure the loop subscribes to everything anew, and wakes everybody.
                with contextlib.suppress(RedisError, OSError):
                    self._pubsub.subscribe(channel)

    def unwatch(self, channel: bytes, wake: Wake) -> None:
        with self._lock:
            wakes = self._wakes.get(channel, [])
            if wake in wakes:
                wakes.remove(wake)
            if not wakes and self._wakes.pop(channel, None) is not None and self._pubsub is not None:
                with contextlib.suppress(RedisError, OSError):
                    self._pubsub.unsubscribe(channel)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for wake in [wake for wakes in self._wakes.values() for wake in wakes]:
                wake()  # whoever waits sees that the store was closed
            if self._pubsub is not None:
                with contextlib.suppress(RedisError, OSError):
                    self._pubsub.unsubscribe(_IDLE)  # its confirmation makes the loop look
        if self._job is not None:
            self._job.stop()

    def _run(self) -> None:
        wait = _FIRST_WAIT
        while not (self._closed or ending()):
            pubsub = self._client.pubsub()
            try:
                pubsub.subscribe(_IDLE)
                self._pubsub = pubsub
                if channels := list(self._wakes):
                    pubsub.subscribe(*channels)
                wait = _FIRST_WAIT
                while not (self._closed or ending()):
                    message = pubsub.get_message(timeout=_LOOK)
                    if message is None:
                        continue
                    self._ring(message)
                    if message["type"] == "subscribe" and message["channel"] in (_IDLE, _IDLE.decode()):
                        # Also after redis-py has connected anew in silence, maybe to a server that forgot the setting.
                        self._ensure_notifications()
            except (RedisError, OSError) as error:
                if not self._closed:
                    self._tell(error)
                    sleep(wait)
                    wait = min(2 * wait, _LONGEST_WAIT)
            finally:
                # Under the lock, so that nobody subscribes on a connection that is being closed.
                with self._lock:
                    self._pubsub = None
                    with contextlib.suppress(RedisError, OSError):
                        pubsub.close()

    def _tell(self, error: Exception) -> None:
        if is_transient(error):
            _logger.info("the doorbell lost its connection: %s", error)
        elif not self._told:
            self._told = True
            _logger.warning("this user may not listen for changes (%s); they are noticed by looking", error)

    def _ring(self, message: dict[str, Any]) -> None:
        channel = message["channel"]
        if isinstance(channel, str):  # the user's client decodes
            channel = channel.encode()
        for wake in tuple(self._wakes.get(channel, ())):
            wake()

    def _ensure_notifications(self) -> None:
        """Turn on the notifications we need, beside those that others have turned on."""
        if self._refused:
            return
        name = "notify-keyspace-events"
        try:
            setting = self._client.config_get(name)
            flags = merged_flags(next(iter(setting.values()), ""))
            if flags is not None:
                self._client.config_set(name, flags)
        except RedisError as error:
            if not _is_refusal(error):
                raise
            self._refused = True
            self._told = True
            _logger.warning(
                "the server does not let us turn on keyspace notifications (%s); unless they are on, "
                "changes are noticed by looking every few seconds. To fix it: CONFIG SET %s Kt",
                error,
                name,
            )


def _is_refusal(error: RedisError) -> bool:
    return isinstance(error, ResponseError) and not is_transient(error)
