"""A worker of the storm of turns, and the answers that it gives: a process that is killed and suspended."""

import asyncio
import os
import random
import signal
from typing import Any

from redis_history import AsyncHistoryStore, AsyncWorker, RetryPolicy

#: After so many failures a turn is parked, which must not happen here: each turn is answered. One attempt in 20 fails, and
#: those under way when a worker dies.
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
    """Answer turns until SIGTERM. Each attempt adds a line to the file `notes`: its run, its number and its questions."""
    asyncio.run(_work(where, name, seed, notes))
