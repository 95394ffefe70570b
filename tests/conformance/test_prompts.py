"""`assemble_prompt` on every backend, sync and async."""

import asyncio
import base64
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import AsyncHistoryStore, Message, assemble_messages, assemble_prompt, user
from redis_history.errors import ConfigurationError, InvalidConversationIdError, InvalidInputError
from redis_history.formats import from_anthropic
from redis_history.store.operations.keys import Keyspace, content_name


@pytest.mark.smoke
async def test_the_newest_of_a_scope_are_loaded(store: Any) -> None:
    said = [user(str(n), id=str(n), scope="dm" if n % 2 else "channel") for n in range(20)]
    await store.append_many("c", said)
    prompt = await assemble_prompt(store, "c", "a", "A", {"scope": "dm", "max_turns_to_load": 3})
    assert [message.id for message in prompt.messages] == ["15", "17", "19"]
    assert prompt.report.loaded == 3


@pytest.mark.backends("memory")
async def test_bad_input_is_refused(store: Any) -> None:
    for error, arguments in (
        (InvalidConversationIdError, ("", "a", "A")),
        (InvalidInputError, ("c", "", "A")),
        (InvalidInputError, ("c", "a", " ")),
        (ConfigurationError, ("c", "a", "A", {"token_budge": 3})),
        (ConfigurationError, ("c", "a", "A", {"token_budget": 0})),
        (InvalidInputError, ("c", "a", "A", {}, "no function")),
    ):
        with pytest.raises(error):
            await assemble_prompt(store, *arguments)  # type: ignore[call-overload]


async def test_a_summarizer_that_blocks_does_not_block_the_event_loop(store: Any) -> None:
    await store.append_many("c", [user(str(n)) for n in range(50)])
    loop, went_on, where = asyncio.get_running_loop(), threading.Event(), []

    def summarize(messages: Sequence[Message], previous_summary: str | None) -> str:
        loop.call_soon_threadsafe(went_on.set)
        where.append(threading.current_thread())
        assert went_on.wait(10), "the event loop waits for the summarizer"
        return "They counted."

    target = getattr(store, "_target", store)
    if isinstance(target, AsyncHistoryStore):
        prompt = await assemble_prompt(target, "c", "a", None, None, summarize)
    else:
        prompt = await asyncio.to_thread(assemble_prompt, target, "c", "a", None, None, summarize)
    assert prompt.messages[0].is_summary
    assert where[0] is not threading.main_thread()


def with_image(number: int) -> Message:
    """A question with a large image, some 2,000 tokens."""
    data = base64.b64encode(bytes([number]) * 60_000).decode()
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    [message] = from_anthropic([{"role": "user", "content": [image, {"type": "text", "text": str(number) * 4_000}]}])
    return replace(message, id=str(number))


@pytest.mark.parametrize("budget", [1, 5_000, 9_000, None])
async def test_only_contents_of_the_prompt_are_read(
    store: Any, stores: Any, server_of: Any, namespace: str, budget: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    await store.append_many("c", [with_image(number) for number in range(6)])
    options: dict[str, Any] = {"token_budget": budget, "addressed_only_mode": False}
    expected = assemble_messages(await store.get("c"), "a", options=options)
    left_out = {one.message_id for one in expected.report.left_out}
    assert len(left_out) == {1: 5, 5_000: 4, 9_000: 2, None: 0}[budget]
    if stores.backend != "memory":  # a missing content would be logged and replaced by a note
        for node in getattr(server_of(stores.kind), "nodes", [server_of(stores.kind)]):
            for name in left_out:
                pattern = b"%b:b:%b*" % (Keyspace(namespace).patterns[0], content_name(name, ""))
                for key in node.watcher.scan_iter(match=pattern, count=1000):
                    node.watcher.unlink(key)
    target = getattr(store, "_target", store)
    found = assemble_prompt(target, "c", "a", options=options)
    assert (await found if isinstance(target, AsyncHistoryStore) else found) == expected
    assert "lacks a content" not in caplog.text
