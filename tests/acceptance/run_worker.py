"""A process that takes runs again and again until it is killed, or its time is over."""

from __future__ import annotations

import asyncio
import random
import time

from redis_history import AsyncHistoryStore, HistoryStore, RetryPolicy, assistant
from redis_history.errors import BackendError, ConflictError

RETRY = RetryPolicy(deadline=3.0, longest_wait=0.3)


def work(url: str, name: str, seed: int, rooms: int, seconds: float, tasks: int) -> None:
    """With one task in this thread, with more in an event loop, which hangs now and then for longer than the lease."""
    chance, ends = random.Random(seed), time.monotonic() + seconds
    if tasks == 1:
        with HistoryStore(url, search="off", retry=RETRY, log_length=100_000) as store:
            while time.monotonic() < ends:
                _turn(store, name, chance, rooms)
    else:
        asyncio.run(_work(url, name, chance, rooms, ends, tasks))


def _turn(store: HistoryStore, name: str, chance: random.Random, rooms: int) -> None:
    asked, steps = time.time(), chance.randrange(1, 5)
    try:
        with store.run(f"c{chance.randrange(rooms)}", agent_name=name, wait=30) as run:
            for number in range(steps):
                run.append(assistant(f"{asked} {number} {steps}", trace_id=run.run_id))
                time.sleep(chance.random() / 10)
            if chance.random() < 0.3:
                with run.stream(trace_id=run.run_id, interval=0.02) as reply:
                    reply.write(f"{asked} ")
                    time.sleep(chance.random() / 5)
                    reply.write("0 0")
    except (BackendError, ConflictError):
        pass


async def _work(url: str, name: str, chance: random.Random, rooms: int, ends: float, tasks: int) -> None:
    async with AsyncHistoryStore(url, search="off", retry=RETRY, log_length=100_000) as store:

        async def turns() -> None:
            while time.monotonic() < ends:
                asked, steps = time.time(), chance.randrange(1, 5)
                try:
                    async with store.run(f"c{chance.randrange(rooms)}", agent_name=name, wait=30) as run:
                        for number in range(steps):
                            await run.append(assistant(f"{asked} {number} {steps}", trace_id=run.run_id))
                            await asyncio.sleep(chance.random() / 10)
                        if chance.random() < 0.004:
                            time.sleep(9)  # noqa: ASYNC251 -- the loop hangs
                        if chance.random() < 0.3:
                            async with run.stream(trace_id=run.run_id, interval=0.02) as reply:
                                await reply.write(f"{asked} ")
                                await asyncio.sleep(chance.random() / 5)
                                await reply.write("0 0")
                except (BackendError, ConflictError):
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(turns() for _ in range(tasks)))
