"""The agent of the fleet: `redis-history work agent:answer`. In place of a model, it repeats the question."""

import asyncio
import os

from redis_history import AsyncHistoryStore

store = AsyncHistoryStore(
    os.environ.get("REDIS_HISTORY_URL", "embedded://"), namespace=os.environ.get("REDIS_HISTORY_NAMESPACE", "fleet")
)


async def answer(run):
    if run.turn.interrupted is not None:  # the worker of the attempt before has died: begin anew
        await store.delete_messages(run.conversation_id, [run.turn.interrupted.id])
    question = " ".join(message.text for message in run.turn.messages)
    async with run.stream() as reply:
        for word in question.split():  # the tokens of your model
            await reply.write(f"{word} ")
            await asyncio.sleep(0.1)
