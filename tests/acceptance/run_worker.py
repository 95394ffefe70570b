"""A worker that takes runs repeatedly until it is killed or its time is over: a process or a thread."""

import asyncio
import random
import time
from typing import Any, NamedTuple

from redis_history import AsyncHistoryStore, HistoryStore, RetryPolicy, assistant
from redis_history.errors import BackendError, ConflictError, RunBusyError

RETRY = RetryPolicy(deadline=3.0, longest_wait=0.3)
WAIT = 60.0
HANG = 9.0


class Refused(NamedTuple):
    """Waits in vain: worker, conversation, start and end."""

    worker: str
    room: str
    asked: float
    ended: float


def work(where: dict[str, Any], name: str, seed: int, rooms: int, seconds: float, tasks: int) -> list[Refused]:
    """With one task in this thread, with more in an event loop, which hangs now and then for longer than the lease.
    `where`: the options of the store that say where its data are."""
    chance, ends = random.Random(seed), time.monotonic() + seconds
    refused: list[Refused] = []
    where |= {"search": "off", "log_length": 100_000} | ({} if "backend" in where else {"retry": RETRY})
    if tasks == 1:
        with HistoryStore(**where) as store:
            while time.monotonic() < ends:
                _turn(store, name, chance, rooms, refused)
    else:
        asyncio.run(_work(where, name, chance, rooms, ends, tasks, refused))
    return refused


def _turn(store: HistoryStore, name: str, chance: random.Random, rooms: int, refused: list[Refused]) -> None:
    asked, steps, room = time.time(), chance.randrange(1, 5), f"c{chance.randrange(rooms)}"
    try:
        with store.run(room, agent_name=name, wait=WAIT) as run:
            for number in range(steps):
                run.append(assistant(f"{asked} {number} {steps}", trace_id=run.run_id))
                time.sleep(chance.random() / 20)
            if chance.random() < 0.3:
                with run.stream(trace_id=run.run_id, interval=0.02) as reply:
                    reply.write(f"{asked} ")
                    time.sleep(chance.random() / 10)
                    reply.write("0 0")
    except RunBusyError:
        refused.append(Refused(name, room, asked, time.time()))
    except (BackendError, ConflictError):
        pass


async def _work(
    where: dict[str, Any],
    name: str,
    chance: random.Random,
    rooms: int,
    ends: float,
    tasks: int,
    refused: list[Refused],
) -> None:
    async def turn(store: AsyncHistoryStore) -> None:
        asked, steps, room = time.time(), chance.randrange(1, 5), f"c{chance.randrange(rooms)}"
        try:
            async with store.run(room, agent_name=name, wait=WAIT) as run:
                for number in range(steps):
                    await run.append(assistant(f"{asked} {number} {steps}", trace_id=run.run_id))
                    await asyncio.sleep(chance.random() / 20)
                if chance.random() < 0.004:
                    await store.append("hangs", assistant(f"{name} {time.time()}"))
                    time.sleep(HANG)  # noqa: ASYNC251 -- the loop hangs
                if chance.random() < 0.3:
                    async with run.stream(trace_id=run.run_id, interval=0.02) as reply:
                        await reply.write(f"{asked} ")
                        await asyncio.sleep(chance.random() / 10)
                        await reply.write("0 0")
        except RunBusyError:
            refused.append(Refused(name, room, asked, time.time()))
        except (BackendError, ConflictError):
            await asyncio.sleep(0.05)

    async def turns(store: AsyncHistoryStore) -> None:
        while time.monotonic() < ends:
            await turn(store)

    async with AsyncHistoryStore(**where) as store:
        await asyncio.gather(*(turns(store) for _ in range(tasks)))
