"""Replays conversations with agent processes, a live subscriber and a compressor, and counts what happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import sys
import time
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE
from collections import Counter, deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from pathlib import Path
from random import Random
from typing import Any, cast

import msgspec

from redis_history import (
    AsyncCompressor,
    AsyncHistoryStore,
    Conversation,
    HistoryCompacted,
    HistoryStore,
    Message,
    MessagesAppended,
    Participant,
    assistant,
    extractive_summarizer,
)
from redis_history.embedded._folder import import_path
from redis_history.errors import InvalidInputError, RedisHistoryError
from redis_history.integrations.importers import OnError, Transcript, read_transcripts
from redis_history.store.retry import RetryPolicy
from redis_history.types import AsyncNamespaceSubscription

SAMPLE = Path(__file__).with_name("sample.jsonl")
#: The conversation to which all agents report.
SHARED = "agents at work"
MAX_MESSAGES = 8  # the compressor shortens longer conversations
_KEEP_RECENT = 3
_TTL = 24 * 3600.0
_LOG = 10_000  # changes kept for the subscriber, which is in the same process as the compressor
_SMALL, _SHOWN_SECONDS = 500, 3.0  # a replay of fewer messages is slowed down, so that there is something to watch
_REPEATED = 10  # every tenth message of a conversation is sent again, as after a lost reply
_PATIENCE = 20.0  # seconds without an event, after which the rest counts as not delivered
_AT_THE_END = RetryPolicy(deadline=2.0)  # a user who interrupts the demo waits for the deletion

# Isolated (-I): neither the current folder nor the environment decides what is imported.
_AGENT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from redis_history.cli.replay import work; work()"


def work() -> None:
    """The program of an agent process: appends conversations, message by message in turn, and for each message a report
    to `SHARED`. Prints 1 for each append that was a repeat, else 0."""
    name, url, options, conversations, pause = pickle.load(sys.stdin.buffer)  # noqa: S301 -- the parent process wrote it
    agent, random = Participant(kind="agent", id=name), Random(name)  # noqa: S311
    try:
        with HistoryStore(url, **options) as store:
            for conversation in conversations:
                store.create_conversation(Conversation(conversation.conversation_id, title=conversation.title))
            for number in range(max(len(conversation.messages) for conversation in conversations)):
                for conversation in conversations:
                    for message in conversation.messages[number : number + 1]:
                        time.sleep(random.uniform(0, 2 * pause))
                        for _ in range(2 if number % _REPEATED == 1 else 1):
                            appended = store.append(conversation.conversation_id, message)
                            if not appended.duplicate:
                                report = f"I added message {number + 1} to {conversation.conversation_id}."
                                store.append(SHARED, assistant(report, participant=agent))
                            print(int(appended.duplicate), flush=True)
    except RedisHistoryError as error:
        sys.exit(str(error))


async def run_agent(
    name: str, url: str, options: dict[str, Any], conversations: Sequence[Transcript], pause: float = 0
) -> AsyncGenerator[bool, None]:
    """Run an agent process. Yields for each append whether it was a repeat. Raises RedisHistoryError if it fails."""
    argv = [sys.executable, "-I", "-c", _AGENT, json.dumps(import_path())]
    # In a new session, so that Ctrl-C reaches only this process, which then ends the agents.
    process = await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE, start_new_session=True)
    stdin, stdout = cast("StreamWriter", process.stdin), cast("StreamReader", process.stdout)
    try:
        with contextlib.suppress(ConnectionError):
            stdin.write(pickle.dumps((name, url, options, conversations, pause)))
            await stdin.drain()
        async for line in stdout:
            yield line == b"1\n"
        if status := await process.wait():
            raise RedisHistoryError(f"{name} ended with status {status}")
    finally:
        stdin.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def load(path: Path, limit: int | None, on_error: OnError) -> list[Transcript]:
    """The first `limit` conversations of a file, without summaries. Raises InvalidInputError for a file without any."""
    found: list[Transcript] = []
    for transcript in read_transcripts(path, on_error=on_error):
        if messages := tuple(message for message in transcript.messages if not message.is_summary):
            found.append(msgspec.structs.replace(transcript, messages=messages))
        if len(found) == limit:
            break
    if not found:
        raise InvalidInputError(f"--data: {path} has no conversations; see `redis-history import --help` for formats")
    return found


class Replay:
    """A replay of conversations, and its counts so far.

    Each agent writes some of the conversations concurrently, and for each message also a report to the conversation
    `SHARED`. `stored` of `total` messages are stored and `delivered` have reached the subscriber; `repeats` were sent
    again and ignored. `faults` counts changes that the subscriber got twice, out of order or not at all, and
    conversations that are not stored as they were sent. `news` are the latest messages that reached the subscriber,
    with their conversation ids.
    """

    def __init__(self, url: str, namespace: str, conversations: Sequence[Transcript], agents: int) -> None:
        self.conversations = conversations
        self.agents = min(agents, len(conversations))
        lengths = [len(conversation.messages) for conversation in conversations]
        self.total = 2 * sum(lengths)
        longest = max(sum(lengths[number :: self.agents]) for number in range(self.agents))
        self._pause = min(0.3, _SHOWN_SECONDS / longest) if sum(lengths) < _SMALL else 0.0
        self.stored = self.repeats = self.delivered = self.summaries = self.faults = 0
        self.news: deque[tuple[str, Message]] = deque(maxlen=100)
        self._url = url
        self._options: dict[str, Any] = {"namespace": namespace, "ttl": _TTL, "search": "off", "log_length": _LOG}
        self._revisions: Counter[str] = Counter()
        self._arrived = asyncio.Event()

    @property
    def ids(self) -> list[str]:
        """The ids of all conversations that it writes."""
        return [*(conversation.conversation_id for conversation in self.conversations), SHARED]

    @property
    def ok(self) -> bool:
        """Whether everything was stored and delivered as it was sent."""
        return self.stored == self.delivered == self.total and not self.faults

    async def run(self, *displays: Coroutine[Any, Any, None]) -> None:
        """Replay the conversations; `displays` run in the meantime. Deletes the conversations if it fails or is
        cancelled.

        Raises RedisHistoryError."""
        async with AsyncHistoryStore(self._url, **self._options) as store:
            try:
                await self._run(store, displays)
            except BaseException as error:
                with contextlib.suppress(RedisHistoryError):
                    async with AsyncHistoryStore(self._url, retry=_AT_THE_END, **self._options) as last:
                        for conversation_id in self.ids:
                            await last.delete_conversation(conversation_id)
                while isinstance(error, BaseExceptionGroup):
                    error = error.exceptions[0]
                raise error from None

    async def _run(self, store: AsyncHistoryStore, displays: Sequence[Coroutine[Any, Any, None]]) -> None:
        compressor = AsyncCompressor(
            store,
            extractive_summarizer(max_tokens=100),
            max_messages=MAX_MESSAGES,
            keep_recent=_KEEP_RECENT,
            look_interval=0.2,
        )
        async with store.subscribe_all() as changes, asyncio.TaskGroup() as tasks:
            endless = [tasks.create_task(one) for one in (self._follow(changes), *displays)]
            compressing = tasks.create_task(compressor.run())
            async with asyncio.TaskGroup() as agents:
                for number in range(self.agents):
                    agents.create_task(self._write(number))
            compressor.stop()
            await compressing
            await compressor.run_once()
            await self._check(store)
            for task in endless:
                task.cancel()

    async def _write(self, number: int) -> None:
        conversations = self.conversations[number :: self.agents]
        agent = run_agent(f"agent {number + 1}", self._url, self._options, conversations, self._pause)
        async with contextlib.aclosing(agent) as repeats:
            async for repeat in repeats:
                self.repeats += repeat
                self.stored += 0 if repeat else 2  # with its report

    async def _follow(self, changes: AsyncNamespaceSubscription) -> None:
        async for event in changes:
            name = event.conversation_id
            self.faults += event.revision != self._revisions[name] + 1
            self._revisions[name] = event.revision
            if isinstance(event, MessagesAppended):
                self.delivered += len(event.messages)
                self.news.extend((name, message) for message in event.messages)
            self.summaries += isinstance(event, HistoryCompacted)
            self._arrived.set()

    async def _check(self, store: AsyncHistoryStore) -> None:
        """Wait until the subscriber has everything, then compare what is stored with what was sent."""
        heads = {name: (await store.snapshot(name, limit=1)).cursor.revision for name in self.ids}
        with contextlib.suppress(TimeoutError):
            while any(self._revisions[name] < head for name, head in heads.items()):
                self._arrived.clear()
                await asyncio.wait_for(self._arrived.wait(), _PATIENCE)
        for conversation in self.conversations:
            stored = await store.get(conversation.conversation_id, include_archived=True)
            sent = [message.id for message in conversation.messages]
            self.faults += [message.id for message in stored if not message.is_summary] != sent
