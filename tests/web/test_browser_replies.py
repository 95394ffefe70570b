"""The page in real Chromium: replies that are being written."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from redis_history import AsyncHistoryStore, tool_use, user
from redis_history.model import Participant
from tests.web.browsing import Site, Window

pytestmark = pytest.mark.asyncio(loop_scope="session")

_ADA = Participant("agent", "ada", "Ada")


async def test_a_reply_grows_on_the_page(window: Window, site: Site) -> None:
    name = site.name("reply")
    async with AsyncHistoryStore(site.url, namespace=site.store.namespace) as store:
        await store.append(name, user("Why?"))
        page = await window.open(name)
        row = page.locator(".row[data-id=r]")
        async with store.stream(name, id="r", participant=_ADA) as reply:
            await reply.write("Because of **this")
            await expect(row).to_contain_text("Because of")
            await expect(row.locator(".caret")).to_have_count(1)
            await expect(page.locator("#activity")).to_contain_text("Ada is writing")
            await reply.write("** and")
            await expect(row).to_contain_text("Because of this and")
            await reply.add(tool_use("1", "find_it"))
            await expect(row).to_contain_text("find_it")
            await page.reload()
            await window.live()
            await reply.write("that.")
            await expect(row).to_contain_text("that.")
        await expect(row.locator(".caret")).to_have_count(0)
        assert "Because of this and" in await row.inner_text()
        await store.stream(name, id="s").aclose()
        stopped = store.stream(name, id="s")
        await stopped.write("Half of ")
        await stopped.aclose()
        await expect(page.locator(".row[data-id=s]")).to_contain_text("stopped before its end")
