"""Recording with failures and with concurrent calls."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, HistoryStore, Message, RetryPolicy, capture, user
from redis_history.errors import (
    BackendUnavailableError,
    ConfigurationError,
    InvalidConversationIdError,
    InvalidInputError,
)
from tests.support.servers import RealServer, wait_until


@pytest.mark.proves("capture")
async def test_a_lost_server_does_not_affect_the_agent(
    own_server: Callable[..., RealServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = own_server()
    errors: list[tuple[Exception, str | None, list[str]]] = []
    quick = RetryPolicy(deadline=0.0)

    def on_error(error: Exception, conversation_id: str | None, messages: list[Message]) -> None:
        errors.append((error, conversation_id, [message.text for message in messages]))
        raise KeyError("its own error")

    async with AsyncHistoryStore(server.url, retry=quick) as async_store:
        record = capture(async_store, "c", on_error=on_error)
        logged = capture(async_store, "c")

        @record
        async def agent(message: str) -> str:
            return message.upper()

        assert await agent("hi") == "HI"
        server.close()
        with caplog.at_level(logging.WARNING, "redis_history"):
            assert await agent("hi") == "HI"
            assert await logged(agent)("hi") == "HI"
    assert [(conversation_id, texts) for _, conversation_id, texts in errors[:2]] == [("c", ["hi"]), ("c", ["HI"])]
    assert all(isinstance(error, BackendUnavailableError) for error, *_ in errors)
    assert (record.recorded, record.failed) == (2, 4)
    assert (logged.recorded, logged.failed) == (0, 2)
    assert isinstance(logged.last_error, BackendUnavailableError)
    assert sum("is not recorded" in one.message for one in caplog.records) == 2
    assert sum("on_error" in one.message for one in caplog.records) == 4


@pytest.mark.proves("capture")
@pytest.mark.parametrize("back", [True, False])
def test_a_stream_goes_on_while_the_server_is_down(own_server: Callable[..., RealServer], back: bool) -> None:
    """Its text is whole if the server comes back before the end; otherwise the answer is reported."""
    server = own_server()
    with HistoryStore(server.url, retry=RetryPolicy(deadline=10.0 if back else 0.0)) as store:
        record = capture(store, "c")

        @record
        def agent(message: str) -> Iterator[str]:
            yield "One "
            wait_until(lambda: store.get("c")[-1].text == "One ", "the first text")
            server.kill()
            for _ in range(3):
                yield "more "
            if back:
                server.start()
            yield "end"

        assert len(list(agent("hi"))) == 5
        if back:
            assert (store.get("c")[-1].text, store.get("c")[-1].status) == ("One more more more end", "complete")
            assert (record.recorded, record.failed) == (2, 0)
            return
        assert (record.recorded, record.failed) == (1, 1)
        assert isinstance(record.last_error, BackendUnavailableError)
        assert len(list(record(lambda message: iter(message))("nobody"))) == 6
        assert (record.recorded, record.failed) == (1, 3)


def test_unreadable_calls_are_reported(store: HistoryStore) -> None:
    errors: list[tuple[type[Exception], str | None]] = []

    def on_error(error: Exception, conversation_id: str | None, messages: list[Message]) -> None:
        errors.append((type(error), conversation_id))

    def raises(*args: Any) -> Any:
        raise ZeroDivisionError

    def agent(message: Any = None) -> Any:
        return message

    made: list[tuple[Any, Any]] = [
        (capture(store, "c", on_error=on_error)(agent), 7),  # neither is a message
        (capture(store, on_error=on_error)(agent), "no conversation"),
        (capture(store, lambda message: "", on_error=on_error)(agent), "no id"),
        (capture(store, "c", inbound=raises, on_error=on_error)(agent), "x"),
        (capture(store, "d", outbound=raises, on_error=on_error)(agent), "x"),
        (capture(store, "d", outbound=lambda result: object(), on_error=on_error)(agent), "x"),
    ]
    for recorded, given in made:
        assert recorded(given) == given
    assert list(capture(store, "d", on_error=on_error)(lambda message: iter([1, 2]))("x")) == [1, 2]
    assert errors == [
        (InvalidInputError, None),
        (InvalidInputError, None),
        (InvalidConversationIdError, None),
        (ZeroDivisionError, None),
        (ZeroDivisionError, "d"),
        (InvalidInputError, "d"),
        (InvalidInputError, "d"),
    ]
    assert store.get("c") == []
    with pytest.raises(TypeError):
        capture(store, "c", on_error=on_error)(agent)("one", "too many")


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (InvalidConversationIdError, {"conversation_id": ""}),
        (InvalidInputError, {"agent": 7}),
        (ConfigurationError, {"inbound": "text"}),
        (ConfigurationError, {"live": 1}),
        (InvalidInputError, {"store": "redis://localhost"}),
        (ConfigurationError, {"function": 7}),
        (ConfigurationError, {"store": AsyncHistoryStore("memory://")}),
    ],
)
def test_wrong_arguments_are_refused(error: type[Exception], options: dict[str, Any]) -> None:
    with HistoryStore("memory://") as memory:
        store, function = options.pop("store", memory), options.pop("function", str.upper)
        with pytest.raises(error):
            capture(store, **options)(function)


# Order


@pytest.mark.proves("capture")
async def test_concurrent_calls_keep_their_order(async_store: AsyncHistoryStore) -> None:
    record = capture(async_store, lambda number: f"c{number % 3}", inbound=lambda number: user(str(number)))

    @record
    async def agent(number: int) -> str:
        for _ in range(number % 5):
            await asyncio.sleep(0)
        return f"re {number}"

    await asyncio.gather(*map(agent, range(90)))
    assert (record.recorded, record.failed) == (180, 0)
    for room in range(3):
        texts = [message.text for message in await async_store.get(f"c{room}")]
        asked = [int(one) for one in texts if not one.startswith("re")]
        assert asked == list(range(room, 90, 3)), "in the order of the calls"
        for number in asked:
            assert texts.index(str(number)) < texts.index(f"re {number}")
