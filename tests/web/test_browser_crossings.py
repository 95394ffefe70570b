"""The page in real Chromium while its requests are slow: answers, events and keys cross, and what is shown is right."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from redis_history import HistoryStore, Message, user
from tests.support.web import serve
from tests.web.browsing import Site, Window, Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Held:
    """Holds back answers to requests that fit, from when the server gave them until `release()`."""

    def __init__(self, page: Page, pattern: str) -> None:
        self._page, self._pattern = page, pattern
        self.there = asyncio.Event()
        self._go = asyncio.Event()

    async def __aenter__(self) -> Held:
        await self._page.route(self._pattern, self._hold)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.release()

    async def _hold(self, route: Route) -> None:
        if self._go.is_set():
            await route.fallback()
            return
        if "events" in self._pattern:  # a stream cannot be fetched first
            self.there.set()
            await self._go.wait()
            await route.continue_()
            return
        answer = await route.fetch()
        self.there.set()
        await self._go.wait()
        await route.fulfill(response=answer)

    def release(self) -> None:
        self._go.set()


def _card(page: Page, name: str) -> Any:
    return page.locator(f"#conversations li[data-id='{name}']")


async def test_nothing_is_missed_between_a_window_and_its_stream(window: Window, site: Site) -> None:
    name = site.name("gap")
    # So few that a window around any of them reaches to the end: nothing is read anew on the way there.
    word = name.replace("-", "")
    site.store.append_many(name, [user(f"Line {number}.", id=f"m{number}") for number in range(60)])
    site.store.update_message(name, user(f"The {word}.", id="m20"))
    page = await window.open()
    async with Held(page, f"**/{name}/events*") as stream:
        # Straight to what was found: a second window is asked for before the first one is there.
        await page.keyboard.press("/")
        await page.keyboard.type(word)
        await page.locator(".hit").first.click()
        await stream.there.wait()
        await expect(window.said(word)).to_be_in_viewport()
        site.store.append(name, user("In between.", id="between"))
    await window.live()
    site.store.append(name, user("Afterwards.", id="after"))
    await page.keyboard.press("G")
    await expect(window.said("Afterwards.")).to_be_in_viewport()
    assert (await window.ids())[-3:] == ["m59", "between", "after"]
    await expect(page).to_have_title("Line 0. · redis-history")


async def test_the_list_is_right_when_it_changes_while_it_is_read(window: Window, site: Site) -> None:
    old, still, new, gone = (site.name(what) for what in ("old", "still", "new", "gone"))
    for name in (old, still, gone):
        site.store.append(name, user("Before."))
    page = await window.open()
    await expect(_card(page, gone)).to_be_visible()
    async with Held(page, "**/v1/conversations?*") as listing:
        await page.reload()
        await listing.there.wait()
        site.store.append(old, user("Meanwhile."))
        site.store.append(new, user("Just begun."))
        site.store.delete_conversation(gone)
        await expect(_card(page, new)).to_contain_text("Just begun.")
        await expect(_card(page, old)).to_contain_text("2 messages")
        await expect(_card(page, still)).to_have_count(0)
    await expect(_card(page, still)).to_contain_text("Before.")  # the answer is there
    await expect(_card(page, old)).to_contain_text("Meanwhile.")
    await expect(_card(page, old)).to_contain_text("2 messages")
    await expect(_card(page, new)).to_contain_text("Just begun.")
    await expect(_card(page, gone)).to_have_count(0)


async def test_what_was_removed_is_not_shown_in_the_list(window: Window, site: Site) -> None:
    names = [site.name("secret") for _ in range(3)]
    for name in names:
        site.store.append(name, user("Hello."))
        site.store.append(name, user("My password is hunter2.", id="last"))
    page = await window.open()
    for name in names:
        await expect(_card(page, name)).to_contain_text("hunter2")
    cleared, deleted, edited = names
    site.store.clear(cleared)
    site.store.delete_messages(deleted, ["last"])
    site.store.update_message(edited, user("[redacted]", id="last"))
    await expect(_card(page, edited)).to_contain_text("[redacted]")
    await expect(_card(page, deleted)).to_contain_text("Hello.")
    await expect(_card(page, cleared)).to_contain_text("0 messages")
    assert "hunter2" not in await page.locator("#conversations").inner_text()


async def test_the_header_knows_what_happened_meanwhile(window: Window, site: Site) -> None:
    name = site.name("facts")
    site.store.append_many(name, [user(f"Line {number}.") for number in range(20)])
    page = await window.open(name)
    facts = page.locator("#facts")
    await expect(facts).to_contain_text("20 messages")
    site.store.delete_conversation(name)
    await expect(page.locator("#banner")).to_contain_text("was deleted")
    await expect(facts).to_be_empty()
    site.store.append(name, user("Again."))
    await expect(facts).to_contain_text("1 message")
    await expect(page.locator("#banner")).to_be_hidden()
    site.store.update_conversation(name, title="Another name")
    await expect(page).to_have_title("Another name · redis-history")
    window.outage = True
    nowhere = site.name("nowhere")
    await window.follow(nowhere)
    await expect(page.locator("#banner")).to_contain_text("This conversation does not exist")
    site.store.append(nowhere, user("Now it does."))
    await expect(window.said("Now it does.")).to_be_visible()


async def test_the_later_wish_counts(window: Window, site: Site) -> None:
    name = site.name("wish")
    site.store.append_many(name, [user(f"Line {number}.", id=f"m{number}") for number in range(600)])
    page = await window.open(name)
    await expect(window.said("Line 599.")).to_be_in_viewport()
    for first, second, end in (("g", "G", "Line 599."), ("G", "g", "Line 0.")):
        async with Held(page, "**/messages?*") as answer:
            await page.keyboard.press(first)
            if first == "g":
                await answer.there.wait()
            await page.keyboard.press(second)
            await answer.there.wait()
        await expect(window.said(end)).to_be_in_viewport()
        await window.until("() => !document.querySelector('#timeline[aria-busy=true]')")
        await expect(window.said(end)).to_be_in_viewport()
    early = site.name("early")
    long_ago = [user(f"In {year}.", timestamp=f"{year}-01-01T00:00:00Z") for year in (1700, 1930, 2026)]
    site.store.append_many(early, [*long_ago, *(user("x") for _ in range(400))])
    await window.follow(early)
    await page.keyboard.press("g")
    await expect(window.said("In 1700.")).to_be_in_viewport()


async def test_pages_of_a_former_window_are_dropped(window: Window) -> None:
    page = await window.open()
    gapless, around = await page.evaluate("""async () => {
        const { Conversation } = await import(new URL("static/conversation.js", location.href.split("#")[0]).href);
        const all = Array.from({ length: 1000 }, (_, at) => ({ id: `m${at}`, position: `${at}.0`, text: "" }));
        const asked = [];
        const conversation = new Conversation("c", () => {});
        conversation.ask = ({ limit, before = "1000.0", since = "-1.0", first }) => {
          const [time, sequence] = since.split(".");
          const begin = Number(time) + (sequence < 0 ? 0 : 1);
          const some = all.filter(({ position }) => position >= begin && Number(position) < Number(before));
          const messages = first ? some.slice(0, limit) : some.slice(-limit);
          return new Promise((answer) => asked.push(() => answer({ messages, more: messages.length < some.length })));
        };
        const answered = async () => {
          while (asked.length) {
            asked.shift()();
            await new Promise((done) => setTimeout(done));
          }
        };
        const ids = () => conversation.messages.map(({ id }) => Number(id.slice(1)));
        conversation.open();
        await answered();
        conversation.toOldest();
        conversation.extend("older"); // of the window that is about to be replaced
        await answered();
        const found = ids();
        conversation.refresh("500.0");
        await answered();
        all.splice(400, 200);
        conversation.on_deleted({ ids: Array.from({ length: 200 }, (_, at) => `m${at + 400}`) });
        conversation.extend("older");
        await answered();
        return [found.every((id, at) => id === at), ids()];
    }""")
    assert gapless
    assert {399, 600} <= set(around), "where the user was, not at the end"


async def test_keys_of_a_narrow_window_lead_to_the_list(windows: Windows, site: Site) -> None:
    name = site.name("zebrafish")
    site.store.append(name, user("Stripes."))
    window = await windows(site.address, viewport={"width": 360, "height": 700})
    page = await window.open(name)
    await page.keyboard.press("/")
    await page.keyboard.type("stripes")
    await expect(page.locator(":focus")).to_have_value("stripes")
    await window.follow(name)
    await page.keyboard.press("f")
    await page.keyboard.type("zebra")
    await expect(page.locator("#filter")).to_have_value("zebra")
    await page.keyboard.press("ArrowDown")
    await page.keyboard.press("Enter")
    await window.live()
    await expect(page.locator("#timeline")).to_be_focused()
    await page.keyboard.press("Escape")
    await expect(page.locator(":focus")).to_contain_text("Stripes.")
    await expect(page.locator("#app")).to_have_attribute("data-view", "list")


async def test_a_list_that_shows_few_of_many_reads_on(window: Window, site: Site) -> None:
    """Of others' conversations `authorize` leaves pages with few in them, or none."""
    name = site.name("mine")
    site.store.append(name, user("Mine."))

    async def few(route: Route) -> None:
        answer = await route.fetch()
        page = await answer.json()
        if "cursor=" in route.request.url:
            await route.fulfill(response=answer)
        else:
            await route.fulfill(response=answer, json={"conversations": [], "next": "0" * bool(page)})

    await window.page.route("**/v1/conversations?*", few)
    page = await window.open()
    await expect(_card(page, name)).to_contain_text("Mine.")
    assert "No conversation yet" not in await page.locator("#list-note").inner_text()


