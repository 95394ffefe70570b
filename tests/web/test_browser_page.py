"""The page in real Chromium: what it shows, and how one gets about in it."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser, Page, Route, expect

from redis_history import Conversation, HistoryStore, Message, assistant, system, tool_use, user
from redis_history.formats import from_anthropic
from redis_history.model import AttachmentPart, Participant, ReasoningPart, Source, TextPart, ToolResultPart
from tests.conftest import Servers
from tests.support.servers import wait_until
from tests.support.web import serve
from tests.web import scenes
from tests.web.browsing import Site, Window, Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

_ADA = Participant("agent", "ada", "Ada")
_HOSTILE = '</script><script>window.pwned = 1</script><img src=x onerror="window.pwned = 1"><b onclick=x>bold</b>'


async def test_the_token_is_not_in_the_address(window: Window, site: Site) -> None:
    page = await window.open()
    assert page.url == window.base
    await expect(page.locator("#namespace")).to_have_text(site.store.namespace)
    await expect(page.locator("#welcome")).to_be_visible()


async def test_the_list_has_the_dates_of_conversations(window: Window, site: Site) -> None:
    today, yesterday, earlier = (site.name(kind) for kind in ("today", "yesterday", "earlier"))
    now = datetime.now(UTC)
    for name, days in ((today, 0), (earlier, 400), (yesterday, 1)):
        times = (now - timedelta(days=days, minutes=1), now - timedelta(days=days))
        site.store.append_many(name, [Message(role="user", parts="Hello.", timestamp=time) for time in times])
    page = await window.open(earlier)
    await page.get_by_label("Filter conversations").fill(today.rpartition("-")[2])
    await expect(page.locator("#list-title")).to_have_text("1 conversation")
    await page.get_by_label("Filter conversations").fill("")
    await expect(page.locator(".conversations .group")).to_have_text(["Today", "Yesterday", "Earlier"])
    order = "[...document.querySelectorAll('.conversations > li')].map(one => one.dataset.id ?? one.textContent)"
    found = await page.evaluate(order)
    wanted = ("Today", today, "Yesterday", yesterday, "Earlier", earlier)
    assert [one for one in found if one in wanted] == list(wanted)
    year = str((now - timedelta(days=400)).year)
    await expect(page.locator("#facts")).to_contain_text(year)
    await expect(page.locator(f"li[data-id='{earlier}'] time")).to_contain_text(year)


async def test_calls_fold_beside_their_results(window: Window, site: Site) -> None:
    name = site.name("tools")
    again = {"id": "call_1"}  # ids come back
    site.store.append_many(
        name,
        [
            user("Which is cheaper?"),
            Message(
                role="assistant",
                participant=_ADA,
                parts=[
                    ReasoningPart("Two shops have it. Ask both."),
                    tool_use(again["id"], "price", {"shop": "north", "deep": {"list": [1, 2.5, None]}}),
                ],
            ),
            Message(role="tool", parts=ToolResultPart(again["id"], '{"price": 12}')),
            Message(role="assistant", participant=_ADA, parts=tool_use(again["id"], "price", {"shop": "south"})),
            Message(role="tool", parts=ToolResultPart(again["id"], "the shop is closed", is_error=True)),
            Message(role="tool", parts=ToolResultPart("nobody-asked", "left over", name="stray")),
        ],
    )
    page = await window.open(name)
    await expect(page.locator(".tool")).to_have_count(3)
    first, second, stray = (page.locator(".tool").nth(number) for number in range(3))
    await expect(first).to_have_attribute("data-state", "done")
    await expect(second).to_have_attribute("data-state", "error")
    await expect(second).to_contain_text("the shop is closed")
    await expect(stray).to_contain_text("stray")
    await expect(first.locator(".tool-body")).to_have_count(0)
    await first.locator(".tool-head").click()
    columns = first.locator(".column")
    await expect(columns.nth(0)).to_contain_text('"shop": "north"')
    await expect(columns.nth(1)).to_contain_text('"price": 12')
    left, right = await columns.nth(0).bounding_box(), await columns.nth(1).bounding_box()
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]
    await first.locator(".tool-head").click()
    await expect(first.locator(".tool-body")).to_have_count(0)
    await expect(window.said("Two shops have it. Ask both.")).to_have_class("preview")
    await page.get_by_role("button", name="Reasoning").click()
    await expect(page.locator(".reasoning-body")).to_have_text("Two shops have it. Ask both.")
    assert len(await window.ids()) == 4  # the results have no rows of their own


async def test_all_parts_of_messages_are_shown(window: Window, site: Site) -> None:
    name = site.name("parts")
    long = "A beginning.\n" + "word " * 600 + "The very end."
    huge = "x" * 30_000 + " the end of it all"
    site.store.append_many(
        name,
        [
            system("You are kind."),
            Message(
                role="user",
                participant=Participant("user", "u", "Bo"),
                parts=[
                    TextPart("See `this`:\n```python\nprint('hi')\n```\nand tell."),
                    AttachmentPart(name="plan.pdf", size=1_500_000, modality="document", mime_type="application/pdf"),
                ],
                metadata={"mentions": ["ada"], "channel_name": "#plans"},
            ),
            Message(
                role="user",
                participant=_ADA,
                parts=TextPart(long),
                sources=(Source(document_name="The handbook", chunk="Page one.", score=0.5),),
            ),
            assistant(huge),
        ],
    )
    page = await window.open(name)
    await page.keyboard.press("g")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    row = page.locator(".row").nth(2)
    await row.hover()
    await row.get_by_role("button", name="Copy").click()
    await expect(row.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == long
    href = await row.get_by_role("link", name="JSON").get_attribute("href")
    found = await page.evaluate("href => fetch(href).then(answer => answer.json())", href)
    assert found["text"] == long
    await expect(page.locator(".code")).to_have_text("pythonCopyprint('hi')")
    await expect(page.locator(".prose p > code")).to_have_text("this")
    await expect(page.locator(".chip")).to_contain_text("plan.pdf")
    await expect(page.locator(".chip")).to_contain_text("1.5 MB")
    await expect(page.locator(".to")).to_have_text("to Ada")
    await expect(page.locator(".channel")).to_have_text("#plans")
    await expect(page.locator(".role").nth(2)).to_have_text("agent, as user")
    await expect(window.said("The very end.")).to_have_count(0)
    await page.get_by_role("button", name="Show all 3,026 characters").click()
    await expect(window.said("The very end.")).to_have_count(1)
    await page.get_by_role("button", name="Show less").click()
    await expect(window.said("The very end.")).to_have_count(0)
    await page.get_by_role("button", name="1 source").click()
    await expect(page.locator(".sources-body")).to_contain_text("Page one.")
    await page.keyboard.press("G")
    await page.get_by_role("button", name="Show all 30,018 characters").click()
    await expect(window.said("the end of it all")).to_have_count(1)  # it was fetched


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


@pytest.mark.proves("browser-text")
async def test_hostile_content_is_shown_as_text(window: Window, site: Site) -> None:
    name = f"<img src=x onerror=alert(1)>/../{site.name('hostile')}\n\u202e#&?=%00"
    who = Participant("agent", "x" * 200, _HOSTILE + "n" * 5_000)
    site.store.create_conversation(Conversation(name, title=_HOSTILE, user_id=_HOSTILE, agent_name=_HOSTILE))
    parts: list[Any] = [
        TextPart(_HOSTILE + "\n\nevent: gone\ndata: {}\n\n```html\n" + _HOSTILE + "\n```"),
        ReasoningPart(_HOSTILE),
        tool_use("c", _HOSTILE, {_HOSTILE: [_HOSTILE, {"__proto__": {"a": 1}, "constructor": 1}]}),
        AttachmentPart(name=_HOSTILE, reference="javascript:alert(1)", mime_type="text/html"),
    ]
    source = Source(document_name=_HOSTILE, chunk=_HOSTILE)
    site.store.append(
        name, Message(role="assistant", participant=who, parts=parts, sources=(source,), trace_id=_HOSTILE)
    )
    site.store.append(name, Message(role="tool", parts=ToolResultPart("c", [{"type": "text", "text": _HOSTILE}])))
    site.store.append(name, user("שלום, עולם! " + "مرحبا" + " 你好 " + "\u202e" + "👩‍👩‍👧‍👦" * 3))
    site.store.append(name, user("w" * 3_000))
    page = await window.open(name)
    await expect(page.locator("#title")).to_have_text(_HOSTILE)
    await expect(page.locator("#composer")).to_be_hidden()
    for change in ("Rename", "Delete"):
        await expect(page.get_by_role("button", name=change)).to_be_hidden()
    await expect(page.locator(".row")).to_have_count(3)
    for button in await page.locator(".fold").all():
        await button.click()
    await expect(page.locator(".prose p").first).to_contain_text("<img src=x onerror=")
    await page.get_by_label("Search messages").fill("bold")
    await expect(page.locator(".hit").first).to_be_visible()
    assert await page.evaluate("window.pwned") is None
    assert await page.locator("img:not([src='static/icon.svg']), script:not([src^='static/'])").count() == 0
    assert (
        await page.evaluate(
            "document.querySelectorAll('[style*=url], [onclick], [onerror], a[href^=javascript]').length"
        )
        == 0
    )
    await _no_sideways_scrolling(page)


async def test_markdown_is_rendered_without_markup_and_requests(window: Window, site: Site) -> None:
    name = site.name("markdown")
    text = (
        "# Plan\n\nA **bold** and *soft* ~~old~~ `code`, <b>no tag</b>\nand https://www.example.com\n\n"
        "- one\n  1. deep\n- two\n\n> quoted\n\n| a | b |\n|---|---|\n| 1 | [x](https://example.com/?q=1) |\n\n"
        "```js\nlet a;\n```\n\n![pixel](https://evil.example/p.png) [bad](javascript:alert(1)) [data](data:text/x,y)\n"
    )
    site.store.append(name, assistant(text))
    site.store.append(name, user("# As *typed*"))
    page = await window.open(name)
    prose = page.locator(".prose").first
    await expect(prose.locator("h4")).to_have_text("Plan")
    for tag, texts in (
        ("strong", ["bold"]),
        ("em", ["soft"]),
        ("s", ["old"]),
        ("p > code", ["code"]),
        ("td", ["1", "x"]),
    ):
        await expect(prose.locator(tag)).to_have_text(texts)
    await expect(prose.locator("> ul > li")).to_have_count(2)
    await expect(prose.locator("ol li")).to_have_text("deep")
    await expect(prose.locator("blockquote")).to_have_text("quoted")
    await expect(prose.locator(".code")).to_have_text("jsCopylet a;")
    await expect(prose.locator(".code-kwd")).to_have_text("let")
    await prose.locator(".code").hover()
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await prose.locator(".code").get_by_role("button", name="Copy").click()
    await expect(prose.locator(".code")).to_contain_text("Copied")
    assert await page.evaluate("navigator.clipboard.readText()") == "let a;"
    await expect(prose.locator("b, img")).to_have_count(0)
    await expect(prose).to_contain_text("<b>no tag</b>")
    hrefs = await prose.locator("a").evaluate_all("all => all.map(one => [one.getAttribute('href'), one.rel])")
    targets = ["https://www.example.com", "https://example.com/?q=1", "https://evil.example/p.png"]
    assert hrefs == [[href, "noopener noreferrer nofollow"] for href in targets]
    await expect(page.locator(".prose").nth(1)).to_have_text("# As *typed*")


async def test_search_leads_to_the_message(window: Window, site: Site) -> None:
    name, other = site.name("search"), site.name("search")
    site.store.create_conversation(Conversation(name, title="About the zeppelin"))
    site.store.append_many(name, [user(f"Filler {number}.", id=f"m{number}") for number in range(600)])
    site.store.append_many(other, [user(f"Borogove {number}.") for number in range(60)])
    site.store.update_message(name, user("😀 A quixotic plan. " + "word " * 400 + "quixotic at the end", id="m100"))
    site.store.append(other, user("Another quixotic plan."))
    page = await window.open(name)
    await page.keyboard.press("/")
    await page.keyboard.type("quixotic")
    await expect(page.locator(".hit")).to_have_count(2)
    await expect(page.locator("#search-title")).to_have_text("2 results")
    await page.get_by_label("Only this conversation").check()
    await expect(page.locator(".hit")).to_have_count(1)
    assert await page.locator(".hit mark").all_inner_texts() == ["quixotic"]
    await page.locator(".hit").click()
    await expect(page.locator(".row.target")).to_be_in_viewport()
    assert await page.locator(".row.target").get_attribute("data-id") == "m100"
    await window.until("() => CSS.highlights.get('found')?.size >= 1")
    await expect(page.locator("#newer")).to_have_text("To the newest ↓")
    ids = await window.ids()
    assert "m99" in ids
    assert "m101" in ids
    site.store.append(name, user("This is new."))
    await expect(page.locator("#newer")).to_have_text("1 new message ↓")
    await page.locator("#newer").click()
    await expect(window.said("This is new.")).to_be_in_viewport()
    await page.get_by_label("Only this conversation").uncheck()
    await page.get_by_label("Search messages").fill("borogove")
    await expect(page.locator("#search-title")).to_have_text("The best 50 of 60 results")
    await page.get_by_label("Search messages").fill("nothingatall")
    await expect(page.locator("#search-title")).to_have_text("Nothing found")
    await page.keyboard.press("Escape")
    await expect(page.locator("#list-pane")).to_be_visible()


async def test_search_filters_and_groups_by_conversation(windows: Windows, server_of: Servers, namespace: str) -> None:
    url = server_of("redis").url
    bo = Participant("user", "u-bo", "Bo Ek")
    with HistoryStore(url, namespace=namespace) as store, serve(url, namespace) as served:
        store.create_conversation(Conversation("titled", title="About the zeppelin"))
        old = datetime(2020, 5, 4, 12, tzinfo=UTC)
        store.append("titled", Message(role="user", parts="A quixotic plan.", participant=bo, timestamp=old))
        store.append("titled", assistant("Quixotic indeed."))
        call = Message(role="assistant", parts=[TextPart("A quixotic search."), tool_use("c", "look_up", {})])
        store.append_many("untitled", [user("What is quixotic?"), call])
        window = await windows(served.url)
        await window.page.route("**/v1/conversations?*", _no_conversations)
        page = await window.open()
        await page.get_by_label("Search messages").fill("quixotic")
        hits, heads = page.locator(".hit"), page.locator("#hits h3")
        await expect(hits).to_have_count(4)
        assert sorted(await heads.all_inner_texts()) == ["About the zeppelin", "What is quixotic?"]
        await page.get_by_text("Filters").click()
        await page.get_by_label("Role").select_option("assistant")
        await expect(hits).to_have_count(2)
        await page.get_by_label("Tool").fill("look_up")
        await expect(hits).to_have_text([re.compile("A quixotic search")])
        await page.get_by_role("button", name="Clear").click()
        await expect(hits).to_have_count(4)
        await page.get_by_label("Participant", exact=True).fill("bo ek")
        await expect(hits).to_have_text([re.compile("A quixotic plan")])
        await page.get_by_label("Participant", exact=True).fill("")
        await page.get_by_label("to", exact=True).fill("2020-05-04")
        await expect(hits).to_have_text([re.compile("A quixotic plan")])
        await page.get_by_label("from", exact=True).fill("2020-05-05")
        await expect(page.locator("#search-title")).to_have_text("Nothing found")
        await windows.close()


async def _no_conversations(route: Route) -> None:
    await route.fulfill(json={"conversations": [], "next": None})


async def test_search_finds_what_a_summary_stands_for(window: Window, site: Site) -> None:
    name = site.name("archive")
    site.store.append_many(name, [user(f"Point {number}.", id=f"m{number}") for number in range(30)])
    site.store.append(name, user("The walrus was first.", id="w"))
    last = site.store.append(name, user("End of that.")).message
    site.store.compact(name, through=last, summary="[Earlier conversation summary: points]")
    site.store.append(name, user("And now?"))
    page = await window.open(name)
    await page.get_by_label("Search messages").fill("walrus")
    hit = page.locator(".hit", has_text="walrus")
    await expect(hit).to_contain_text("in a summary")
    await hit.click()
    await expect(page.locator(".row.target")).to_be_in_viewport()
    await expect(page.locator(".row.target")).to_contain_text("The walrus was first.")
    await expect(page.locator(".row.archived")).not_to_have_count(0)
    await page.keyboard.press("g")
    await page.get_by_role("button", name="Hide the originals").click()
    await expect(page.locator(".row")).to_have_count(2)
    summary = page.locator(".summary").filter(has_text="points")
    await expect(summary).to_be_visible()
    await page.get_by_role("button", name="Show the originals").click()
    await expect(window.said("Point 3.")).to_be_visible()
    await expect(summary).to_have_count(0)  # they are in its place


async def test_a_conversation_is_exported(window: Window, site: Site) -> None:
    name = site.name("export")
    site.store.create_conversation(Conversation(name, title="Plans/2026"))
    long = "x" * 30_000
    call = Message(role="assistant", participant=_ADA, parts=[tool_use("c", "look_up", {"a": "```"})])
    result = Message(role="tool", parts=ToolResultPart("c", "found"))
    said = [user(f"Line {number}.", id=f"m{number}") for number in range(1200)]
    site.store.append_many(name, said[:600])
    site.store.append_many(name, [*said[600:], assistant(long), call, result])
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
    assert [message["text"] for message in found["messages"][:1201]] == [one.text for one in said] + [long]
    told = exported["Plans-2026.md"]
    assert told.startswith("# Plans/2026\n\n## User, ")
    assert told.index("Line 1199.") < told.index(long) < told.index("Call of look_up:\n\n````") < told.index("found")


async def test_facts_of_replies_are_shown(window: Window, site: Site) -> None:
    name = site.name("reply")
    begun = datetime.now(UTC) - timedelta(minutes=5)
    answer = {
        "role": "assistant",
        "model": "model-1",
        "content": "Yes.",
        "usage": {"input_tokens": 1200, "output_tokens": 34},
    }
    reply = replace(from_anthropic([answer])[0], timestamp=begun + timedelta(seconds=3), metadata={"cost_usd": 0.0042})
    site.store.append_many(name, [Message(role="user", parts="Is it?", timestamp=begun), reply])
    page = await window.open(name)
    await expect(page.locator(".heading").nth(1)).to_contain_text("model-1 · 1,200 → 34 tokens · $0.0042 · after 3.0 s")
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    row = page.locator(".row").nth(1)
    await row.hover()
    await row.get_by_role("button", name="Link").click()
    await expect(row.get_by_role("button", name="Copied")).to_be_visible()
    await page.goto(await page.evaluate("navigator.clipboard.readText()"))
    await expect(page.locator(".row.target")).to_contain_text("Yes.")


async def test_without_a_search_module_one_conversation_is_searched(
    windows: Windows, server_of: Servers, namespace: str
) -> None:
    url = server_of("plain").url
    with HistoryStore(url, namespace=namespace) as store, serve(url, namespace) as served:
        store.append("c", user("A quixotic plan."))
        window = await windows(served.url)
        page = await window.open()
        await page.get_by_label("Search messages").fill("quixotic")
        await expect(page.locator("#search-note")).to_contain_text("open a conversation")
        await page.keyboard.press("Escape")
        await window.follow("c")
        await page.get_by_label("Search messages").fill("quixotic")
        await expect(page.locator(".hit mark")).to_have_text("quixotic")
        await windows.close()


async def test_light_dark_and_as_the_system(windows: Windows, site: Site) -> None:
    name = site.name("colours")
    messages = scenes.first() + scenes.rest()
    site.store.append_many(name, messages)
    site.store.compact(name, through=messages[7], summary=scenes.SUMMARY)
    window = await windows(site.address, color_scheme="dark", viewport={"width": 1280, "height": 1600})
    page = await window.open(name)
    await expect(page.locator(".tool")).to_have_count(4)
    for number in (0, 2):
        await page.locator(".tool-head").nth(number).click()
    await page.locator(".sources-head").click()
    await page.get_by_role("button", name="Show the originals").click()
    await expect(page.locator(".row.archived")).not_to_have_count(0)
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = await page.evaluate(paper)
    await page.emulate_media(color_scheme="light")
    light = await page.evaluate(paper)
    assert light == "rgb(255, 255, 255)" != dark
    assert await page.evaluate(_CONTRAST) == []
    button = page.get_by_role("button", name="Colours")
    await button.click()
    await page.keyboard.press("t")
    await expect(button).to_have_attribute("aria-label", "Colours: dark")
    assert await page.evaluate(paper) == dark
    assert await page.evaluate(_CONTRAST) == []
    await page.reload()
    assert await page.evaluate(paper) == dark


async def test_a_phone_shows_one_thing_at_a_time(windows: Windows, site: Site) -> None:
    name = site.name("phone")
    site.store.create_conversation(Conversation(name, title="A title that is far too long for the width of a phone"))
    site.store.append(name, user("https://example.com/" + "a" * 300 + "\n```\n" + "wide " * 60 + "\n```"))
    call = tool_use("c", "a_tool_with_quite_a_long_name_indeed", {"key": "v" * 200})
    site.store.append(name, Message(role="assistant", participant=Participant("agent", "a", "n" * 90), parts=call))
    window = await windows(
        site.address, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True, device_scale_factor=2
    )
    page = await window.open()
    await expect(page.locator("#main")).to_be_hidden()
    await _no_sideways_scrolling(page)
    await page.locator(f"li[data-id='{name}'] a").tap()
    await expect(page.locator(".row")).to_have_count(2)
    await expect(page.locator(".sidebar")).to_be_hidden()
    await page.locator(".tool-head").tap()
    await expect(page.locator(".tool-body")).to_be_visible()
    await _no_sideways_scrolling(page)
    await page.get_by_role("button", name="Back").tap()
    await expect(page.locator(".sidebar")).to_be_visible()
    await page.go_back()
    await expect(page.locator(".row")).to_have_count(2)


async def test_writing_where_it_is_allowed(windows: Windows, server_of: Servers, namespace: str) -> None:
    url = server_of("redis").url
    with HistoryStore(url, namespace=namespace) as store, serve(url, namespace, "--allow-writes") as served:
        store.append("c", assistant("How can I help?"))
        window = await windows(served.url)
        page = await window.open("c")
        await page.get_by_label("Write a message").fill("With two\nlines.")
        await page.keyboard.press("Enter")
        await expect(window.said("With two")).to_be_in_viewport()
        assert store.get("c")[-1].text == "With two\nlines."
        assert store.get("c")[-1].role == "user"
        await page.get_by_role("button", name="Rename").click()
        await page.get_by_label("Title", exact=True).fill("A title")
        await page.keyboard.press("Enter")
        await expect(page.locator("#title")).to_have_text("A title")
        await page.get_by_role("button", name="Rename").click()
        await expect(page.get_by_label("Title", exact=True)).to_have_value("A title")
        await page.get_by_label("Title", exact=True).fill("Another")
        await page.get_by_role("button", name="Cancel").click()
        await page.get_by_role("button", name="Delete").click()
        await page.keyboard.press("Enter")  # leaves it
        await expect(page.locator("dialog[open]")).to_have_count(0)
        await expect(page.locator("#title")).to_have_text("A title")
        await page.get_by_role("button", name="Delete").click()
        await page.locator("dialog[open]").get_by_role("button", name="Delete").click()
        await expect(page.locator("#welcome")).to_be_visible()
        assert store.get_conversation("c") is None
        await windows.close()


async def test_a_stream_may_be_cut_anywhere(window: Window) -> None:
    page = await window.open()
    frames = ': ping\r\n\r\nretry: 50\r\nid: 1\r\nevent: one\r\ndata: {"a":\r\ndata: 1}\r\n\r\n'
    frames += "event:two\ndata: 早上好\nunknown: x\n\nid: 3\r\rdata\r\r"
    found = await page.evaluate(
        """async (frames) => {
          const { EventParser } = await import("./static/stream.js");
          const read = (pieces) => {
            const events = [];
            const parser = new EventParser((event) => events.push(event));
            for (const piece of pieces) parser.push(piece);
            return JSON.stringify(events);
          };
          const all = new Set();
          for (let at = 0; at <= frames.length; at += 1) all.add(read([frames.slice(0, at), frames.slice(at), "\\n"]));
          all.add(read([...frames, "\\n"]));
          return [...all].map(JSON.parse);
        }""",
        frames,
    )
    assert found == [
        [
            {"name": "one", "id": "1", "data": '{"a":\n1}'},
            {"name": "two", "id": None, "data": "早上好"},
            {"name": "message", "id": None, "data": ""},
        ]
    ]


async def _no_sideways_scrolling(page: Page) -> None:
    wide = await page.evaluate(
        "() => [...document.querySelectorAll('html, body, #timeline, .pane-body, .row, .topbar')]"
        ".filter(one => one.clientWidth && one.scrollWidth > one.clientWidth).map(one => one.className || one.tagName)"
    )
    assert wide == []


#: Texts whose contrast with what is behind them is less than 4.5 to 1 (WCAG AA).
_CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (...colors) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (color) => {
    const linear = (one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = color.map((one) => linear(one / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const found = [];
    for (let one = node; one; one = one.parentElement) found.unshift(getComputedStyle(one).backgroundColor);
    return found;
  };
  const poor = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!own || !node.checkVisibility({opacityProperty: true}) || node.closest(".visually-hidden, noscript")) continue;
    const ground = behind(node);
    const [one, two] = [rgb(...ground, getComputedStyle(node).color), rgb(...ground)].map(luminance);
    const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (contrast < 4.5) poor.push([node.className || node.tagName, node.textContent.slice(0, 30), contrast.toFixed(2)]);
  }
  return poor;
}"""
