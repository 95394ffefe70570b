"""The page in real Chromium: what it shows, search, export, and writing."""

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, Route, expect

from redis_history import Conversation, Message, assistant, system, tool_use, user
from redis_history.formats import from_anthropic
from redis_history.values import AttachmentPart, Participant, ReasoningPart, Source, TextPart, ToolResultPart
from tests.support.servers import wait_until
from tests.support.web import serve
from tests.web.browsing import Site, Window, Windows, copied, no_sideways_scrolling

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADA = Participant("agent", "ada", "Ada")


def called(name: str, arguments: Any, *before: Any) -> Message:
    return Message(role="assistant", participant=ADA, parts=[*before, tool_use("call", name, arguments)])


def returned(content: Any, **fields: Any) -> Message:
    return Message(role="tool", parts=ToolResultPart("call", content, **fields))


async def test_the_list_has_the_dates_of_conversations(window: Window, site: Site) -> None:
    names = [site.name(kind) for kind in ("today", "yesterday", "earlier")]
    now = datetime.now(UTC)
    for name, days in zip(names, (0, 1, 400), strict=True):
        times = (now - timedelta(days=days, minutes=1), now - timedelta(days=days))
        site.store.append_many(name, [Message(role="user", parts="Hello.", timestamp=time) for time in times])
    page = await window.open(names[2])
    await page.get_by_label("Filter conversations").fill(names[0].rpartition("-")[2])
    await expect(page.locator("#list-title")).to_have_text("1 conversation")
    await page.get_by_label("Filter conversations").fill("")
    await expect(page.locator(".conversations .group")).to_have_text(["Today", "Yesterday", "Earlier"])
    order = "[...document.querySelectorAll('.conversations > li')].map(one => one.dataset.id ?? one.textContent)"
    expected = ["Today", names[0], "Yesterday", names[1], "Earlier", names[2]]
    assert [one for one in await page.evaluate(order) if one in expected] == expected
    year = str((now - timedelta(days=400)).year)
    await expect(page.locator("#facts")).to_contain_text(year)
    await expect(window.card(names[2]).locator("time")).to_contain_text(year)


async def test_calls_fold_beside_their_results(window: Window, site: Site) -> None:
    name = site.name("tools")
    asked = called("price", {"shop": "north", "deep": {"list": [1, 2.5, None]}}, ReasoningPart("Two shops have it."))
    failed = returned("the shop is closed", is_error=True)
    stray = Message(role="tool", parts=ToolResultPart("unknown", "left over", name="stray"))
    # Ids of calls repeat.
    messages = [user("?"), asked, returned('{"price": 12}'), called("price", {"shop": "south"}), failed, stray]
    site.store.append_many(name, messages)
    page = await window.open(name)
    await expect(page.locator(".tool")).to_have_count(3)
    first, second, third = (page.locator(".tool").nth(number) for number in range(3))
    await expect(first).to_have_attribute("data-state", "done")
    await expect(second).to_have_attribute("data-state", "error")
    await expect(second).to_contain_text("the shop is closed")
    await expect(third).to_contain_text("stray")
    await first.locator(".tool-head").click()
    columns = first.locator(".column")
    await expect(columns.nth(0)).to_contain_text('"shop": "north"')
    await expect(columns.nth(1)).to_contain_text('"price": 12')
    left, right = [await columns.nth(number).bounding_box() or {} for number in (0, 1)]
    assert (left["y"], left["x"] + left["width"] < right["x"]) == (right["y"], True)
    await first.locator(".tool-head").click()
    await expect(first.locator(".tool-body")).to_have_count(0)
    await page.get_by_role("button", name="Reasoning").click()
    await expect(page.locator(".reasoning-body")).to_have_text("Two shops have it.")
    assert len(await window.ids()) == 4, "the results are shown at their calls"


