"""A process with a history that a test starts: `history_worker <mode> <url> <name> <count>`."""

import asyncio
import json
import sys
from typing import Any

from redis_history import AsyncRedisHistory, HistoryStore, RedisHistory


def rounds(url: str, name: str, count: int) -> None:
    """Load, add and save; after the next line of input, print the texts."""
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
    """Continue where the stored conversation ends; print each number when it is acknowledged."""
    with HistoryStore(url) as store:
        history = RedisHistory(store)
        history.load("c")
        mine = [entry.text for entry in history.entries if entry.text.startswith(f"{name}-")]
        for number in range(len(mine), count, 3):
            for one in range(number, min(number + 3, count)):
                history.add_text("user", f"{name}-{one}")
            history.save("c")
            say(min(number + 3, count))


def exits(url: str, name: str, count: int) -> None:
    """Ends without closing anything."""
    history = RedisHistory(url)
    history.autosave("c")
    add(history, name, count)


def exits_async(url: str, name: str, count: int) -> None:
    """The same, in an event loop."""

    async def main() -> None:
        history = AsyncRedisHistory(url)
        await history.autosave("c")
        add(history, name, count)

    asyncio.run(main())


def add(history: Any, name: str, count: int) -> None:
    for number in range(count):
        history.add_text("user", f"{name}-{number}")


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], sys.argv[3], int(sys.argv[4]))
