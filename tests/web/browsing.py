"""A real browser for tests, and the live view in it."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import axe_playwright_python
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Locator, Page, Route, async_playwright, expect

from redis_history import HistoryStore
from tests.support.proxy import LossyProxy
from tests.support.servers import RealServer
from tests.support.web import Serve, serve
from tests.web.browser import find_browser

_OPTIONS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # No name leads anywhere: nothing but the tests' own servers can be reached.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
#: Seconds for actions that should take far less, except on a busy machine.
PATIENCE = 20.0

expect.set_options(timeout=PATIENCE * 1000)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """One browser for the tests of a worker."""
    async with async_playwright() as playwright:
        found = find_browser(playwright.chromium.executable_path)
        if found is None:
            reason = "there is no Chromium: install it, or name it in $CHROMIUM (scripts/test does so)"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)
        options = [*_OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        browser = await playwright.chromium.launch(executable_path=found, args=options)
        yield browser
        await browser.close()


class Window:
    """A window of a browser with the live view in it; notes what must not happen."""

    def __init__(self, page: Page, address: str) -> None:
        self.page, self.address = page, address
        self.outage = False  # then requests may fail
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("console", lambda message: self._log(message.type, message.text))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.context.on("request", lambda request: self.requests.append(request.url))

    def _log(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not (self.outage and text.startswith("Failed to load resource")):
            self.complaints.append(f"{kind}: {text}")

    @property
    def base(self) -> str:
        return self.address.partition("?")[0]

    async def open(self, conversation: str | None = None) -> Page:
        """Sign in, and open a conversation. The token leaves the address bar."""
        await self.page.goto(self.address)
        assert self.page.url == self.base
        await expect(self.page.locator("#namespace")).not_to_be_empty()
        if conversation is not None:
            await self.follow(conversation)
        return self.page

    async def follow(self, conversation: str) -> None:
        await self.page.evaluate(
            """hash => new Promise(done => {
              addEventListener("hashchange", done, {once: true});
              location.hash = hash;
            })""",
            urlencode({"conversation": conversation}),
        )
        await self.live()

    def card(self, conversation: str) -> Locator:
        """The item of a conversation in the list."""
        return self.page.locator(f"#conversations li[data-id='{conversation}']")

    async def live(self) -> None:
        """Wait until the open conversation is followed."""
        await expect(self.page.locator("#link")).to_have_attribute("data-state", "open")

    def said(self, text: str) -> Locator:
        """A text in the open conversation."""
        return self.page.locator("#timeline").get_by_text(text)

    async def ids(self) -> list[str]:
        """Ids of the messages whose rows are drawn, from top to bottom."""
        found: list[str] = await self.page.evaluate(
            "[...document.querySelectorAll('.row[data-id]')].map(row => row.dataset.id)"
        )
        return found

    async def until(self, condition: str, argument: Any = None) -> None:
        """Wait for a condition in JavaScript."""
        await self.page.wait_for_function(condition, arg=argument, timeout=PATIENCE * 1000, polling=20)

    def check(self) -> None:
        others = {url for url in self.requests if not url.startswith((self.base, "data:", "blob:"))}
        assert not others, f"requests to others: {others}"
        assert not self.complaints, self.complaints


async def check_axe(page: Page, colors: Sequence[Any], what: str, within: str = "html") -> None:
    """axe-core finds nothing serious within an element."""
    await page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
    for color in colors:
        await page.emulate_media(color_scheme=color)
        found = await page.evaluate("within => axe.run(within, {resultTypes: ['violations']})", within)
        assert not [
            f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ], (what, color)


async def copied(page: Page, button: Any) -> str:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await button.click()
    await expect(page.get_by_role("button", name="Copied").last).to_be_visible()
    return str(await page.evaluate("navigator.clipboard.readText()"))


async def no_sideways_scrolling(page: Page) -> None:
    wide = await page.evaluate(
        "() => [...document.querySelectorAll('html, body, #timeline, .pane-body, .row, .topbar')]"
        ".filter(one => one.clientWidth && one.scrollWidth > one.clientWidth).map(one => one.className || one.tagName)"
    )
    assert wide == []


class Held:
    """Delays the answers to requests of a pattern, which the server has given, until the end of the block."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._page, self._pattern = page, pattern
        self.arrived = asyncio.Event()  # set by the first answer; or by the first request of a stream
        self._released = asyncio.Event()

    async def __aenter__(self) -> Held:
        await self._page.route(self._pattern, self._hold)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._released.set()

    async def _hold(self, route: Route) -> None:
        if self._released.is_set():
            await route.fallback()
            return
        answer = None if "events" in self._pattern else await route.fetch()
        self.arrived.set()
        await self._released.wait()
        await (route.continue_() if answer is None else route.fulfill(response=answer))


class Windows:
    """Opens windows with separate profiles, and checks them at the end."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self._windows: list[Window] = []

    async def __call__(self, address: str, **options: Any) -> Window:
        settings: dict[str, Any] = {"locale": "en-GB", "timezone_id": "UTC", "viewport": {"width": 1280, "height": 800}}
        self._contexts.append(await self._browser.new_context(**settings | options))
        return await self.another(address)

    async def another(self, address: str) -> Window:
        """A tab more in the last window."""
        self._windows.append(Window(await self._contexts[-1].new_page(), address))
        return self._windows[-1]

    async def close(self) -> None:
        while self._contexts:
            await self._contexts.pop().close()

    def check(self) -> None:
        for window in self._windows:
            window.check()


@pytest_asyncio.fixture(loop_scope="session")
async def windows(chromium: Browser) -> AsyncIterator[Windows]:
    """Windows of this test. A request to another host, an error or a dialog fails the test."""
    opened = Windows(chromium)
    yield opened
    await opened.close()
    opened.check()


class Site:
    """A live view that the tests of a worker share, and a store over the same namespace."""

    def __init__(self, url: str, served: Serve, store: HistoryStore) -> None:
        self.url, self.served, self.store = url, served, store

    @property
    def address(self) -> str:
        return self.served.url

    def name(self, what: str) -> str:
        """A conversation of this test alone."""
        return f"{what}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Uses a separate server, because other tests count the subscribers of their servers."""
    server = RealServer("redis").start()
    try:
        with serve(server.url, "live") as served, HistoryStore(server.url, namespace="live") as store:
            yield Site(server.url, served, store)
    finally:
        server.close()


@pytest.fixture(scope="session")
def desk(site: Site) -> Iterator[Site]:
    """The same conversations in a view that may change them."""
    with serve(site.url, "live", "--allow-writes") as served:
        yield Site(site.url, served, site.store)


@pytest_asyncio.fixture(loop_scope="session")
async def window(windows: Windows, site: Site) -> Window:
    """A window on the shared live view, not signed in yet."""
    return await windows(site.address)


class Network(LossyProxy):
    """A network in front of a local port, which can also be frozen: data stops arriving, and no connection ends."""

    def __init__(self, port: int) -> None:
        self._flows = threading.Event()
        self._flows.set()
        super().__init__(port)

    def freeze(self) -> None:
        self._flows.clear()

    def mend(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self.mend()
        super().close()

    def _fault(self, kinds: tuple[str, ...], server: socket.socket) -> str:
        self._flows.wait()
        return super()._fault(kinds, server)