async def test_all_parts_of_messages_are_shown(window: Window, site: Site) -> None:
    name, now = site.name("parts"), datetime.now(UTC)
    long = "A beginning.\n" + "word " * 600 + "The very end."
    file = AttachmentPart(name="plan.pdf", size=1_500_000, modality="document", mime_type="application/pdf")
    question = Message(
        role="user",
        participant=Participant("user", "u", "Bo"),
        parts=[TextPart("See `this`:\n```python\nprint('hi')\n```\nand # *more*."), file],
        metadata={"mentions": ["ada"], "channel_name": "#plans"},
        timestamp=now - timedelta(seconds=3),
    )
    sources = (Source(document_name="The handbook", chunk="Page one.", score=0.5),)
    usage = {"input_tokens": 1200, "output_tokens": 34}
    reply = from_anthropic([{"role": "assistant", "model": "model-1", "content": "Yes.", "usage": usage}])[0]
    site.store.append_many(
        name,
        [
            system("You are kind.", timestamp=now - timedelta(seconds=9)),
            question,
            replace(reply, timestamp=now, metadata={"cost_usd": 0.0042}),
            Message(role="user", participant=ADA, parts=TextPart(long), sources=sources),
            assistant("x" * 30_000 + " the end of it all"),
        ],
    )
    page = await window.open(name)
    await page.keyboard.press("g")
    await expect(page.locator(".code")).to_have_text("pythonCopyprint('hi')")
    await expect(page.locator(".prose p > code")).to_have_text("this")
    await expect(window.said("and # *more*.")).to_be_visible()
    await expect(page.locator(".chip")).to_contain_text("plan.pdf")
    await expect(page.locator(".chip")).to_contain_text("1.5 MB")
    await expect(page.locator(".to")).to_have_text("to Ada")
    await expect(page.locator(".channel")).to_have_text("#plans")
    await expect(page.locator(".heading").nth(2)).to_contain_text("model-1 · 1,200 → 34 tokens · $0.0042 · after 3.0 s")
    await expect(page.locator(".role").nth(3)).to_have_text("agent, as user")
    end = window.said("The very end.")
    await expect(end).to_have_count(0)
    await page.get_by_role("button", name="Show all 3,026 characters").click()
    await expect(end).to_have_count(1)
    await page.get_by_role("button", name="Show less").click()
    await expect(end).to_have_count(0)
    await page.get_by_role("button", name="1 source").click()
    await expect(page.locator(".sources-body")).to_contain_text("Page one.")
    row = page.locator(".row").nth(3)
    await row.hover()
    assert await copied(page, row.get_by_role("button", name="Copy")) == long
    href = await row.get_by_role("link", name="JSON").get_attribute("href")
    assert (await page.evaluate("href => fetch(href).then(answer => answer.json())", href))["text"] == long
    link = await copied(page, row.get_by_role("button", name="Link"))
    await page.keyboard.press("G")
    await expect(window.said("the end of it all")).to_have_count(1)  # it was fetched
    await page.goto(link)
    await expect(page.locator(".row.target")).to_contain_text("A beginning.")


