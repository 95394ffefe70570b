"""The page in real Chromium while replies are written: all of it is shown, and the page says what it
knows."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from playwright.async_api import expect

from redis_history import AsyncHistoryStore, assistant, tool, tool_result, tool_use, user
from tests.support.servers import RealServer
from tests.support.web import serve
from tests.web.browsing import Held, Network, Site, Window, Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Milliseconds within which the page notices an outage. It takes 2 s on a machine that is not busy.
NOTICED = 6_000


def store_of(site: Site) -> AsyncHistoryStore:
    return AsyncHistoryStore(site.url, namespace=site.store.namespace)


@pytest.mark.proves("page")
@pytest.mark.full
async def test_a_reply_is_shown_whole_while_it_is_written_and_afterwards(window: Window, site: Site) -> None:
    name = site.name("whole")
    site.store.append(name, user("Tell me everything."))
    page = await window.open(name)
    row = page.locator(".row[data-id=r]")
    written = ""
    async with store_of(site) as store, store.stream(name, id="r", interval=0.0) as reply:
        for number in range(12):
            paragraph = f"## Part {number}\n\n" + "Some **words** of it, and `code`. " * 60 + f"End of {number}.\n\n"
            await reply.write(paragraph)
            written += paragraph
            await expect(row).to_contain_text(f"End of {number}.")
            assert await row.locator("button.more").count() == 0
    assert len(written) > 20_000, "longer than a page of messages contains of one"
    await expect(row.locator(".caret")).to_have_count(0)
    shown = await row.locator(".prose").all_inner_texts()
    for again in (False, True):
        if again:
            await page.reload()
            await window.live()
        await expect(row.locator("h5")).to_have_count(12)
        assert await row.locator("button.more").count() == 0
        assert await row.locator(".prose").all_inner_texts() == shown


async def test_a_long_reply_is_whole_if_the_page_was_opened_in_the_middle(window: Window, site: Site) -> None:
    name, words = site.name("middle"), ("Some of it. " * 50 + "\n\n") * 40
    site.store.append(name, user("Tell me everything."))
    page = await window.open()
    row = page.locator(".row[data-id=r]")
    paragraphs = row.locator(".prose p")
    async with store_of(site) as store, store.stream(name, id="r", interval=0.0) as reply:
        await reply.add(tool_use("1", "find_it"))
        await reply.write(words)
        async with Held(page, "**/messages/r"):  # the whole text, as it was earlier
            await window.follow(name)
            await reply.write("The middle.\n\n")
            await expect(row).to_contain_text("The middle.")
        await reply.write("The end.")
    await expect(row.locator(".caret")).to_have_count(0)
    await expect(paragraphs).to_have_count(42)
    assert await paragraphs.nth(40).inner_text() == "The middle."
    site.store.update_message(name, assistant(f"{words}Edited.", id="r"))
    await expect(paragraphs).to_have_count(41)
    await expect(paragraphs.last).to_have_text("Edited.")


async def test_only_pasted_texts_and_output_of_tools_are_folded(window: Window, site: Site) -> None:
    name, long = site.name("folded"), "A line of a log.\n" * 200
    messages = [
        user(f"Why?\n\n{long}", id="pasted"),
        assistant(tool_use("1", "read", {"file": "a"}), id="call"),
        tool(tool_result("1", long)),
        assistant(long, id="answer"),
    ]
    site.store.append_many(name, messages)
    page = await window.open(name)
    await expect(page.locator(".row[data-id=answer]")).to_contain_text("A line of a log.")
    assert await page.locator(".row[data-id=answer] button.more").count() == 0
    await page.keyboard.press("g")
    pasted = page.locator(".row[data-id=pasted]")
    await pasted.get_by_role("button", name="Show all").click()
    await pasted.get_by_role("button", name="Show less").click()
    await page.get_by_role("button", name="Tool read").click()
    await expect(page.locator(".row[data-id=call]").get_by_role("button", name="Show all")).to_be_visible()


async def test_buttons_stay_under_the_pointer_while_a_reply_grows(windows: Windows, site: Site) -> None:
    window = await windows(site.address, viewport={"width": 1000, "height": 2000})
    name = site.name("pointer")
    site.store.append(name, user("Write code."))
    page = await window.open(name)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    async with store_of(site) as store, store.stream(name, id="r", interval=0.0) as reply:
        await reply.write("```py\nfirst = 1\n```\n\nAnd:\n\n```py\nsecond = 2\n")
        buttons = page.locator(".row[data-id=r] pre button")
        await expect(buttons).to_have_count(2)
        handles = await buttons.element_handles()
        await buttons.first.hover()
        await page.mouse.down()
        for number in range(20):
            await reply.write(f"third = {number}\n")
        await expect(page.locator(".row[data-id=r]")).to_contain_text("third = 19")
        await page.mouse.up()  # a click on the element on which it began
        await expect(buttons.first).to_have_text("Copied")
        await reply.write("```\n\nDone.")
        await expect(page.locator(".row[data-id=r]")).to_contain_text("Done.")
        assert all([await handle.evaluate("button => button.isConnected") for handle in handles])
        await handles[1].click()
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == "second = 2\n" + "\n".join(f"third = {number}" for number in range(20))
    await expect(page.locator(".row[data-id=r] .caret")).to_have_count(0)
    assert all([await handle.evaluate("button => button.isConnected") for handle in handles]), (
        "the end replaces nothing"
    )


@pytest.mark.full
async def test_the_page_follows_a_reply_only_from_its_end(window: Window, site: Site) -> None:
    name = site.name("follow")
    site.store.append_many(name, [user(f"Line {number}.\n" + "word " * 80) for number in range(20)])
    page = await window.open(name)
    box = "document.querySelector('#timeline')"
    left = f"() => {box}.scrollHeight - {box}.scrollTop - {box}.clientHeight"
    top = f"{box}.scrollTop"
    row = page.locator(".row[data-id=r]")
    async with store_of(site) as store, store.stream(name, id="r", interval=0.0) as reply:
        for number in range(30):
            await reply.write(f"Paragraph {number}.\n\n")
        await expect(row).to_contain_text("Paragraph 29.")
        await window.until(f"() => ({left})() < 2")
        # A slow browser reports the page's own scroll to the end only when a line below has made the view lower.
        lower = f"{box}.style.maxHeight = `${{{box}.clientHeight - 100}}px`; {box}.dispatchEvent(new Event('scroll'))"
        await page.evaluate(f"() => {{ {lower} }}")
        await window.until(f"() => ({left})() < 2")
        await page.mouse.move(800, 400)
        await page.mouse.wheel(0, -500)  # the reader looks at what was said before
        await window.until(f"() => ({left})() > 400")
        place = await page.evaluate(top)
        for number in range(30, 60):
            await reply.write(f"Paragraph {number}.\n\n")
        await expect(row).to_contain_text("Paragraph 59.")
        assert await page.evaluate(top) == place
        await page.locator("#newer").click()
        await window.until(f"() => ({left})() < 2")
        await reply.write("The last one.")
        await expect(row).to_contain_text("The last one.")
        await window.until(f"() => ({left})() < 2")


@pytest.mark.proves("page")
@pytest.mark.full
async def test_twenty_replies_in_one_conversation_and_twenty_conversations(windows: Windows, site: Site) -> None:
    window = await windows(site.address, viewport={"width": 1000, "height": 6000})
    one, others = site.name("one"), [site.name("other") for _ in range(20)]
    for name in (one, *others):
        site.store.append(name, user("All at once."))
    page = await window.open(one)
    tokens = 60
    # The shown part of a reply is its beginning at any time.
    await page.evaluate("""() => {
        window.shown = {};
        window.wrong = [];
        new MutationObserver(() => {
          for (const row of document.querySelectorAll(".row.streaming")) {
            const text = row.querySelector(".prose")?.textContent ?? "";
            const { id } = row.dataset;
            if (!text.startsWith(window.shown[id] ?? "")) window.wrong.push([id, window.shown[id], text]);
            window.shown[id] = text;
          }
        }).observe(document.querySelector("#timeline"), { childList: true, characterData: true, subtree: true });
    }""")

    async def write(store: AsyncHistoryStore, name: str, id_: str) -> None:
        async with store.stream(name, id=id_) as reply:
            for number in range(tokens):
                await reply.write(f"{id_}-{number} ")
                await asyncio.sleep(0.02)

    expected = {f"r{number}": "".join(f"r{number}-{at} " for at in range(tokens)).strip() for number in range(20)}
    async with store_of(site) as store:
        await asyncio.gather(
            *(write(store, one, id_) for id_ in expected), *(write(store, name, "r0") for name in others)
        )
    await expect(page.locator(".row.streaming")).to_have_count(0)
    texts = await page.evaluate("""() => {
        const rows = [...document.querySelectorAll(".row.complete")];
        return Object.fromEntries(rows.map((row) => [row.dataset.id, row.querySelector(".prose").textContent.trim()]));
    }""")
    assert {id_: texts.get(id_) for id_ in expected} == expected
    assert await page.evaluate("window.wrong") == []
    for name in others[:5]:
        await window.follow(name)
        await expect(page.locator(".row[data-id=r0]")).to_contain_text(expected["r0"])


#: The texts of the page in each outage.
OUTAGES = {
    "network frozen": "Nothing arrives from the server",
    "server frozen": "Nothing arrives from the server",
    "server gone": "The server cannot be reached",
    "redis frozen": "The store cannot be reached",
    "redis gone": "The store cannot be reached",
    "offline": "This device is offline",
}


@pytest.mark.parametrize(
    "what", [pytest.param(one, marks=[pytest.mark.full] * (one != "network frozen")) for one in OUTAGES]
)
@pytest.mark.proves("page")
@pytest.mark.full
async def test_an_outage_is_said_at_once(what: str, windows: Windows, own_server: Callable[..., RealServer]) -> None:
    server = own_server("plain", tcp=True)
    with serve(server.url, "outage") as served, closing(Network(served.port)) as network:
        async with AsyncHistoryStore(server.url, namespace="outage") as store:
            await store.append("c", user("Hello."))
            window = await windows(served.url.replace(f":{served.port}/", f":{network.port}/"))
            window.outage = True
            page = await window.open("c")
            light, banner, activity = map(page.locator, ("#link", "#banner", "#activity.active"))
            reply = store.stream("c", id="r")
            await reply.write("Half of")
            await expect(activity).to_contain_text("is writing")
            changes: dict[str, tuple[Any, Any]] = {
                "redis gone": (server.kill, server.start),
                "redis frozen": (
                    partial(os.kill, server.pid, signal.SIGSTOP),
                    partial(os.kill, server.pid, signal.SIGCONT),
                ),
                "server gone": (partial(served.end, signal.SIGKILL), None),
                "server frozen": (
                    partial(served.process.send_signal, signal.SIGSTOP),
                    partial(served.process.send_signal, signal.SIGCONT),
                ),
            }
            begin, end = changes.get(what, (network.freeze, network.mend))
            begin()
            await page.context.set_offline(what == "offline")
            await expect(light).not_to_have_attribute("data-state", "open", timeout=NOTICED)
            await expect(banner).to_contain_text(OUTAGES[what], timeout=NOTICED)
            await expect(banner).to_contain_text("when it is back")
            await expect(activity).to_have_count(0)
            if end is None:
                return
            end()
            await page.context.set_offline(False)
            await window.live()
            await expect(banner).to_be_hidden()
            if what != "redis gone":  # which has lost its data
                await reply.write(" the reply")
                await expect(page.locator(".row[data-id=r]")).to_contain_text("Half of the reply")
                await reply.aclose()
