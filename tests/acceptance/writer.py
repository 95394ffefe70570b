"""A writer process: appends its messages one by one, with blind repeats, until it is done or killed."""

from __future__ import annotations

import random

from redis_history import HistoryStore, user


def main(url: str, name: str, count: int) -> None:
    chance = random.Random(name)
    with HistoryStore(url) as store:
        for number in range(count):
            message = user(f"{name}-{number}", id=f"{name}-{number}")
            store.append("c", message)
            while chance.random() < 0.1:
                assert store.append("c", message).duplicate
