"""Processes of workers: the storm of turns kills and suspends some, and other tests observe many."""

import asyncio
import contextlib
import os
import random
import signal
import time
from typing import Any

from redis_history import AsyncHistoryStore, AsyncWorker, RetryPolicy, assistant
from redis_history.store.operations import LookForTurns, TakeRun

#: After this many failures a turn is parked, which must not happen here: each turn is answered. One attempt in 20
#: fails, and those under way when a worker dies.
ATTEMPTS = 10
RETRY = RetryPolicy(deadline=20.0, longest_wait=0.3)


def options(where: dict[str, Any]) -> dict[str, Any]:
    return {**where, "search": "off", "log_length": 100_000, "retry": RETRY}


async def _work(where: dict[str, Any], name: str, seed: int, notes: str) -> None:
    chance = random.Random(seed)
    noted = os.open(notes, os.O_WRONLY | os.O_APPEND)

    async def answer(run: Any) -> None:
        """Answer all questions of the turn by their ids, sometimes slowly, sometimes with an error."""
        asked = [message.id for message in run.turn.messages]
        os.write(noted, f"{run.run_id} {run.turn.attempt} {' '.join(asked)}\n".encode())
        fields = {"trace_id": run.run_id, "metadata": {"attempt": run.turn.attempt, "worker": name}}
        if chance.random() < 0.05:
            raise ValueError("an answer that fails")
        async with run.stream(interval=0.02, **fields) as reply:
            for message_id in asked:
                await reply.write(message_id + " ")
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.random() / 10)
        if chance.random() < 0.2:
            taken = [message.id for message in await run.messages() if message.role == "user"]
            async with run.stream(interval=0.02, **fields) as reply:
                await reply.write(" ".join(taken))

    async with AsyncHistoryStore(**options(where)) as store:
        worker = AsyncWorker(store, answer, concurrency=8, attempts=ATTEMPTS, first_wait=0.1, longest_wait=1.0)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop, 1.0)
        await worker.run()


def answer_turns(where: dict[str, Any], name: str, seed: int, notes: str) -> None:
    """Answer turns until SIGTERM. Each attempt adds a line to the file `notes`: its run, its number, its questions."""
    asyncio.run(_work(where, name, seed, notes))


async def _work_in_many(url: str, count: int, per_user: int | None, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = {"claims": [], "looks": [], "answers": []}

    def watch(backend: Any) -> None:
        execute = backend.execute

        async def watched(op: Any) -> Any:
            if isinstance(op, TakeRun | LookForTurns):
                found["claims" if isinstance(op, TakeRun) else "looks"].append(time.monotonic())
            return await execute(op)

        backend.execute = watched

    async def answer(run: Any) -> None:
        began = time.monotonic()
        await run.append(assistant("!", id=run.run_id))
        await asyncio.sleep(seconds)
        found["answers"].append((began, time.monotonic(), run.conversation_id))

    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for _ in range(count):
            store = await stack.enter_async_context(AsyncHistoryStore(url, search="off"))
            watch(store.backend)
            workers.append(AsyncWorker(store, answer, concurrency=1, per_user=per_user))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, lambda: [worker.stop() for worker in workers])
        await asyncio.gather(*(worker.run() for worker in workers))
    return found


def answer_in_many(url: str, count: int, per_user: int | None, seconds: float) -> dict[str, Any]:
    """Answer turns with many workers, each with its own connections, until SIGTERM. Returns when they tried to take a
    turn ("claims") and looked for turns ("looks"), and begin, end and conversation of each answer ("answers"), with
    times of the monotonic clock."""
    return asyncio.run(_work_in_many(url, count, per_user, seconds))
