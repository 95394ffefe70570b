"""A process that appends messages m0, m1, … of a given size to a conversation, at a given rate."""

from __future__ import annotations

import sys
import time

from redis_history import HistoryStore, user


def main(url: str, namespace: str, name: str, count: str, rate: str, size: str) -> None:
    with HistoryStore(url, namespace=namespace) as store:
        began = time.monotonic()
        for number in range(int(count)):
            time.sleep(max(0.0, began + number / float(rate) - time.monotonic()))
            store.append(name, user("x" * int(size), id=f"m{number}"))


if __name__ == "__main__":
    main(*sys.argv[1:])
