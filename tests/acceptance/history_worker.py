"""A process with a history: told what to do by lines of JSON, and answering so; or saving until it is killed."""

from __future__ import annotations

import json
import sys
from typing import Any

from redis_history import HistoryStore, RedisHistory, RetryPolicy
from redis_history.errors import RedisHistoryError


def rounds(url: str, name: str, count: int) -> None:
    """Load, add and save; then, at a word, tell the order."""
    with HistoryStore(url) as store:
        say("ready")
        sys.stdin.readline()
        for number in range(count):
            history = RedisHistory(store)
            history.load("c")
            history.add_text("user", f"{name}-{number}")
            history.save("c")
        say("done")
        sys.stdin.readline()
        history.load("c")
        say([entry.text for entry in history.entries])


def killed(url: str, name: str, count: int) -> None:
    """Go on where the stored conversation ends; tell each number when it is acknowledged."""
    with HistoryStore(url) as store:
        history = RedisHistory(store)
        history.load("c")
        mine = [entry.text for entry in history.entries if entry.text.startswith(f"{name}-")]
        for number in range(len(mine), count, 3):
            for one in range(number, min(number + 3, count)):
                history.add_text("user", f"{name}-{one}")
            history.save("c")
            say(min(number + 3, count))


def served(url: str, name: str, count: int) -> None:
    """Autosave, by command."""
    store = HistoryStore(url, poll_interval=0.2, retry=RetryPolicy(deadline=1.0, longest_wait=0.2))
    history: Any = None
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        if command == "open":
            history = RedisHistory(store)
            history.on("error", lambda error: None)
            history.autosave(arguments[0])
        elif command == "add":
            history.add_text("user", arguments[0])
            continue  # no answer: the next command follows at once
        elif command == "clear":
            history.clear()
            continue
        elif command == "restore":
            history.restore(history.entries[-arguments[0] :])
            continue
        elif command == "reduce":
            history.reduce(max_entries=arguments[0])
            continue
        elif command == "flush":
            try:
                history.flush()
            except RedisHistoryError as error:
                say(type(error).__name__)
                continue
        elif command == "entries":
            say([entry.text for entry in history.get_snapshot()])
            continue
        elif command == "close":
            history.close()
        say("ok")
    store.close()


def exits(url: str, name: str, count: int) -> None:
    """Ends without closing anything."""
    history = RedisHistory(url)
    history.autosave("c")
    for number in range(count):
        history.add_text("user", f"{name}-{number}")


def exits_async(url: str, name: str, count: int) -> None:
    """The same, in an event loop."""
    import asyncio

    from redis_history import AsyncRedisHistory

    async def main() -> None:
        history = AsyncRedisHistory(url)
        await history.autosave("c")
        for number in range(count):
            history.add_text("user", f"{name}-{number}")

    asyncio.run(main())


def exits_abandoned(url: str, name: str, count: int) -> None:
    """The same, and the event loop was left in the middle of a save."""
    import asyncio

    from redis_history import AsyncRedisHistory

    history = AsyncRedisHistory(url)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(history.autosave("c"))
    save = loop.create_task(history._exclusively(lambda: asyncio.sleep(3600)))
    loop.run_until_complete(asyncio.sleep(0))
    assert not save.done()
    for number in range(count):
        history.add_text("user", f"{name}-{number}")


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
