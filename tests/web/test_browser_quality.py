"""The page in real Chromium: axe-core finds nothing serious, and the page is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.async_api import Page, expect

from redis_history import HistoryStore, assistant, user
from tests.support.servers import RealServer
from tests.support.web import serve
from tests.web import scenes
from tests.web.browsing import Site, Window, Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

_AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
#: Milliseconds from the choice of a conversation until its messages are painted.
_PAINT = 300


@pytest.mark.parametrize(
    ("width", "colours"),
    [
        (1280, "light"),
        pytest.param(1280, "dark", marks=pytest.mark.full),
        pytest.param(390, "light", marks=pytest.mark.full),
        (390, "dark"),
    ],
)
async def test_axe_finds_nothing_serious(
    colours: Any, width: int, windows: Windows, server: RealServer, namespace: str
) -> None:
    with (
        HistoryStore(server.url, namespace=namespace) as store,
        serve(server.url, namespace, "--allow-writes") as served,
    ):
        scenes.tell(store)
        code = "```py\n# x\ndef f(): return 'a', 1\n```\n```diff\n-a\n+b\n```\n"
        table = "| a | b |\n|--|--|\n| 1 | [2](https://a.example) |"
        store.append(scenes.MAIN, assistant(f"{code}# Plan\n\n- one `two`\n\n{table}"))
        window = await windows(
            served.url, color_scheme=colours, viewport={"width": width, "height": 844}, reduced_motion="reduce"
        )
        page = await window.open()
        await expect(page.locator(".card")).to_have_count(8)
        assert await _findings(page) == [], "list"
        await page.get_by_label("Search messages").fill("jacket")
        await expect(page.locator(".hit").first).to_be_visible()
        await page.get_by_text("Filters").click()
        assert await _findings(page) == [], "search"
        await window.follow(scenes.MAIN)
        await page.keyboard.press("g")
        await page.get_by_role("button", name="Show the originals").click()
        await page.evaluate("document.querySelectorAll('.tool-head').forEach((one) => one.click())")
        assert await _findings(page) == [], "conversation"
        for name in ("Rename", "Export"):
            await page.get_by_role("button", name=name).click()
            assert await _findings(page) == [], name
            await page.keyboard.press("Escape")
        await windows.close()


async def _findings(page: Page) -> list[str]:
    await page.evaluate(_AXE)
    found = await page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


async def test_a_thousand_messages_are_painted_at_once(window: Window, site: Site) -> None:
    name = site.name("thousand")
    for first in (0, 500):
        site.store.append_many(
            name,
            [
                (user if number % 2 else assistant)(
                    f"Message **{number}** of many.\n\n" + "- some words\n" * (number % 9)
                )
                for number in range(first, first + 500)
            ],
        )
    page = await window.open()
    await expect(page.locator(f"li[data-id='{name}']")).to_be_visible()
    took = [
        await page.evaluate(
            """async (name) => {
              location.hash = "";
              await new Promise((done) => setTimeout(done, 50));
              const began = performance.now();
              document.querySelector(`li[data-id='${name}'] a`).click();
              while (!document.querySelector(".row")) await new Promise(requestAnimationFrame);
              await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
              return performance.now() - began;
            }""",
            name,
        )
        for _ in range(5)
    ]
    assert min(took) < _PAINT, took
