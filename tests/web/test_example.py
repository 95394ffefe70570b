"""The example docs/examples/live_page.py, in a real browser."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.async_api import expect

from redis_history import HistoryStore, assistant, user
from tests.docs.pages import DOCS
from tests.support.servers import RealServer, free_port, wait_until
from tests.web.browsing import Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")


@contextlib.contextmanager
def running(url: str, port: int) -> Iterator[None]:
    argv = [sys.executable, "-m", "uvicorn", "--app-dir", str(DOCS / "examples"), "live_page:app"]
    argv += ["--port", str(port), "--timeout-graceful-shutdown", "1", "--log-level", "critical"]
    process = subprocess.Popen(argv, env={**os.environ, "REDIS_HISTORY_URL": url})

    def answers() -> bool:
        assert process.poll() is None
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
        return False

    try:
        wait_until(answers, "the example")
        yield
    finally:
        process.kill()
        process.wait()


async def test_the_page_follows_through_a_restart(own_server: Callable[..., RealServer], windows: Windows) -> None:
    url, port = own_server().url, free_port()
    with HistoryStore(url, namespace="support") as store:
        store.append("chat-1", user("<b>Hello?</b>"))
        with running(url, port):
            window = await windows(f"http://127.0.0.1:{port}/")
            await window.page.goto(window.address)
            lines = window.page.locator("li")
            await expect(lines).to_have_text(["user: <b>Hello?</b>"])
            store.append("chat-1", assistant("Good morning."))
            await expect(lines).to_have_count(2)
            window.outage = True
        store.append("chat-1", user("Are you there?"))
        with running(url, port):
            told = ["user: <b>Hello?</b>", "assistant: Good morning.", "user: Are you there?"]
            await expect(lines).to_have_text(told)
            store.clear("chat-1")
            store.append("chat-1", user("Again."))
            await expect(lines).to_have_text([*told, "user: Again."])
            others = await window.page.evaluate("fetch('history/api/messages?conversation=chat-2').then(r => r.status)")
            assert others == 403
