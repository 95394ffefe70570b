"""Histories whose server is away, for a while or for good."""

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from redis_history import AsyncHistoryStore, AsyncRedisHistory, HistoryStore, RedisHistory, RetryPolicy, user
from redis_history.errors import BackendUnavailableError, UnsavedLimitError
from tests.support.servers import Start, until, wait_until

SHORT = RetryPolicy(deadline=0.2, first_wait=0.01, longest_wait=0.05)
ALWAYS = ("--appendonly", "yes", "--appendfsync", "always")


@pytest.mark.proves("unsaved-limit")
def test_unsaved_messages_are_limited_during_an_outage(own_server: Start) -> None:
    server = own_server("plain", options=ALWAYS)
    errors: list[Exception] = []
    with HistoryStore(server.url, retry=SHORT, poll_interval=0.2) as store:
        history = RedisHistory(store, max_unsaved=20)
        history.on("error", errors.append)
        history.autosave("c")
        history.add_text("user", "0")
        history.flush()
        server.kill()
        for number in range(1, 21):
            history.add_text("user", str(number))
        with pytest.raises(UnsavedLimitError, match="20"):
            history.add_text("user", "too many")
        with pytest.raises(BackendUnavailableError):
            history.flush()
        with pytest.raises(UnsavedLimitError):
            history.clear()
        wait_until(lambda: errors, "the failure in the background")
        assert isinstance(errors[0], BackendUnavailableError)
        assert [message.text for message in history.unsaved] == [str(number) for number in range(1, 21)]
        assert len(history) == 21
        server.start()
        wait_until(lambda: not history.unsaved, "everything to be saved")
        history.add_text("user", "21")
        history.close()
        assert [message.text for message in store.get("c")] == [str(number) for number in range(22)]


def test_close_raises_if_it_cannot_save(own_server: Start) -> None:
    server = own_server("plain")
    with HistoryStore(server.url, retry=SHORT, poll_interval=0.2) as store:
        history = RedisHistory(store)
        history.on("error", lambda: None)
        history.autosave("c")
        server.kill()
        history.add_text("user", "lost")
        with pytest.raises(BackendUnavailableError):
            history.close()
        assert [message.text for message in history.unsaved] == ["lost"]
        assert not history.autosaving


def test_a_forked_child_does_not_save(own_server: Start) -> None:
    server = own_server("plain")
    program = f"""
import os, sys
from redis_history import RedisHistory
from redis_history.errors import StoreClosedError
history = RedisHistory({server.url!r})
history.autosave("c")
history.add_text("user", "of the parent")
history.flush()
child = os.fork()
if child == 0:
    for call in (lambda: history.add_text("user", "of the child"), history.save):
        try:
            call()
        except StoreClosedError:
            continue
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
history.add_text("user", "of the parent again")
history.close()
assert history.unsaved == []
assert len(history) == 2
"""
    assert subprocess.run([sys.executable, "-W", "error", "-c", program], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("how", ["restore", "clear"])
def test_a_rewrite_whose_answer_was_lost(own_server: Start, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """It is recognized in the change log as done, also if somebody has written since."""
    with HistoryStore(own_server("plain").url) as store:
        store.append_many("c", [user(str(number)) for number in range(4)])
        real = store._write

        def lossy(*arguments: Any, **options: Any) -> Any:
            real(*arguments, **options)
            raise BackendUnavailableError("the answer was lost")

        for disturbed in (False, True):
            history = RedisHistory(store)
            history.load("c")
            if how == "restore":
                history.restore([user("anew"), user("more")])
            else:
                history.add_text("user", "kept")
                history.save()
                history.clear()
            with monkeypatch.context() as patch:
                patch.setattr(store, "_write", lossy)
                with pytest.raises(BackendUnavailableError):
                    history.save()
            if disturbed:
                other = store.append("c", user("by others")).message
                store.append("c", user("and more"))
                store.delete_messages("c", [other.id])
            assert history.save() == 0
            assert history.entries == store.get("c")
            assert [entry.text for entry in history.entries][-1:] != ["kept"]


async def test_threads_may_add_to_the_history_of_a_loop(own_server: Start) -> None:
    url = own_server("plain").url
    async with AsyncHistoryStore(url) as store, AsyncHistoryStore(url) as other:
        history, follower = AsyncRedisHistory(store), AsyncRedisHistory(other)
        heard: list[str] = []
        follower.on("entry", lambda message: heard.append(message.text))
        await history.autosave("c")
        await follower.autosave("c")

        def work(name: int) -> None:
            for number in range(100):
                history.add_text("user", f"{name} {number}")

        await asyncio.gather(*(asyncio.to_thread(work, name) for name in range(8)))
        await history.flush()
        await until(lambda: follower.entries == history.entries and len(heard) == 800, "the follower and its handler")
        assert [message.text for message in await store.get("c")] == [entry.text for entry in history.entries] == heard
        await history.aclose()
        await follower.aclose()