async def test_texts_that_are_meant_to_freeze_the_page(window: Window) -> None:
    page = await window.open()
    found = await page.evaluate("""async () => {
        const { markdown, prose } = await import(new URL("static/markdown.js", location.href.split("#")[0]).href);
        const many = (text) => text.repeat(400_000);
        const hostile = ["```" + many(" ") + "x`", "~~~" + many("a") + "`", "```" + many("a ") + "`"];
        const fenced = prose("Look:\\n```python title\\nx = 1\\n```\\nand\\n~~~~\\n```\\n~~~~\\n``` no `code`");
        const kinds = ["[", "![", "*a_", "**b]", "> ", "- ", "`a", "<a ", "a@b.", "|a\\n|-\\n", "[a]: ", "&", "~~b]"];
        const codes = { py: ["a", "'", "f'{"], js: ["a", "`${", "/ ", "/*", "'"], bash: ["a.", "$(", "; "] };
        const many6 = (one) => one.repeat(6_000 / one.length);
        const written = Object.entries(codes).flatMap(([name, all]) => all.map((one) => [name, many6(one)]));
        const began = performance.now();
        for (const kind of kinds) markdown(kind.repeat(19_990 / kind.length));
        for (const [name, text] of written) markdown(`~~~${name}\\n${text}\\n`);
        const plain = hostile.map((text) => prose(text).children.length);
        const spent = performance.now() - began;
        return { plain, fenced: [...fenced.children].map((one) => [one.tagName, one.textContent]), spent };
    }""")
    assert found["plain"] == [1, 1, 1]
    assert found["spent"] < 10_000, "27 texts; a quadratic parser takes minutes"
    assert found["fenced"] == [
        ["P", "Look:"],
        ["PRE", "pythonCopyx = 1"],
        ["P", "and"],
        ["PRE", "Copy```"],
        ["P", "``` no code"],
    ]