@pytest.mark.full
async def test_the_browser_that_the_command_opens_is_signed_in(
    chromium: Browser, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, browser = tmp_path / "opened", tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    browser.chmod(0o700)
    monkeypatch.setenv("BROWSER", str(browser))
    with serve(site.url, "live", "--open", token="") as served:
        wait_until(opened.exists, "the browser")
        context = await chromium.new_context()
        page = await context.new_page()
        await page.goto(opened.read_text().strip())
        await expect(page.locator("#namespace")).to_have_text("live")
        addresses = await page.evaluate("[location.href, document.referrer, document.title]")
        assert addresses[:2] == [served.base, ""]
        assert served.token not in "".join(addresses)
        await context.close()


@pytest.mark.full
async def test_search_leads_to_the_message(window: Window, site: Site) -> None:
    name, other = site.name("search"), site.name("search")
    site.store.append_many(name, [user(f"Filler {number}.", id=f"m{number}") for number in range(600)])
    site.store.append_many(other, [user(f"Borogove {number}.") for number in range(60)])
    site.store.update_message(name, user("😀 A quixotic plan. " + "word " * 400 + "quixotic at the end", id="m100"))
    site.store.append(other, user("Another quixotic plan."))
    page = await window.open(name)
    search, title = page.get_by_label("Search messages"), page.locator("#search-title")
    await page.keyboard.press("/")
    await page.keyboard.type("quixotic")
    await expect(title).to_have_text("2 results")
    await page.get_by_label("Only this conversation").check()
    await expect(page.locator(".hit")).to_have_count(1)
    assert await page.locator(".hit mark").all_inner_texts() == ["quixotic"]
    await page.locator(".hit").click()
    await expect(page.locator(".row.target")).to_be_in_viewport()
    await expect(page.locator(".row.target")).to_have_attribute("data-id", "m100")
    await window.until("() => CSS.highlights.get('found')?.size >= 1")
    assert {"m99", "m101"} <= set(await window.ids())
    newer = page.locator("#newer")
    await expect(newer).to_have_text("To the newest ↓")
    site.store.append(name, user("This is new."))
    await expect(newer).to_have_text("1 new message ↓")
    await newer.click()
    await expect(window.said("This is new.")).to_be_in_viewport()
    await page.get_by_label("Only this conversation").uncheck()
    await search.fill("borogove")
    await expect(title).to_have_text("The best 50 of 60 results")
    await search.fill("nothingatall")
    await expect(title).to_have_text("Nothing found")
    await page.keyboard.press("Escape")
    await expect(page.locator("#list-pane")).to_be_visible()


@pytest.mark.full
async def test_search_filters_and_groups_by_conversation(window: Window, site: Site) -> None:
    bo, old = Participant("user", "u-bo", "Bo Ek"), datetime(2020, 5, 4, 12, tzinfo=UTC)
    store, titled, untitled = site.store, site.name("titled"), site.name("untitled")
    word = titled.replace("-", "")
    store.create_conversation(Conversation(titled, title="About the zeppelin"))
    store.append(titled, Message(role="user", parts=f"A {word} plan.", participant=bo, timestamp=old))
    store.append(titled, assistant(f"{word} indeed."))
    asked = [user(f"What is {word}?"), called("look_up", {}, TextPart(f"A {word} search."))]
    store.append_many(untitled, asked)

    async def no_conversations(route: Route) -> None:
        await route.fulfill(json={"conversations": [], "next": None})

    await window.page.route("**/v1/conversations?*", no_conversations)
    page = await window.open()
    await page.get_by_label("Search messages").fill(word)
    hits, heads = page.locator(".hit"), page.locator("#hits h3")
    await expect(hits).to_have_count(4)
    await expect(heads.filter(has_text=re.compile("About the zeppelin|What is"))).to_have_count(2)
    await page.get_by_text("Filters").click()
    await page.get_by_label("Role").select_option("assistant")
    await expect(hits).to_have_count(2)
    await page.get_by_label("Tool").fill("look_up")
    await expect(hits).to_have_text([re.compile(f"A {word} search")])
    await page.get_by_role("button", name="Clear").click()
    await expect(hits).to_have_count(4)
    await page.get_by_label("Participant", exact=True).fill("bo ek")
    await expect(hits).to_have_text([re.compile(f"A {word} plan")])
    await page.get_by_role("button", name="Clear").click()
    await page.get_by_label("to", exact=True).fill("2020-05-04")
    await expect(hits).to_have_text([re.compile(f"A {word} plan")])
    await page.get_by_label("from", exact=True).fill("2020-05-05")
    await expect(page.locator("#search-title")).to_have_text("Nothing found")


async def test_search_finds_archived_messages(window: Window, site: Site) -> None:
    name = site.name("archive")
    site.store.append_many(name, [user(f"Point {number}.", id=f"m{number}") for number in range(30)])
    last = site.store.append_many(name, [user("The walrus was first."), user("End of that.")])[1].message
    site.store.compact(name, through=last, summary="[Earlier conversation summary: points]")
    site.store.append(name, user("And now?"))
    page = await window.open(name)
    await page.get_by_label("Search messages").fill("walrus")
    hit = page.locator(".hit", has_text="walrus")
    await expect(hit).to_contain_text("in a summary")
    await hit.click()
    await expect(page.locator(".row.archived.target")).to_be_in_viewport()
    await expect(page.locator(".row.target")).to_contain_text("The walrus was first.")
    await page.keyboard.press("g")
    await page.get_by_role("button", name="Hide the originals").click()
    await expect(page.locator(".row")).to_have_count(2)
    summary = page.locator(".summary").filter(has_text="points")
    await expect(summary).to_be_visible()
    await page.get_by_role("button", name="Show the originals").click()
    await expect(window.said("Point 3.")).to_be_visible()
    await expect(summary).to_have_count(0)  # the originals are in its place


async def test_a_conversation_is_exported(window: Window, site: Site) -> None:
    name, long = site.name("export"), "x" * 30_000
    site.store.create_conversation(Conversation(name, title="Plans/2026"))
    texts = [f"Line {number}." for number in range(1200)]
    site.store.append_many(name, list(map(user, texts[:600])))
    rest = [*map(user, texts[600:]), assistant(long), called("look_up", {"a": "```"}), returned("found")]
    site.store.append_many(name, rest)
    page = await window.open(name)
    exported = {}
    for kind in ("JSON", "Markdown"):
        await page.get_by_role("button", name="Export").click()
        async with page.expect_download() as download:
            await page.locator("dialog[open]").get_by_role("button", name=kind).click()
        saved = await download.value
        exported[saved.suggested_filename] = await asyncio.to_thread((await saved.path()).read_text)
    assert exported.keys() == {"Plans-2026.json", "Plans-2026.md"}
    found = json.loads(exported["Plans-2026.json"])
    assert found["conversation"]["id"] == name
    assert [message["text"] for message in found["messages"][:1201]] == [*texts, long]
    text = exported["Plans-2026.md"]
    assert text.startswith("# Plans/2026\n\n## User, ")
    assert text.index("Line 1199.") < text.index(long) < text.index("Call of look_up:\n\n````") < text.index("found")


async def test_light_dark_and_as_the_system(windows: Windows, site: Site) -> None:
    window = await windows(site.address, color_scheme="dark")
    page = await window.open()
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(paper)
    await page.emulate_media(color_scheme="light")
    assert await page.evaluate(paper) == "rgb(255, 255, 255)" != dark
    button = page.get_by_role("button", name="Colors")
    await button.click()
    await page.keyboard.press("t")
    await expect(button).to_have_attribute("aria-label", "Colors: dark")
    assert await page.evaluate(paper) == dark
    await page.reload()
    assert await page.evaluate(paper) == dark


async def test_a_phone_shows_one_thing_at_a_time(windows: Windows, site: Site) -> None:
    name = site.name("phone")
    site.store.create_conversation(Conversation(name, title="A title that is far too long for the width of a phone"))
    site.store.append(name, user("https://example.com/" + "a" * 300 + "\n```\n" + "wide " * 60 + "\n```"))
    call = tool_use("call", "a_tool_with_quite_a_long_name_indeed", {"key": "v" * 200})
    site.store.append(name, Message(role="assistant", participant=Participant("agent", "a", "n" * 90), parts=call))
    phone = {"width": 390, "height": 844}
    window = await windows(site.address, viewport=phone, is_mobile=True, has_touch=True, device_scale_factor=2)
    page = await window.open()
    await expect(page.locator("#main")).to_be_hidden()
    await no_sideways_scrolling(page)
    await window.card(name).locator("a").tap()
    await expect(page.locator(".row")).to_have_count(2)
    await expect(page.locator(".sidebar")).to_be_hidden()
    await page.locator(".tool-head").tap()
    await expect(page.locator(".tool-body")).to_be_visible()
    await no_sideways_scrolling(page)
    await page.get_by_role("button", name="Back").tap()
    await expect(page.locator(".sidebar")).to_be_visible()
    await page.go_back()
    await expect(page.locator(".row")).to_have_count(2)


async def test_writing_where_it_is_allowed(windows: Windows, desk: Site) -> None:
    name, store = desk.name("writing"), desk.store
    store.append(name, assistant("How can I help?"))
    window = await windows(desk.address)
    page = await window.open(name)
    title, field = page.locator("#title"), page.get_by_label("Title", exact=True)
    await page.get_by_label("Write a message").fill("With two\nlines.")
    await page.keyboard.press("Enter")
    await expect(window.said("With two")).to_be_in_viewport()
    assert [(one.role, one.text) for one in store.get(name)][1:] == [("user", "With two\nlines.")]
    await page.get_by_role("button", name="Rename").click()
    await field.fill("A title")
    await page.keyboard.press("Enter")
    await expect(title).to_have_text("A title")
    await page.get_by_role("button", name="Rename").click()
    await expect(field).to_have_value("A title")
    await field.fill("Another")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.keyboard.press("Enter")  # cancels
    await expect(page.locator("dialog[open]")).to_have_count(0)
    await expect(title).to_have_text("A title")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await page.locator("dialog[open]").get_by_role("button", name="Delete", exact=True).click()
    await expect(page.locator("#welcome")).to_be_visible()
    assert store.get_conversation(name) is None


@pytest.mark.full
async def test_branches_and_pins(windows: Windows, desk: Site) -> None:
    name, store = desk.name("branches"), desk.store
    store.append_many(name, [user("Name a color."), assistant("Red.", id="red"), user("Why?")])
    window = await windows(desk.address)
    page = await window.open(name)
    row = page.locator(".row[data-id=red]")
    await row.hover()
    await row.get_by_role("button", name="Pin", exact=True).click()
    await expect(row.get_by_text("pinned")).to_be_visible()
    assert [one.id for one in store.get(name) if one.metadata.get("pinned")] == ["red"]
    await row.get_by_role("button", name="Unpin").click()
    await expect(row.get_by_text("pinned")).to_have_count(0)
    with store.stream(name, id="reply") as reply:
        reply.write("Because")
        written = page.locator(".row[data-id=reply]")
        await expect(written).to_contain_text("Because")
        await expect(written.get_by_role("button", name="Pin", exact=True, include_hidden=True)).to_have_count(0)
    await expect(written.get_by_role("button", name="Pin", exact=True, include_hidden=True)).to_have_count(1)
    await row.get_by_role("button", name="Branch").click()
    await expect(page.locator("#timeline .row")).to_have_count(2)
    [branch] = store.list_conversations(forked_from=name)
    assert [one.text for one in store.get(branch.conversation_id)] == ["Name a color.", "Red."]
    twig, another = desk.name("twig"), desk.name("another")
    store.fork(branch.conversation_id, twig)
    store.append(another, user("Hello"))
    names = "[...document.querySelectorAll('#conversations li[data-id]')].map(item => item.dataset.id)"
    shown = [another, name, branch.conversation_id, twig]
    await window.until(f"all => `${{{names}.filter(one => all.includes(one))}}` === `${{all}}`", shown)
    boxes = [await window.card(one).locator(".card-title").bounding_box() for one in shown]
    left = [box["x"] for box in boxes if box]
    assert left[0] == left[1] < left[2] < left[3]
    await expect(window.card(twig)).to_contain_text("branch")
