"""Hears that something changed: on one connection for all subscriptions of a store.

It listens to keyspace notifications, or to channels that the writing scripts publish to. A server that makes no
notifications, and does not let us turn them on, may still have writers that publish: in the mode "auto" it listens to
both then.

What it hears is never trusted: a notification only makes subscribers read their change logs. So is every
confirmation of a subscription, because redis-py connects anew in silence when the server has cut a connection, and the
confirmation is then the only sign that notifications were missed.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

from redis_history._async._runtime import Job, Lock, ending, reset_after_fork, sleep, spawn
from redis_history.backends.base import Wake, WakeAll
from redis_history.backends.redis.failures import is_transient
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.notifications import merged_flags

__all__ = ["AsyncDoorbell"]

_logger = logging.getLogger("redis_history")

#: Subscribed to from the start: redis-py's PubSub must have one channel to be read from.
_IDLE: Final = b"rh:doorbell"
#: What the channels of notifications begin with.
_KEYSPACE: Final = b"__keyspace@"
#: Seconds after which a quiet connection looks whether it should end.
_LOOK: Final = 1.0
#: Seconds between tries to connect.
_FIRST_WAIT: Final = 0.05
_LONGEST_WAIT: Final = 2.0


class AsyncDoorbell:
    """Wakes those who watch a channel or a pattern of channels. Runs from the first `watch` until `aclose`."""

    def __init__(self, client: Redis, mode: str) -> None:
        self._client = client
        self._asked = mode
        self._heard: str | None = None
        # Whether to listen to what writers publish as well.
        self._both = False
        self._wakes: dict[bytes, list[Wake]] = {}
        self._patterns: dict[bytes, list[WakeAll]] = {}
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
        self._patterns = {}
        self._pubsub = None
        self._job = None
        self._lock = Lock()

    @property
    def mode(self) -> str:
        """How changes are heard of at the moment: "keyspace", "publish" or "poll"."""
        if self._asked == "publish":
            return "publish"
        return (self._heard or "poll") if self._refused else "keyspace"

    async def watch(self, channel: bytes, wake: Wake) -> None:
        async with self._lock:
            wakes = self._wakes.setdefault(channel, [])
            wakes.append(wake)
            if self._begun() and len(wakes) == 1:
                # On failure the loop subscribes to everything anew, and wakes everybody.
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.subscribe(*self._names(channel))

    async def watch_all(self, pattern: bytes, wake: WakeAll) -> None:
        """Wakes with the conversation whose channel it heard, of those that the pattern matches."""
        async with self._lock:
            wakes = self._patterns.setdefault(pattern, [])
            wakes.append(wake)
            if self._begun() and len(wakes) == 1:
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.psubscribe(*self._names(pattern))

    async def unwatch(self, channel: bytes, wake: Wake) -> None:
        async with self._lock:
            if _removed(self._wakes, channel, wake) and self._pubsub is not None:
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.unsubscribe(*self._names(channel))

    async def unwatch_all(self, pattern: bytes, wake: WakeAll) -> None:
        async with self._lock:
            if _removed(self._patterns, pattern, wake) and self._pubsub is not None:
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.punsubscribe(*self._names(pattern))

    def _begun(self) -> bool:
        """Whether there is a connection to subscribe on; if nobody has watched before, there will be."""
        if self._job is None and not self._closed:
            self._job = spawn(self._run, "redis_history-doorbell")
            return False
        return self._pubsub is not None

    def _names(self, *channels: bytes) -> list[bytes]:
        """What to listen to for these channels, or patterns."""
        return [*channels, *map(_published, channels)] if self._both else [*channels]

    async def aclose(self) -> None:
        async with self._lock:
            self._closed = True
            for wake in [wake for wakes in self._wakes.values() for wake in wakes]:
                wake()  # whoever waits sees that the store was closed
            for wake_all in [wake_all for wakes in self._patterns.values() for wake_all in wakes]:
                wake_all(None)
            if self._pubsub is not None:
                with contextlib.suppress(RedisError, OSError):
                    await self._pubsub.unsubscribe(_IDLE)  # its confirmation makes the loop look
        if self._job is not None:
            await self._job.stop()

    async def _run(self) -> None:
        wait = _FIRST_WAIT
        while not (self._closed or ending()):
            pubsub = self._client.pubsub()
            try:
                await pubsub.subscribe(_IDLE)
                self._pubsub = pubsub
                await self._subscribe(pubsub)
                wait = _FIRST_WAIT
                while not (self._closed or ending()):
                    message = await pubsub.get_message(timeout=_LOOK)
                    if message is None:
                        continue
                    self._ring(message)
                    if message["type"] == "subscribe" and message["channel"] in (_IDLE, _IDLE.decode()):
                        # Also after redis-py has connected anew in silence, maybe to a server that forgot the setting.
                        await self._ensure_notifications(pubsub)
            except (RedisError, OSError) as error:
                if self._both and not is_transient(error):
                    self._both = False  # this user may not listen to what is published
                elif not self._closed:
                    self._tell(error)
                    await sleep(wait)
                    wait = min(2 * wait, _LONGEST_WAIT)
            finally:
                # Under the lock, so that nobody subscribes on a connection that is being closed.
                async with self._lock:
                    self._pubsub = None
                    with contextlib.suppress(RedisError, OSError):
                        await pubsub.aclose()

    async def _subscribe(self, pubsub: Any) -> None:
        if channels := list(self._wakes):
            await pubsub.subscribe(*self._names(*channels))
        if patterns := list(self._patterns):
            await pubsub.psubscribe(*self._names(*patterns))

    def _tell(self, error: Exception) -> None:
        if is_transient(error):
            _logger.info("the doorbell lost its connection: %s", error)
        elif not self._told:
            self._told = True
            _logger.warning("this user may not listen for changes (%s); they are noticed by looking", error)

    def _ring(self, message: dict[str, Any]) -> None:
        kind, channel = message["type"], _bytes(message["channel"])
        if kind in ("message", "pmessage"):
            self._heard = "keyspace" if channel.startswith(_KEYSPACE) else "publish"
        if kind in ("pmessage", "psubscribe"):
            pattern = channel if kind == "psubscribe" else _bytes(message["pattern"])
            conversation_id = _conversation_of(channel) if kind == "pmessage" else None
            for watched in tuple(self._patterns) if self._both else (pattern,):
                if pattern in (watched, _published(watched)):
                    for wake_all in tuple(self._patterns.get(watched, ())):
                        wake_all(conversation_id)
            return
        for wake in tuple(self._wakes.get(channel, ())) or self._wakes_of_published(channel):
            wake()

    def _wakes_of_published(self, channel: bytes) -> list[Wake]:
        if not self._both:
            return []
        return [wake for watched, wakes in [*self._wakes.items()] if _published(watched) == channel for wake in wakes]

    async def _ensure_notifications(self, pubsub: Any) -> None:
        """Turn on the notifications we need, beside those that others have turned on."""
        if self._refused or self._asked == "publish":
            return
        name = "notify-keyspace-events"
        try:
            setting = await self._client.config_get(name)
            flags = merged_flags(next(iter(setting.values()), ""))
            if flags is not None:
                await self._client.config_set(name, flags)
        except RedisError as error:
            if not _is_refusal(error):
                raise
            self._refused = True
            self._told = True
            if self._asked == "auto":
                self._both = True
                await self._subscribe(pubsub)
            _logger.warning(
                "the server does not let us turn on keyspace notifications (%s); unless they are on, or writers have "
                'doorbell="publish", changes are noticed by looking every few seconds. To fix it: CONFIG SET %s Kt',
                error,
                name,
            )


def _removed(wakes: dict[bytes, list[Any]], name: bytes, wake: Any) -> bool:
    """Take a wake away; whether nobody is left who watches that."""
    watching = wakes.get(name, [])
    if wake in watching:
        watching.remove(wake)
    return not watching and wakes.pop(name, None) is not None


def _published(channel: bytes) -> bytes:
    """Where writers publish what this channel of notifications tells."""
    return channel.partition(b"__:")[2] if channel.startswith(_KEYSPACE) else channel


def _conversation_of(channel: bytes) -> str | None:
    try:
        return Keyspace.id_of_log(channel)
    except ValueError:  # somebody else's
        return None


def _bytes(channel: bytes | str) -> bytes:
    return channel.encode() if isinstance(channel, str) else channel  # the user's client decodes


def _is_refusal(error: RedisError) -> bool:
    return isinstance(error, ResponseError) and not is_transient(error)
