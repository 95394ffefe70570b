"""The processes of a run: writers that do everything at random, and watchers that subscribe. Run as a program, with a
folder and a map of settings as JSON; each ends when the file `stop` is in the folder and all is settled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from redis_history import (
    AsyncHistoryStore,
    Conversation,
    Cursor,
    HistoryStore,
    Message,
    RedisHistory,
    RetryPolicy,
    assistant,
    system,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history._ids import rng
from redis_history.errors import OutcomeUnknownError, RedisHistoryError
from redis_history.events import BEGINNING
from tests.faults.recording import UNKNOWN, Journal, form, lines, record

NAMESPACE = "faults"
#: Anything may happen to these.
TALKS = ("talk 0", "talk 1", "talk 2")
#: Agents number their calls alike here, and the oldest messages leave.
CAPPED, CAP = "capped", 10
#: Shared histories follow it.
SHARED = "shared"
NAMES = (*TALKS, CAPPED, SHARED)
RETRY = RetryPolicy(deadline=5.0, longest_wait=0.05)
PATIENT = RetryPolicy(deadline=60.0, longest_wait=0.1)
#: Seconds for a history or a watcher to see the end.
SETTLE = 30.0


class Settings(msgspec.Struct):
    folder: str
    url: str
    name: str
    life: int = 0
    search: str = "off"
    durability: str = "server"
    log_length: int = 1000
    asynchronous: bool = False

    def options(self, **more: Any) -> dict[str, Any]:
        found = {"namespace": NAMESPACE, "search": self.search, "poll_interval": 0.5, "log_length": self.log_length}
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
        self._random = random.Random(f"{settings.name} {settings.life}")
        self._number = 0
        self._store = self._open(stack)
        self._capped = self._open(stack, max_messages=CAP)
        self._seen: dict[str, list[Message]] = {}
        self._last: dict[str, Message] = {}
        self._added: list[str] = []
        self._history: RedisHistory | None = None
        if not settings.asynchronous:
            self._history = RedisHistory(self._open(stack, retry=PATIENT))
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
        """Save what was added to the shared history; the ids."""
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
        assert self._history is not None
        return [form(one) for one in self._history.entries]

    # The operations. Each word is used for one message only, so that a search for it has one answer.

    WEIGHTS: ClassVar[dict[str, float]] = {
        "append": 20,
        "append_again": 3,
        "append_many": 6,
        "append_if": 3,
        "call_tools": 12,
        "update": 8,
        "delete": 8,
        "clear": 2,
        "restore": 2,
        "record": 4,
        "create": 2,
        "delete_conversation": 2,
        "compact": 5,
        "expand": 3,
        "add": 6,
        "get": 12,
        "snapshot": 5,
        "get_message": 4,
        "get_conversation": 2,
        "search": 2,
        "list": 1,
        "copy": 0.1,
    }

    def _word(self) -> str:
        self._number += 1
        return f"w{self._settings.name}x{self._settings.life}x{self._number}"

    def _message(self) -> Message:
        word = self._word()
        make = self._random.choice([user, user, user, assistant, system])
        time = self._random.choice([None, None, None, None, "1999-01-01", "2001-02-03", "2200-01-01"])
        return make(word, id=word, timestamp=time)

    def _talk(self) -> str:
        return self._random.choice((*TALKS, TALKS[0], SHARED))

    def _calls(self) -> str:
        """Agents number their calls alike here, too; nothing is deleted. Now and then it is another one, because a
        call whose writer was killed never has its result, and what follows it can never be compacted."""
        return f"calls {int(time.monotonic() / 15)}"

    def _any(self, name: str) -> Message | None:
        """A message that was there when this writer looked last."""
        seen = self._seen.get(name)
        return self._random.choice(seen) if seen else None

    def _append(self) -> None:
        name = self._talk()
        self._last[name] = self._message()
        self._store.append(name, self._last[name])

    def _append_again(self) -> None:
        name = self._talk()
        if name in self._last:
            self._store.append(name, self._last[name])

    def _append_many(self) -> None:
        self._store.append_many(self._talk(), [self._message() for _ in range(self._random.randint(2, 5))])

    def _append_if(self) -> None:
        name = self._talk()
        revision = self._store.snapshot(name, limit=1).cursor.revision
        self._store.append(name, self._message(), expected_revision=revision)

    def _call_tools(self) -> None:
        name, store = self._random.choice([(self._calls(), self._store), (CAPPED, self._capped)])
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
        name = self._random.choice((self._talk(), self._talk(), self._calls()))
        if (message := self._any(name)) is not None and not (message.tool_uses or message.tool_results):
            text = self._random.choice([self._word(), message.text])
            changed = Message(id=message.id, role=message.role, parts=text, metadata=message.metadata)  # type: ignore[arg-type]
            self._store.update_message(name, changed)

    def _delete(self) -> None:
        name = self._talk()
        if (message := self._any(name)) is not None:
            again = self._random.random()
            self._store.delete_messages(name, [message.id, *(one.id for one in self._seen[name][:2] if again < 0.3)])
            if again > 0.7:  # the same id lives again
                self._store.append(name, user(self._word(), id=message.id))

    def _clear(self) -> None:
        self._store.clear(self._talk())

    def _restore(self) -> None:
        name = self._talk()
        seen = [one for one in self._seen.get(name, [])[-3:] if not one.is_summary]
        kept = [replace(one, timestamp=None, sequence=None) for one in seen]
        self._store.restore(name, [*kept, self._message()])

    def _record(self) -> None:
        self._store.update_conversation(self._talk(), title=self._word())

    def _create(self) -> None:
        self._store.create_conversation(Conversation(self._talk(), title=self._word()))

    def _delete_conversation(self) -> None:
        self._store.delete_conversation(self._random.choice(TALKS))

    def _compact(self) -> None:
        name = self._random.choice((self._talk(), self._calls(), self._calls()))
        messages = self._store.get(name)
        if len(messages) > 3:
            index = self._random.randrange(2, len(messages))
            seen = messages[: index + 1] if self._random.random() < 0.5 else None
            word = self._word()
            summary = user(word, id=word, metadata={"is_summary": True})
            self._store.compact(name, through=messages[index], summary=summary, seen=seen)

    def _expand(self) -> None:
        name = self._random.choice((self._talk(), self._calls()))
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

    def _add(self) -> None:
        if self._history is not None:
            self._added.append(self._history.add_text("user", self._word()).id)

    def _get(self) -> None:
        name = self._random.choice((*NAMES, self._calls()))
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


class Watcher:
    """Subscribes from the beginning, and again where it was if it was killed."""

    def __init__(self, settings: Settings, journal: Journal, path: Path) -> None:
        self._settings = settings
        self._journal = journal
        self._at = dict.fromkeys(NAMES, BEGINNING) if settings.asynchronous else {}
        for what, *fields in lines(path):
            if what == "event":
                self._at[fields[0]] = Cursor(*fields[2:5])

    def _took(self, event: Any) -> None:
        if event is not None:
            self._journal.event(event)
            self._at[event.conversation_id] = event.cursor

    def run(self) -> None:
        """All conversations with one subscription."""
        with HistoryStore(self._settings.url, **self._settings.options(retry=PATIENT)) as store:
            subscription = store.subscribe_all(after=self._at)
            end = float("inf")
            while time.monotonic() < end:
                with contextlib.suppress(RedisHistoryError):
                    self._took(subscription.get(timeout=0.2))
                if end == float("inf") and self._settings.is_there("finish"):
                    end = time.monotonic() + SETTLE
                if end != float("inf"):
                    there = {one.conversation_id for one in store.list_conversations(limit=1000)}
                    if there <= self._at.keys() and self._is_at(
                        {name: store.snapshot(name, limit=1) for name in self._at}
                    ):
                        return

    async def follow(self) -> None:
        """One subscription for each conversation."""
        async with AsyncHistoryStore(self._settings.url, **self._settings.options(retry=PATIENT)) as store:

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
    numbers = itertools.count(settings.life * 50_000)
    draw = rng.getrandbits

    def getrandbits(bits: int) -> int:
        if bits != 64:
            return draw(bits)
        return (client << 20 | next(numbers) % (1 << 20)) << 40 | draw(40)

    rng.getrandbits = getrandbits  # type: ignore[method-assign]


def main(role: str, raw: str) -> None:
    logging.disable(logging.CRITICAL)
    settings = msgspec.json.decode(raw, type=Settings)
    folder = Path(settings.folder)
    if role == "writer":
        _distinct_tokens(settings)
        # A history that is closed may say so of what it sent last.
        with contextlib.suppress(OutcomeUnknownError), contextlib.ExitStack() as stack:
            Writer(settings, Journal(folder / f"{settings.name}-{settings.life}.calls"), stack).run()
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