async def test_what_is_typed_while_a_message_is_sent_stays(windows: Windows, site: Site) -> None:
    one, two = site.name("one"), site.name("two")
    for name in (one, two):
        site.store.append(name, user("Hello."))
    with serve(site.url, "live", "--allow-writes") as served:
        window = await windows(served.url)
        page = await window.open(one)
        draft = page.locator("#draft")
        async with Held(page, "**/messages") as answer:
            await draft.fill("First.")
            await draft.press("Enter")
            await answer.there.wait()
            await draft.press_sequentially(" And more")
        await expect(draft).to_have_value("And more")
        async with Held(page, "**/messages") as answer:
            await draft.press("Enter")
            await answer.there.wait()
            await page.evaluate("hash => { location.hash = hash }", f"conversation={two}")
            await draft.fill("For the other.")
        await window.live()
        await expect(draft).to_have_value("For the other.")
        await window.follow(one)
        await expect(draft).to_have_value("")
        await expect(window.said("And more")).to_be_visible()
        window.outage = True  # the server ends before the window
    texts = [message.text for message in site.store.get(one)]
    assert texts == ["Hello.", "First.", "And more"]


@pytest.mark.full
async def test_a_store_that_is_away_is_told(windows: Windows, own_server: Any) -> None:
    server = own_server("plain", tcp=True)
    with serve(server.url, "away") as served, HistoryStore(server.url, namespace="away") as store:
        store.append("c", Message(role="user", parts="Hello."))
        window = await windows(served.url)
        page = await window.open("c")
        window.outage = True
        server.kill()
        await expect(page.locator("#link")).to_have_attribute("data-state", "waiting")
        await expect(page.locator("#banner")).to_contain_text("The store cannot be reached")
        server.start()
        store.append("c", user("Again."))
        await expect(window.said("Again.")).to_be_visible()
        await window.live()
        await expect(page.locator("#banner")).to_be_hidden()
