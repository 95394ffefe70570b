"""Getting about in the page, in real Chromium: with the keyboard, down long conversations, and in the list."""

from __future__ import annotations

import json

import pytest
from playwright.async_api import Route, expect

from redis_history import Message, tool_use, user
from redis_history.model import Participant, ToolResultPart
from tests.web.browsing import Site, Window, Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

_ADA = Participant("agent", "ada", "Ada")


async def test_a_walk_with_the_keyboard_alone(window: Window, site: Site) -> None:
    one, two = site.name("walk"), site.name("walk")
    site.store.append(
        one, Message(role="assistant", participant=_ADA, parts=tool_use("c", "weigh", {"what": "a crate"}))
    )
    site.store.append(one, Message(role="tool", parts=ToolResultPart("c", "9 kg")))
    site.store.append_many(one, [user(f"Line {number}.", id=f"m{number}") for number in range(60)])
    site.store.append(two, user("Elsewhere."))
    page = await window.open()
    focused = page.locator(":focus")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#help")).to_be_hidden()
    await page.keyboard.press("f")
    await page.keyboard.type("walk-")
    await expect(page.locator(".card")).to_have_count(2)
    await page.keyboard.press("ArrowDown")
    await expect(focused).to_contain_text("Elsewhere.")
    await page.keyboard.press("j")
    await expect(focused).to_contain_text("Line 59.")
    await page.keyboard.press("Enter")
    await expect(page.locator("#timeline")).to_be_focused()
    await expect(window.said("Line 59.")).to_be_in_viewport()
    await page.keyboard.press("k")
    await expect(focused).to_have_attribute("data-id", "m59")
    await page.keyboard.press("k")
    await expect(focused).to_have_attribute("data-id", "m58")
    await page.keyboard.press("j")
    await expect(focused).to_have_attribute("data-id", "m59")
    await page.keyboard.press("g")
    await expect(page.locator(".tool")).to_be_in_viewport()
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.locator(".tool-body")).to_contain_text("9 kg")
    await page.keyboard.press("Enter")
    await expect(page.locator(".tool-body")).to_have_count(0)
    await page.keyboard.press("Escape")
    await expect(focused).to_have_class("card")
    await page.keyboard.press("k")
    await expect(focused).to_contain_text("Elsewhere.")
    await page.keyboard.press("Enter")
    await expect(page.locator(".row")).to_have_count(1)  # until then more than one, of the other conversation
    await expect(page.locator(".row")).to_contain_text("Elsewhere.")
    outline = await page.evaluate(
        "() => { document.querySelector('.card').focus();return getComputedStyle(document.activeElement).outlineStyle }"
    )
    assert outline == "solid"
    unnamed = await page.evaluate(
        "() => [...document.querySelectorAll('button, input, textarea, a')].filter(one => one.checkVisibility())"
        ".filter(one => !(one.ariaLabel || one.textContent.trim() || one.labels?.length)).map(one => one.outerHTML)"
    )
    assert unnamed == []


@pytest.mark.full
async def test_ten_thousand_messages(window: Window, site: Site) -> None:
    name = site.name("long")
    for begin in range(0, 10_000, 1000):
        lines = [f"Line {number}. " + "word " * (number % 70) for number in range(begin, begin + 1000)]
        site.store.append_many(name, [user(line, id=f"m{begin + at}") for at, line in enumerate(lines)])
    page = await window.open(name)
    await expect(window.said("Line 9999.")).to_be_in_viewport()
    size = "document.querySelectorAll('#timeline *').length"
    most = await page.evaluate(size)
    await page.locator("#timeline").hover()
    for _ in range(12):  # up, past several pages
        await _scroll(window, -6000)
        most = max(most, await page.evaluate(size))
    numbers = [int(one[1:]) for one in await window.ids()]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[-1] < 9_700
    await page.keyboard.press("g")
    await expect(window.said("Line 0.")).to_be_in_viewport()
    assert (await window.ids())[0] == "m0"
    for _ in range(6):  # and down again
        await _scroll(window, 8000)
        most = max(most, await page.evaluate(size))
    numbers = [int(one[1:]) for one in await window.ids()]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert numbers[0] > 200
    await page.keyboard.press("g")
    await page.locator("#newer").focus()
    await page.keyboard.press("Enter")
    await expect(window.said("Line 9999.")).to_be_in_viewport()
    await expect(page.locator("#timeline")).to_be_focused()
    assert most < 1200
    site.store.delete_conversation(name)


async def test_the_list_keeps_its_order_and_the_focus(window: Window, site: Site) -> None:
    """Also of conversations that changed in the same millisecond, and when a card moves that has the focus."""
    names = [site.name("order") for _ in range(6)]
    for name in names:
        site.store.append(name, user(f"Hello, {name}."))

    async def alike(route: Route) -> None:
        answer = await route.fetch()
        found = await answer.json()
        for conversation in found["conversations"]:
            conversation["last_message_at"] = "2026-01-01T00:00:00+00:00"
        await route.fulfill(response=answer, body=json.dumps(found))

    await window.page.route("**/v1/conversations*", alike)
    page = await window.open()
    cards = "#conversations > [data-id]:not([hidden])"
    shown = f"() => [...document.querySelectorAll('{cards}')].map(one => one.dataset.id)"
    await page.locator("#filter").fill("order-")
    await expect(page.locator(cards)).to_have_count(6)
    before = await page.evaluate(shown)
    for _ in range(3):
        await page.evaluate("() => document.querySelector('#filter').dispatchEvent(new Event('input'))")
        await page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert await page.evaluate(shown) == before
    await page.keyboard.press("ArrowDown")
    for _ in range(3):
        await page.keyboard.press("j")
    focused = page.locator(":focus")
    await expect(focused).to_contain_text(before[3])
    site.store.append(before[3], user("Newer."))
    await window.until("first => document.querySelector('#conversations > [data-id]').dataset.id === first", before[3])
    await expect(focused).to_contain_text(before[3])
    for name in names:
        site.store.delete_conversation(name)


async def _scroll(window: Window, by: int) -> None:
    """Scroll the conversation, and wait until other rows are drawn and no page is on its way."""
    before = await window.ids()
    await window.page.evaluate("by => { document.querySelector('#timeline').scrollTop += by }", by)
    await window.until(
        """before => {
          const box = document.querySelector('#timeline')
          const drawn = [...box.querySelectorAll('.row[data-id]')].map(row => row.dataset.id)
          return box.scrollTop > 0 && box.ariaBusy !== 'true' && String(drawn) !== String(before)
        }""",
        before,
    )


async def test_a_conversation_opens_at_its_end_with_reduced_motion(windows: Windows, site: Site) -> None:
    name = site.name("still")
    site.store.append_many(name, [user(f"Line {number}.\n" + "word " * 200) for number in range(6)])
    window = await windows(site.address, reduced_motion="reduce")
    await window.open(name)
    await expect(window.said("Line 5.")).to_be_in_viewport()
