"""The processes of a run: writers that do everything at random, streamers that write replies all the time along with a
compressor, and watchers that subscribe. Each ends when the file `stop` is in the folder and all is settled."""

import asyncio
import contextlib
import itertools
import logging
import random
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from redis_history import (
    AsyncCompressor,
    AsyncHistoryStore,
    Conversation,
    Cursor,
    HistoryStore,
    Message,
    RedisHistory,
    RetryPolicy,
    RunChanged,
    Usage,
    assistant,
    compression,
    system,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import OutcomeUnknownError, RedisHistoryError, RevisionConflictError
from redis_history.store.operations import Append
from redis_history.values import beside
from redis_history.values.events import BEGINNING
from redis_history.values.ids import rng
from tests.faults.deaths import die, mourn
from tests.faults.recording import UNKNOWN, Fork, Journal, form, lines, record

NAMESPACE = "faults"
#: Anything may happen to these, but that they end.
TALKS = ("talk 0", "talk 1", "talk 2")
#: Agents number their calls alike here, and the oldest messages leave.
CAPPED, CAP = "capped", 10
#: Shared histories follow it.
SHARED = "shared"
#: One agent at a time writes here.
RUNS = "runs"
#: Several summaries quote what is erased here.
QUOTED = "quoted"
#: It is compacted again and again, so that the index of its archives has several blocks.
LIVED = "lived"
NAMES = (*TALKS, CAPPED, SHARED, RUNS, QUOTED, LIVED)
#: The keys of this conversation expire.
MAYFLY, TTL = "mayfly", 3.0
#: Changes that a log keeps.
LOG = 1_000_000
#: Owners and agents of conversations.
OWNERS = (None, 1, "1", "ann")
RETRY = RetryPolicy(deadline=5.0, longest_wait=0.05)
PATIENT = RetryPolicy(deadline=60.0, longest_wait=0.1)
#: Seconds for a history or a watcher to see the end.
SETTLE = 60.0


class Settings(msgspec.Struct):
    folder: str
    url: str
    name: str
    seed: int = 1
    life: int = 0
    search: str = "off"
    durability: str = "server"
    asynchronous: bool = False
    deletes: bool = True
    keeps_time: bool = True

    def options(self, **more: Any) -> dict[str, Any]:
        found = {"namespace": NAMESPACE, "search": self.search, "poll_interval": 0.5, "log_length": LOG}
        if self.durability != "server":
            found |= {"durability": self.durability, "durability_timeout": 0.3}
        return {**found, **more}

    def is_there(self, name: str) -> bool:
        return (Path(self.folder) / name).exists()


class _Blocking:
    """An async store as the writers use the other kind."""

    def __init__(self, store: AsyncHistoryStore, runner: asyncio.Runner) -> None:
        self._store = store
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await method(*args, **options)

        return lambda *args, **options: self._runner.run(call(*args, **options))


class Writer:
    """Does one thing after the other, chosen by a seed."""

    def __init__(self, settings: Settings, journal: Journal, stack: contextlib.ExitStack) -> None:
        self._settings = settings
        self._journal = journal
        self._random = random.Random(f"{settings.seed} {settings.name} {settings.life}")
        self._number = 0
        self._store = self._open(stack)
        self._capped = self._open(stack, max_messages=CAP)
        self._mayfly = self._open(stack, ttl=TTL)
        self._forker = self._open(stack, ttl=TTL)
        self._seen: dict[str, list[Message]] = {}
        self._last: dict[str, Message] = {}
        self._added: list[str] = []
        self._former: Any = None
        self._history: RedisHistory | None = None
        if not settings.asynchronous:
            self._history = RedisHistory(self._open(stack, retry=PATIENT)).use(compression(_join))
            stack.callback(self._history.close)

    def _open(self, stack: contextlib.ExitStack, **more: Any) -> Any:
        options = self._settings.options(**{"retry": RETRY, **more})
        recorded = {"cap": more.get("max_messages"), "durable": self._settings.durability != "server"}
        if not self._settings.asynchronous:
            store = stack.enter_context(HistoryStore(self._settings.url, **options))
            return record(store, self._journal, **recorded)
        if not hasattr(self, "_runner"):
            self._runner = stack.enter_context(asyncio.Runner())
        opened = AsyncHistoryStore(self._settings.url, **options)
        stack.callback(lambda: self._runner.run(opened.aclose()))
        return _Blocking(record(opened, self._journal, **recorded), self._runner)

    def run(self) -> None:
        if self._history is not None:
            self._history.on("error", lambda error: None)
            while not self._history.autosaving:
                with contextlib.suppress(RedisHistoryError):
                    self._history.autosave(SHARED)
        names = list(self.WEIGHTS)
        if (self._settings.name, self._settings.life) == ("w0", 0):  # seldom otherwise, because it is much
            with contextlib.suppress(RedisHistoryError):
                self._copy()
        while not self._settings.is_there("stop"):
            [name] = self._random.choices(names, [self.WEIGHTS[one] for one in names])
            with contextlib.suppress(RedisHistoryError):  # it is in the journal
                getattr(self, f"_{name}")()
        added = self._flush()
        (Path(self._settings.folder) / f"idle {self._settings.name}").touch()
        _wait(lambda: self._settings.is_there("finish"), SETTLE * 3)
        if self._history is None:
            return
        with HistoryStore(self._settings.url, **self._settings.options(retry=PATIENT)) as store:
            _wait(lambda: self._entries() == [form(one) for one in store.get(SHARED)], SETTLE)
        self._journal.write("history", SHARED, self._entries())
        for message_id in added:
            self._journal.write("added", SHARED, message_id)

    def _flush(self) -> list[str]:
        """Save what was added to the shared history. Returns the ids."""
        if self._history is None:
            return []
        for _ in range(20):
            try:
                self._history.flush()
                return self._added
            except UNKNOWN:
                continue
            except RedisHistoryError:  # something is not saved, and never will be
                self._added.clear()
        raise AssertionError("a shared history could not be flushed")

    def _entries(self) -> list[Any]:
        return [form(one) for one in self._history.entries]

    # The operations. Each word is used for one message only, so that a search for it has one answer.

    WEIGHTS: ClassVar[dict[str, float]] = {
        "append": 20,
        "append_again": 3,
        "append_many": 6,
        "append_if": 3,
        "append_briefly": 2,
        "call_tools": 12,
        "update": 8,
        "pin": 2,
        "delete": 6,
        "erase": 5,
        "erase_quoted": 1.5,
        "clear": 1.5,
        "restore": 1.5,
        "record": 4,
        "create": 2,
        "delete_conversation": 2,
        "compact": 6,
        "expand": 2,
        "run": 3,
        "mayfly_": 3,
        "add": 6,
        "rewrite": 0.7,
        "get": 12,
        "snapshot": 5,
        "get_message": 4,
        "get_conversation": 2,
        "search": 2,
        "list": 1,
        "fork": 0.6,
        "fork_removed": 1.5,
        "live": 0.6,
        "copy": 0.1,
    }

    def _word(self) -> str:
        self._number += 1
        return f"w{self._settings.name}x{self._settings.life}x{self._number}"

    def _message(self, name: str = "") -> Message:
        word = self._word()
        make = self._random.choice([user, user, user, assistant, system])
        time = self._random.choice([None, None, None, None, "1999-01-01", "2001-02-03", "2200-01-01"])
        pinned = {"pinned": True} if self._random.random() < 0.1 else {}
        return make(f"t{word}", id=word, timestamp=time, metadata=pinned, usage=_usage(name, self._random))

    def _talk(self) -> str:
        brief = [_brief(), _brief(-1)] if self._settings.deletes else []
        return self._random.choice((*TALKS, TALKS[0], SHARED, *brief))

    def _any(self, name: str) -> Message | None:
        """A message that was there when this writer looked last."""
        seen = self._seen.get(name)
        return self._random.choice(seen) if seen else None

    def _append(self) -> None:
        name = self._talk()
        self._last[name] = self._message(name)
        self._store.append(name, self._last[name])

    def _append_again(self) -> None:
        name = self._talk()
        if name in self._last:
            self._store.append(name, self._last[name])

    def _append_many(self) -> None:
        name = self._talk()
        self._store.append_many(name, [self._message(name) for _ in range(self._random.randint(2, 5))])

    def _append_if(self) -> None:
        name = self._talk()
        revision = self._store.snapshot(name, limit=1).cursor.revision
        self._store.append(name, self._message(name), expected_revision=revision)

    def _call_tools(self) -> None:
        name, store = self._random.choice([(_calls(), self._store), (CAPPED, self._capped)])
        number = self._random.randint(1, 3)
        word = self._word()
        calls = [f"call_{number + index}" for index in range(self._random.randint(1, 2))]
        store.append(name, assistant(word, *(tool_use(one, "look") for one in calls), id=word))
        for one in self._random.sample(calls, len(calls)):
            word = self._word()
            answer = tool(tool_result(one, word), id=word)
            while not self._settings.is_there("stop"):  # a call whose result never comes could never be compacted
                with contextlib.suppress(RedisHistoryError):
                    store.append(name, answer)
                    break

    def _update(self) -> None:
        name = self._random.choice((self._talk(), self._talk(), _calls()))
        if (message := self._any(name)) is not None and not (message.tool_uses or message.tool_results):
            text = self._random.choice([f"t{self._word()}", message.text])
            fields: Any = {"role": message.role, "parts": text, "metadata": message.metadata}
            changed = Message(id=message.id, usage=_usage(name, self._random), **fields)
            self._store.update_message(name, changed)

    def _pin(self) -> None:
        """Not of calls: the model knows no pinned pairs."""
        name = self._talk()
        if (message := self._any(name)) is not None:
            self._store.pin(name, message.id, pinned=self._random.random() < 0.5)
        one = f"pin {self._settings.name}"  # fewer than the cap, which takes none of them
        pinned = {"pinned": True}
        self._capped.append(CAPPED, user(one, id=one, metadata=pinned))
        self._capped.update_message(CAPPED, user(self._word(), id=one, metadata=pinned))  # an edit keeps the mark

    def _delete(self) -> None:
        name = self._talk()
        if (message := self._any(name)) is not None:
            again = self._random.random()
            self._store.delete_messages(name, [message.id, *(one.id for one in self._seen[name][:2] if again < 0.3)])
            if again > 0.7:  # the same id lives again
                self._store.append(name, user(f"t{self._word()}", id=message.id))

    def _append_briefly(self) -> None:
        """A late copy must not bring it back."""
        name = self._talk()
        message = self._message(name)
        self._store.append(name, message)
        self._store.delete_messages(name, [message.id])

    def _erase(self) -> None:
        name = self._random.choice((self._talk(), _calls()))
        there = self._store.get(name, include_archived=self._random.random() < 0.7)
        seen = [one for one in there if one.role == "user" or one.is_summary]
        if seen:
            self._erase_these(name, self._random.sample(seen, min(len(seen), self._random.choice([1, 1, 2]))))

    def _erase_these(self, name: str, messages: list[Message]) -> None:
        begun = time.monotonic_ns()
        self._store.erase(name, [one.id for one in messages])
        for one in messages:
            if one.status == "complete" and one.text[:1] == "t" and " " not in one.text:
                self._journal.write("erased", one.text, begun)

    def _erase_quoted(self) -> None:
        message = user(f"t{self._word()}", id=self._word())
        self._store.append(QUOTED, message)
        for _ in range(2):
            self._store.append(QUOTED, user(f"t{self._word()}", id=self._word()))
            there = self._store.get(QUOTED)
            if not there:  # others have erased it all
                return
            summary = self._summarize(QUOTED, there, there)
        self._store.delete_messages(QUOTED, [summary])  # an erasure would expand it, and then the former one
        self._erase_these(QUOTED, [replace(message, status="complete")])

    def _live(self) -> None:
        for _ in range(self._random.randint(5, 20)):
            self._store.append(LIVED, user(f"t{self._word()}", id=self._word()))
            there = self._store.get(LIVED)
            word = self._word()
            text = " ".join([word, *(one.text[-100:] for one in there[-3:])])
            summary = user(text, id=word, metadata={"is_summary": True})
            self._store.compact(LIVED, through=there[-1], summary=summary, seen=there)
        every = self._store.get(LIVED, include_archived=True)
        if self._random.random() < 0.3:
            if self._random.random() < 0.5:  # else the newest summaries are expanded
                self._store.delete_messages(LIVED, [word])
            self._erase_these(LIVED, [self._random.choice(every)])

    def _fork_removed(self) -> None:
        """Check that removed content does not return through a fork that was paused during the removal."""
        if self._settings.asynchronous:
            return
        name, new, owner = (f"{MAYFLY} {self._word()}" for _ in range(3))
        secret, store = f"t{self._word()}", self._mayfly
        store.create_conversation(Conversation(name, user_id=owner))
        store.append_many(name, [user(secret, id="m0"), *(user("x", id=f"m{number}") for number in range(1, 9))])
        for number in range(4):
            store.compact(name, through=f"m{number}", summary=f"{secret} {number}")

        stopped, may_go_on, backend = threading.Event(), threading.Event(), self._forker.backend
        execute, steps, at = backend.execute, itertools.count(), self._random.randint(0, 15)

        def execute_and_stop(op: Any) -> Any:
            if next(steps) == at:
                stopped.set()
                may_go_on.wait(30)
            return execute(op)

        def fork() -> None:
            with contextlib.suppress(RedisHistoryError):
                self._forker.fork(name, new)

        def has_it() -> bool:
            return any(secret in one.text for one in store.get(new, include_archived=True))

        removals = [
            lambda: store.erase(name, ["m0"]),
            lambda: store.erase_user(owner),
            lambda: store.delete_conversation(name),
            lambda: store.clear(name),
            lambda: store.restore(name, []),
        ]
        forking = threading.Thread(target=fork)
        backend.execute = execute_and_stop
        forking.start()
        try:
            while forking.is_alive() and not stopped.wait(0.01):
                pass
            self._random.choice(removals)()
            had_it = has_it()
        finally:
            may_go_on.set()
            forking.join()
            backend.execute = execute
        if not had_it and has_it():
            self._journal.write("revived", f"{new} has what was removed from {name} before")
        store.delete_conversation(new)

    def _clear(self) -> None:
        self._store.clear(self._talk())

    def _restore(self) -> None:
        name = self._talk()
        self._store.restore(name, [*_undated(self._seen.get(name, [])[-3:]), self._message(name)])

    def _record(self) -> None:
        owner, agent = self._random.choice(OWNERS), self._random.choice([None, "bot"])
        self._store.update_conversation(self._talk(), title=self._word(), user_id=owner, agent_name=agent)

    def _create(self) -> None:
        owner = self._random.choice(OWNERS)
        self._store.create_conversation(Conversation(self._talk(), title=self._word(), user_id=owner))

    def _delete_conversation(self) -> None:
        """It may begin anew, but seldom does: of what was in between, nobody else knows."""
        if self._settings.deletes:
            self._store.delete_conversation(_brief(-2))
            if self._random.random() < 0.1:
                self._store.append(_brief(-2), self._message())

    def _run(self) -> None:
        if self._settings.asynchronous:
            return
        with self._store.run(RUNS, agent_name=self._settings.name, wait=0.2) as run:
            for _ in range(self._random.randint(1, 3)):
                run.append(self._message())
                time.sleep(self._random.uniform(0, 0.05))
            if self._former is not None:  # as if this process had stood still since its last run
                with contextlib.suppress(RedisHistoryError):
                    self._store.backend.execute(Append.batch(RUNS, [self._message()]).op.for_run(self._former))
            self._former = run._fence
            run.messages()
            if self._random.random() < 0.2:
                self._store.stop_run(RUNS)
                run.check()

    def _mayfly_(self) -> None:
        name = _mayfly()
        message = self._message()
        asked = time.monotonic()
        self._mayfly.append(name, message)
        there = self._mayfly.get_message(name, message.id)
        if there is None and self._settings.keeps_time and time.monotonic() - asked < 0.8 * TTL:
            self._journal.write("problem", f"{message.id} was gone from {name} before its time")

    def _compact(self) -> None:
        name = self._random.choice((self._talk(), _calls(), _calls()))
        messages = self._store.get(name)
        if len(messages) > 3:
            leaving = messages[: self._random.randrange(2, len(messages)) + 1]
            self._summarize(name, leaving, leaving if self._random.random() < 0.5 else None)

    def _summarize(self, name: str, messages: list[Message], seen: list[Message] | None) -> str:
        word = self._word()
        # Without `seen`, a summary may quote what is erased in the meantime.
        quoted = [one.text for one in seen or () if one.role != "system"]
        summary = user(" ".join([word, *quoted]), id=word, metadata={"is_summary": True})
        self._store.compact(name, through=messages[-1], summary=summary, seen=seen)
        return word

    def _expand(self) -> None:
        name = self._random.choice((self._talk(), _calls()))
        summaries = [one for one in self._store.get(name) if one.is_summary]
        if summaries:
            self._store.expand(name, summaries[-1].id)

    def _copy(self) -> None:
        """So many messages that an expansion needs a staging copy."""
        word = self._word()
        name = "long"
        self._store.restore(name, [user(f"{word}y{index}", id=f"{word}y{index}") for index in range(1000)])
        some = [user(f"{word}z{index}", id=f"{word}z{index}") for index in range(1000)]
        self._store.append_many(name, some)
        self._store.append_many(name, [user(f"{word}v{index}", id=f"{word}v{index}") for index in range(200)])
        summary = user(word, id=word, metadata={"is_summary": True})
        self._store.compact(name, through=some[99].id, summary=summary)
        self._store.expand(name, summary.id)
        self._store.snapshot(name, limit=2500)

    def _fork(self) -> None:
        name, new = self._random.choice((*TALKS, _calls())), f"{MAYFLY} {self._word()}"
        # The model knows no pairs, and where servers lose changes not all positions.
        end = self._any(name) if name in TALKS and self._settings.deletes and self._random.random() < 0.5 else None
        fork = Fork(name, end and end.position)
        number = self._journal.begin(fork, {})
        made = self._mayfly.fork(name, new, through=fork.through)
        live, every = self._mayfly.get(new), self._mayfly.get(new, include_archived=True)
        if self._mayfly.delete_conversation(new):  # it had not expired
            self._journal.end(number, fork, [made.forked_from.revision, [*map(form, live)], [*map(form, every)]], None)

    def _add(self) -> None:
        if self._history is not None:
            self._added.append(self._history.add_text("user", self._word()).id)

    def _rewrite(self) -> None:
        """The content of the history is gone then, saved or not. If others have changed it, it loads."""
        history = self._history
        if history is None:
            return
        self._added.clear()
        how = self._random.choice(["clear", "restore", "reduce"])
        if how == "clear":
            history.clear()
        elif how == "restore":
            history.restore([*_undated(history.entries[-2:]), self._message()])
        else:
            history.reduce(max_entries=5)
        with contextlib.suppress(RevisionConflictError):
            history.flush()

    def _get(self) -> None:
        name = self._random.choice((*NAMES, _calls()))
        self._seen[name] = self._store.get(name)

    def _snapshot(self) -> None:
        self._store.snapshot(self._random.choice(NAMES), limit=self._random.choice([1, 5, 500]))

    def _get_message(self) -> None:
        name = self._random.choice(NAMES)
        if (message := self._any(name)) is not None:
            self._store.get_message(name, message.id)

    def _get_conversation(self) -> None:
        self._store.get_conversation(self._random.choice(NAMES))

    def _search(self) -> None:
        name = self._random.choice(NAMES)
        if (message := self._any(name)) is not None:
            self._store.search(name, message.text or "look")

    def _list(self) -> None:
        self._store.list_conversations()


def _usage(name: str, chance: random.Random) -> Usage | None:
    """A usage in conversations that are not deleted, so that the totals of owners are those of their conversations."""
    if name not in TALKS or chance.random() < 0.4:
        return None
    return Usage(chance.randint(0, 300), chance.randint(0, 20), cost=chance.randint(0, 9) / 1000)


def _undated(messages: Any) -> list[Message]:
    """Messages as new ones. The model knows times of long ago, of long hence, and the present."""
    return [replace(one, timestamp=None, sequence=None) for one in messages if not one.is_summary]


def _calls() -> str:
    """Agents number their calls alike here, too; nothing is deleted. Now and then it is another one, because a call
    whose writer was killed never has its result, and what follows it can never be compacted."""
    return f"calls {int(time.monotonic() / 15)}"


def _brief(age: int = 0) -> str:
    return f"brief {int(time.monotonic() / 2) + age}"


def _mayfly() -> str:
    return f"{MAYFLY} {int(time.monotonic() / 5)}"


class Streamer:
    """Writes several replies at a time. Each says 0 1 2 3 and so on. A compressor runs with it."""

    def __init__(self, settings: Settings, journal: Journal, replies: int = 10) -> None:
        self._settings = settings
        self._journal = journal
        self._replies = replies
        self._random = random.Random(f"{settings.seed} {settings.name} {settings.life}")
        self._number = itertools.count()

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:

            async def opened(**more: Any) -> AsyncHistoryStore:
                options = self._settings.options(retry=RETRY, **more)
                store = await stack.enter_async_context(AsyncHistoryStore(self._settings.url, **options))
                durable = self._settings.durability != "server"
                return record(store, self._journal, cap=more.get("max_messages"), durable=durable)

            plain, capped, mayfly = await opened(), await opened(max_messages=CAP), await opened(ttl=TTL)
            compressor = AsyncCompressor(plain, _join, max_messages=40, look_interval=0.5, grace=1.0)
            async with asyncio.TaskGroup() as group:
                group.create_task(compressor.run())
                for _ in range(self._replies):
                    group.create_task(self._stream_on(plain, capped, mayfly))
                while not self._settings.is_there("stop"):
                    await asyncio.sleep(0.1)
                compressor.stop()
        (Path(self._settings.folder) / f"idle {self._settings.name}").touch()

    async def _stream_on(self, plain: Any, capped: Any, mayfly: Any) -> None:
        while not self._settings.is_there("stop"):
            choices = [(name, plain) for name in (*TALKS, SHARED, _calls())] + [(CAPPED, capped), (_mayfly(), mayfly)]
            name, store = self._random.choice(choices)
            number = f"r{self._settings.name}x{self._settings.life}x{next(self._number)}"
            with contextlib.suppress(RedisHistoryError, _GaveUpError):
                async with store.stream(name, id=number, interval=0.05) as reply:
                    for word in range(self._random.randint(2, 40)):
                        await reply.write(f"{word} ")
                        await asyncio.sleep(self._random.uniform(0, 0.1))
                        if self._settings.is_there("stop"):
                            break
                    if self._random.random() < 0.1:
                        raise _GaveUpError
                    await reply.finish(usage=_usage(name, self._random))


class _GaveUpError(Exception):
    pass


def _join(messages: Any, *_: Any) -> str:
    return " ".join(message.text for message in messages if message.text)[-2000:] or "nothing"


class Watcher:
    """Subscribes from the beginning, and again where it was if it was killed."""

    def __init__(self, settings: Settings, journal: Journal, path: Path) -> None:
        self._settings = settings
        self._journal = journal
        self._at = dict.fromkeys(NAMES, BEGINNING) if settings.asynchronous else {}
        for what, *fields in lines(path):
            if what == "event" and fields[0]["conversation"]:
                one = fields[0]
                self._at[one["conversation"]] = Cursor(one["epoch"], one["revision"], one["token"])

    def _took(self, event: Any) -> None:
        if event is not None and event.conversation_id.split()[0] != MAYFLY and not isinstance(event, RunChanged):
            self._journal.event(event)
            self._at[event.conversation_id] = event.cursor

    def run(self) -> None:
        """All conversations with one subscription."""
        with HistoryStore(self._settings.url, **self._settings.options(retry=PATIENT)) as store:
            self._journal.resumed()
            subscription = store.subscribe_all(after=self._at)
            end = float("inf")
            while time.monotonic() < end:
                event = None
                with contextlib.suppress(RedisHistoryError):
                    event = subscription.get(timeout=0.2)
                    self._took(event)
                if end == float("inf") and self._settings.is_there("finish"):
                    end = time.monotonic() + SETTLE
                if end != float("inf") and event is None:  # else there is more, and comparing takes a while
                    there = [one.conversation_id for one in store.list_conversations(limit=1000)]
                    names = [name for name in {*there, *self._at} if name.split()[0] != MAYFLY]
                    if {*names} <= self._at.keys() and self._is_at(
                        {name: store.snapshot(name, limit=1) for name in names}
                    ):
                        return

    async def follow(self) -> None:
        """One subscription for each conversation."""
        async with AsyncHistoryStore(self._settings.url, **self._settings.options(retry=PATIENT)) as store:
            self._journal.resumed()

            async def follow_one(name: str) -> None:
                subscription = store.subscribe(name, after=self._at[name])
                while True:
                    with contextlib.suppress(RedisHistoryError):
                        self._took(await subscription.get())

            tasks = [asyncio.create_task(follow_one(name)) for name in NAMES]
            while not self._settings.is_there("finish"):
                await asyncio.sleep(0.1)
                for task in tasks:
                    if task.done():
                        task.result()
            end = time.monotonic() + SETTLE
            while time.monotonic() < end:
                if self._is_at({name: await store.snapshot(name, limit=1) for name in NAMES}):
                    break
                await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _is_at(self, heads: dict[str, Any]) -> bool:
        return all(
            head.cursor.token == self._at[name].token or head.cursor.epoch == BEGINNING.epoch
            for name, head in heads.items()
        )


def _wait(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


def _distinct_tokens(settings: Settings) -> None:
    """Let no two tokens begin alike: the change log has 24 of 64 bits, by which the checker knows calls."""
    client = int("".join(filter(str.isdigit, settings.name)) or 0) % 16
    numbers = itertools.count(settings.life * 20_000)
    draw = rng.getrandbits

    def getrandbits(bits: int) -> int:
        if bits != 64:
            return draw(bits)
        return (client << 20 | next(numbers) % (1 << 20)) << 40 | draw(40)

    rng.getrandbits = getrandbits  # type: ignore[method-assign]


def main(role: str, raw: str) -> None:
    logging.disable(logging.CRITICAL)
    settings = msgspec.json.decode(raw, type=Settings)
    # About half of the messages, and all summaries, have their text stored separately, as if it were large.
    beside.LARGE_BYTES, beside.BEGINNING_BYTES = 9, 2
    folder = Path(settings.folder)
    if role != "watcher":
        _distinct_tokens(settings)
        # A history that is closed may say so of what it sent last.
        with contextlib.suppress(OutcomeUnknownError), contextlib.ExitStack() as stack:
            journal = Journal(folder / f"{settings.name}-{settings.life}.calls")
            if role == "writer":
                Writer(settings, journal, stack).run()
            elif role in ("doomed", "mourner"):
                store = partial(HistoryStore, settings.url, **settings.options())
                if role == "doomed":
                    die(store(), folder)
                else:
                    mourn(store, folder, partial(journal.write, "problem"))
            else:
                asyncio.run(Streamer(settings, journal).run())
        return
    path = folder / f"{settings.name}.events"
    journal = Journal(path)
    watcher = Watcher(settings, journal, path)
    if settings.asynchronous:
        asyncio.run(watcher.follow())
    else:
        watcher.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
