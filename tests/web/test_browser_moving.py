"""Navigation in the page, in real Chromium: with the keyboard, down long conversations, and in the list."""

import json

import pytest
from playwright.async_api import Route, expect

from redis_history import Message, tool_use, user
from redis_history.values import Participant, ToolResultPart
from tests.web.browsing import Held, Site, Window, Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

CARDS = "#conversations > [data-id]:not([hidden])"


async def test_a_walk_with_the_keyboard_alone(window: Window, site: Site) -> None:
    one, two = site.name("walk"), site.name("walk")
    call = tool_use("c", "weigh", {"what": "a crate"})
    site.store.append(one, Message(role="assistant", participant=Participant("agent", "ada", "Ada"), parts=call))
    site.store.append(one, Message(role="tool", parts=ToolResultPart("c", "9 kg")))
    site.store.append_many(one, [user(f"Line {number}.", id=f"m{number}") for number in range(60)])
    site.store.append(two, user("Elsewhere."))
    page = await window.open()
    focused, press = page.locator(":focus"), page.keyboard.press
    await press("?")
    await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    await press("Escape")
    await expect(page.locator("#help")).to_be_hidden()
    await press("f")
    await page.keyboard.type("walk-")
    await expect(page.locator(CARDS)).to_have_count(2)
    await press("ArrowDown")
    await expect(focused).to_contain_text("Elsewhere.")
    await press("j")
    await expect(focused).to_contain_text("Line 59.")
    await press("Enter")
    await expect(page.locator("#timeline")).to_be_focused()
    await expect(window.said("Line 59.")).to_be_in_viewport()
    for key, name in (("k", "m59"), ("k", "m58"), ("j", "m59")):
        await press(key)
        await expect(focused).to_have_attribute("data-id", name)
    await press("g")
    await expect(page.locator(".tool")).to_be_in_viewport()
    await press("j")
    await press("Enter")
    await expect(page.locator(".tool-body")).to_contain_text("9 kg")
    await press("Enter")
    await expect(page.locator(".tool-body")).to_have_count(0)
    await press("Escape")
    await expect(focused).to_have_class("card")
    await press("k")
    await expect(focused).to_contain_text("Elsewhere.")
    assert await focused.evaluate("card => getComputedStyle(card).outlineStyle") == "solid"
    await press("Enter")
    await expect(page.locator(".row")).to_have_count(1)
    await expect(page.locator(".row")).to_contain_text("Elsewhere.")


async def test_keys_before_the_list_is_loaded(windows: Windows, site: Site) -> None:
    """They are applied when it is. In a narrow window, they lead to the list."""
    name, other = site.name("zebrafish"), site.name("other")
    site.store.append(name, user("Stripes."))
    site.store.append(other, user("Spots."))
    window = await windows(site.address, viewport={"width": 360, "height": 700})
    page = await window.open(name)
    await page.keyboard.press("/")
    await page.keyboard.type("stripes")
    await expect(page.locator(":focus")).to_have_value("stripes")
    await window.follow(other)
    async with Held(page, "**/v1/conversations?*") as listing:
        await page.reload()
        await listing.arrived.wait()
        await page.keyboard.press("f")
        await page.keyboard.type("zebra")
        await expect(page.locator("#filter")).to_have_value("zebra")
        await page.keyboard.press("ArrowDown")
    await expect(page.locator(CARDS)).to_have_count(1)
    await expect(page.locator(":focus")).to_contain_text("Stripes.")
    await page.keyboard.press("Enter")
    await window.live()
    await expect(page.locator("#timeline")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.locator(":focus")).to_contain_text("Stripes.")
    await expect(page.locator("#app")).to_have_attribute("data-view", "list")


async def test_the_list_keeps_its_order_and_the_focus(window: Window, site: Site) -> None:
    """Also of conversations that changed in the same millisecond, and when a card moves that has the focus."""
    names = [site.name("order") for _ in range(6)]
    for name in names:
        site.store.append(name, user(f"Hello, {name}."))

    async def same_time(route: Route) -> None:
        answer = await route.fetch()
        found = await answer.json()
        for conversation in found["conversations"]:
            conversation["last_message_at"] = "2026-01-01T00:00:00+00:00"
        await route.fulfill(response=answer, body=json.dumps(found))

    await window.page.route("**/v1/conversations*", same_time)
    page = await window.open()
    shown = f"() => [...document.querySelectorAll('{CARDS}')].map(one => one.dataset.id)"
    await page.locator("#filter").fill("order-")
    await expect(page.locator(CARDS)).to_have_count(6)
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


async def test_a_list_that_shows_few_of_many_loads_more(window: Window, site: Site) -> None:
    """If `authorize` leaves few conversations in a page, or none."""
    name = site.name("mine")
    site.store.append(name, user("Mine."))

    async def first_page_empty(route: Route) -> None:
        if "cursor=" in route.request.url:
            await route.continue_()
        else:
            await route.fulfill(json={"conversations": [], "next": f"{10**15 * 9}.new"})

    await window.page.route("**/v1/conversations?*", first_page_empty)
    page = await window.open()
    await expect(window.card(name)).to_contain_text("Mine.")
    assert "No conversation yet" not in await page.locator("#list-note").inner_text()


async def test_a_conversation_opens_at_its_end_with_reduced_motion(windows: Windows, site: Site) -> None:
    name = site.name("still")
    site.store.append_many(name, [user(f"Line {number}.\n" + "word " * 200) for number in range(6)])
    window = await windows(site.address, reduced_motion="reduce")
    await window.open(name)
    await expect(window.said("Line 5.")).to_be_in_viewport()
