"""The page in real Chromium as the documentation shows it; `--screenshots` writes the pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from redis_history import HistoryStore
from tests.support.servers import RealServer
from tests.support.web import serve
from tests.web import scenes
from tests.web.browsing import Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

IMAGES = Path(__file__).parents[2] / "docs/images"
#: Bytes of a picture: it is in the repository, and loaded with the page.
_LARGEST = 300_000
#: Minutes since the conversations of the list changed. They are all made now, which no list of a day's work looks like.
_AGES = (0, 0, 2, 9, 14, 31, 40, 55)


async def test_the_pictures_of_the_documentation(
    windows: Windows, own_server: Callable[..., RealServer], request: pytest.FixtureRequest
) -> None:
    write = bool(request.config.getoption("--screenshots"))
    url = own_server("redis").url
    with HistoryStore(url, namespace="support") as store, serve(url, "support") as served:
        scenes.tell(store)
        light = await windows(served.url, color_scheme="light", viewport={"width": 1280, "height": 800})
        await light.page.route("**/v1/conversations*", _spread)
        page = await light.open(scenes.MAIN)
        await page.get_by_role("button", name="Tool check_stock").last.click()
        await page.keyboard.press("G")
        store.append_many("ticket/48219", scenes.news())
        await expect(page.locator(".badge")).to_have_text("2")
        store.append_many(scenes.MAIN, scenes.going_on())
        await expect(page.locator("#activity")).to_contain_text("Orders is running ship")
        await expect(page.locator(".tool").last).to_be_in_viewport()
        await _picture(page, "live-view-light", write)

        dark = await windows(served.url, color_scheme="dark", viewport={"width": 1280, "height": 800})
        await dark.page.route("**/v1/conversations*", _spread)
        page = await dark.open(scenes.MAIN)
        await page.get_by_label("Search messages").fill("label of the jacket")
        await page.locator(".hit", has_text="photo of the label").click()
        await expect(page.locator(".row.target")).to_be_in_viewport()
        await expect(page.locator(".summary")).to_be_in_viewport()
        await _picture(page, "live-view-dark", write)

        phone = await windows(served.url, color_scheme="light", viewport={"width": 390, "height": 844}, has_touch=True)
        page = await phone.open(scenes.MAIN)
        await expect(page.locator(".tool").last).to_be_in_viewport()
        await _picture(page, "live-view-phone", write)
        await windows.close()


async def _spread(route: Route) -> None:
    """The list, with its changes spread over an hour."""
    answer = await route.fetch()
    found = await answer.json()
    now = datetime.now(UTC)
    for conversation, age in zip(found["conversations"], _AGES, strict=False):
        conversation["updated_at"] = (now - timedelta(minutes=age)).isoformat()
    await route.fulfill(response=answer, body=json.dumps(found))


async def _picture(page: Page, name: str, write: bool) -> None:
    if not write:
        return
    await page.mouse.move(0, 0)
    await page.evaluate("() => document.activeElement.blur()")
    await page.evaluate(
        "() => Promise.allSettled(document.getAnimations().filter(one => one.effect.getTiming().iterations < 9)"
        ".map(one => one.finished))"
    )
    picture = await page.screenshot(animations="disabled")
    assert picture.startswith(b"\x89PNG")
    assert len(picture) < _LARGEST
    (IMAGES / f"{name}.png").write_bytes(picture)
