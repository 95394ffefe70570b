"""Streams of short answers, whose reader learns of several runs in one read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, assistant, user
from redis_history.errors import ConflictError, RunStopped
from redis_history.integrations.ag_ui import events
from redis_history.integrations.ai_sdk import ui_message_stream
from redis_history.store.operations import ReadChanges
from tests.support.faces import act_after
from tests.support.servers import RealServer, until
from tests.web.chatting import CHAT

ENDS = {"completed": 0, "failed": 1, "stopped": 2, "empty": 0}
FORMS: Any = {
    "ai-sdk": (ui_message_stream, ["finish", "error", "abort"]),
    "ag-ui": (events, ["RUN_FINISHED", "RUN_ERROR", "RUN_FINISHED"]),
}


@pytest.fixture(params=["memory", "server"])
async def anywhere(
    request: pytest.FixtureRequest, server: RealServer, namespace: str
) -> AsyncIterator[AsyncHistoryStore]:
    url = "memory://" if request.param == "memory" else server.url
    async with AsyncHistoryStore(url, namespace=namespace) as store:
        yield store


@pytest.fixture(params=FORMS)
def protocol(request: pytest.FixtureRequest) -> Any:
    """The stream of a protocol, and its last events for an answer that is complete, failed or stopped."""
    return FORMS[request.param]


async def test_streams_have_nothing_of_other_runs(anywhere: AsyncHistoryStore, protocol: Any) -> None:
    form, ends = protocol
    runs = {how: anywhere.run(CHAT, wait=20) for how in ENDS}
    await anywhere.append(CHAT, user("Hi"))

    async def write(how: str) -> None:
        with suppress(RunStopped, ZeroDivisionError):
            async with runs[how] as run:
                if how != "empty":
                    await run.append_many([assistant("It "), assistant("is ")])
                    await run.append(assistant(how))
                if how == "failed":
                    raise ZeroDivisionError
                if how == "stopped":
                    await anywhere.stop_run(CHAT)
                    await run.wait_stop()

    async def rest(stream: Any) -> tuple[str, str]:
        found = [one if isinstance(one, dict) else one.model_dump() async for one in stream if one]
        return "".join(one.get("delta") or "" for one in found), found[-1]["type"]

    async def all_wait() -> bool:
        run = await anywhere.get_run(CHAT)
        return run is not None and len(run.waiting) == len(runs)

    async with anywhere.run(CHAT):
        writing = [asyncio.create_task(write(how)) for how in runs]
        await until(all_wait)
        early = {how: form(anywhere, CHAT, run_id=run.run_id) for how, run in runs.items()}
        for stream in early.values():
            await anext(stream)  # it waits
    await asyncio.gather(*writing)
    async with anywhere.run(CHAT) as run:
        await run.append(assistant("of another"))
        for how, ended in runs.items():
            wanted = "" if how == "empty" else f"It is {how}", ends[ENDS[how]]
            assert await rest(early[how]) == wanted
            assert await rest(form(anywhere, CHAT, run_id=ended.run_id)) == wanted  # too late


async def test_a_reply_that_grows_while_its_stream_learns_of_its_run_is_streamed_once(
    anywhere: AsyncHistoryStore, protocol: Any
) -> None:
    form, _ = protocol
    run = anywhere.run(CHAT, wait=20)

    async def is_waiting() -> bool:
        active = await anywhere.get_run(CHAT)
        return active is not None and len(active.waiting) == 1

    async with anywhere.run(CHAT):
        entering = asyncio.create_task(run.__aenter__())
        await until(is_waiting)
        stream = form(anywhere, CHAT, run_id=run.run_id)
        await anext(stream)  # it waits
    await entering
    async with run.stream(interval=0) as reply:
        await reply.write("one ")
        await until(lambda: has_text(anywhere, "one "))

        async def write() -> None:
            await reply.write("two ")
            await until(lambda: has_text(anywhere, "one two "))

        act_after(anywhere, ReadChanges, write)
        found = [await anext(stream)]
    await run.__aexit__(None, None, None)
    found += [one async for one in stream]
    assert "".join(map(delta_of, found)) == "one two "


async def test_a_reply_that_ends_while_its_stream_begins_is_streamed_to_its_end(
    anywhere: AsyncHistoryStore, protocol: Any
) -> None:
    async with anywhere.run(CHAT) as run:
        reply = run.stream(interval=0)
        await reply.open()
        await reply.write("one ")
        await until(lambda: has_text(anywhere, "one "))

        async def end() -> None:
            await reply.write("two ")
            await reply.aclose()

        act_after(anywhere, ReadChanges, end)
        stream = protocol[0](anywhere, CHAT)
        found = [await anext(stream)]
    found += [one async for one in stream]
    assert "".join(map(delta_of, found)) == "one two "


async def test_what_follows_a_reply_that_grows_is_streamed_after_its_end(store: AsyncHistoryStore) -> None:
    async with store.run(CHAT) as run, run.stream(interval=0) as reply:
        await reply.write("one ")
        await until(lambda: has_text(store, "one "))
        await run.append(assistant("three"))
        stream = ui_message_stream(store, CHAT)
        found = [await anext(stream)]
        await reply.write("two ")
    found += [one async for one in stream]
    assert "".join(map(delta_of, found)) == "one two three"


@pytest.mark.parametrize("change", ["delete", "clear"])
async def test_a_client_reads_again_if_the_whole_answer_is_removed(store: AsyncHistoryStore, change: str) -> None:
    async with store.run(CHAT) as run:
        await run.append(assistant("A secret.", id="a1"))
        stream = ui_message_stream(store, CHAT)
        while delta_of(await anext(stream)) != "A secret.":
            pass
        await (store.clear(CHAT) if change == "clear" else store.delete_messages(CHAT, ["a1"]))
    with pytest.raises(ConflictError):
        [one async for one in stream]


async def has_text(store: AsyncHistoryStore, text: str) -> bool:
    return [one.text for one in await store.get(CHAT)] == [text]


def delta_of(chunk: Any) -> str:
    return (chunk.get("delta") if isinstance(chunk, dict) else getattr(chunk, "delta", "")) or ""
