"""The compressor process: keeps the conversations short while the agents write, and may be killed at it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from random import Random
from typing import Any

import msgspec

from redis_history import CompressionProgress, Compressor, HistoryStore, Message, extractive_summarizer
from redis_history.demo.agent import Failed, Ready
from redis_history.demo.plan import Bounds
from redis_history.errors import RedisHistoryError

__all__ = ["CompressJob", "Compressed", "Finished", "run_compressor"]

_LEASE = 2.0  # seconds; so long it takes until another one goes on with the work of one that was killed
_THINKS = 0.03  # seconds at most: a model would think for longer, and the agents write on
_SUMMARY_TOKENS = 100
_PATIENCE = 20.0  # seconds for what is left in the end


class CompressJob(msgspec.Struct, frozen=True):
    url: str
    namespace: str
    log_length: int
    bounds: Bounds


class Compressed(msgspec.Struct, frozen=True):
    """What it has done with a conversation; as in `CompressionProgress`."""

    kind: str
    error: str | None


class Finished(msgspec.Struct, frozen=True):
    """Told that the agents are done, it has found nothing more to compress; or has given up: so many are left."""

    left: int


def run_compressor(job: CompressJob, pipe: Connection) -> None:
    """The life of the process: Ready, Compressed as it goes, the parent's word that the agents are done, Finished."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when we end
    sending = threading.Lock()  # conversations are compressed in several threads

    def tell(word: Any) -> None:
        with sending, contextlib.suppress(OSError):
            pipe.send(word)

    def progress(of: CompressionProgress) -> None:
        tell(Compressed(of.kind, of.error))

    try:
        with HistoryStore(job.url, namespace=job.namespace, log_length=job.log_length) as store:
            compressor = Compressor(
                store,
                _Thinking(),
                max_entries=job.bounds.max_entries,
                keep_recent=job.bounds.keep_recent,
                lease=_LEASE,
                look_interval=0.2,
                first_wait=0.2,
                on_progress=progress,
            )
            store.get("-", limit=1)  # connects
            tell(Ready())
            ended = threading.Event()
            waiting = threading.Thread(target=_wait_for_the_parent, args=(pipe, compressor, ended), daemon=True)
            waiting.start()
            compressor.run()
            if not ended.is_set():
                tell(Finished(_finish(compressor)))
    except RedisHistoryError as error:
        tell(Failed(f"compressor: {error}"))


def _wait_for_the_parent(pipe: Connection, compressor: Compressor, ended: threading.Event) -> None:
    try:
        pipe.recv()
    except (EOFError, OSError):
        ended.set()  # the parent is gone, and so is the purpose
    compressor.stop()


def _finish(compressor: Compressor) -> int:
    """Compress what is too long now, also when the lease of one that was killed has ended; what is left."""
    until = time.monotonic() + _PATIENCE
    while (left := _count_too_long(compressor)) and time.monotonic() < until:
        compressor.run_once()
        time.sleep(0.02)
    return left


def _count_too_long(compressor: Compressor) -> int:
    return len(compressor.preview())


class _Thinking:
    """A summariser that needs no model, no key and no network; slowed down a little."""

    def __init__(self) -> None:
        self._extract = extractive_summarizer(max_tokens=_SUMMARY_TOKENS)
        self._random = Random(0)  # noqa: S311

    def __call__(self, messages: Sequence[Message], previous_summary: str | None) -> str:
        time.sleep(self._random.uniform(0, _THINKS))
        return self._extract(messages, previous_summary)
