"""The page in real Chromium: usage, approvals, filters of the list, images, and what a user may do with messages."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect
from starlette.requests import Request

from redis_history import (
    AsyncHistoryStore,
    AttachmentPart,
    Conversation,
    HistoryStore,
    TextPart,
    Usage,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.web import Action, LiveView
from tests.support.servers import RealServer
from tests.support.web import TOKEN, listening, serve
from tests.web.browsing import Held, Site, Window, Windows, check_axe, no_sideways_scrolling
from tests.web.test_messages import BASE64, LARGE, URL

pytestmark = pytest.mark.asyncio(loop_scope="session")

COLORS: Any = ["light", "dark"]


def spend(store: HistoryStore, name: str, owner: int | str, agent: str, days_ago: int, **usage: Any) -> None:
    store.create_conversation(Conversation(name, user_id=owner, agent_name=agent))
    moment = datetime.now(UTC) - timedelta(days=days_ago)
    store.append(name, assistant("x", usage=Usage(**usage), timestamp=moment))


@pytest.mark.full
async def test_usage_of_all_of_a_user_and_of_a_day(windows: Windows, server: RealServer, namespace: str) -> None:
    prices = ("--price", "m-1=2/10/1", "--price", "*=1/10")
    with (
        HistoryStore(server.url, namespace=namespace) as store,
        serve(server.url, namespace, "--allow-writes", *prices) as view,
    ):
        spend(
            store,
            "a",
            "ann",
            "desk",
            0,
            input_tokens=1000,
            output_tokens=100,
            cached_tokens=500,
            model="m-1-2026-01-31",
        )
        spend(store, "b", 7, "desk", 2, input_tokens=4000, output_tokens=0, model="other")
        spend(store, "c", "7", "<b>bot</b>", 2, input_tokens=2000, output_tokens=0, cost=5.0)
        store.set_budget("ann", tokens=1100, cost=9.5, period="day")
        window = await windows(view.url)
        page = await window.open("a")
        facts = page.locator("#facts")
        await expect(facts).to_contain_text("1.1k tokens used, ≈ $0.002")
        # 500 of other input, 500 of cached input, and 100 of output, by the price of the model
        await expect(page.locator(".row .reply")).to_contain_text("$0.0025")
        await page.get_by_role("link", name="Usage").click()
        view_of = page.locator("#usage")
        await expect(view_of.locator("dd").first).to_have_text("7,000 tokens500 cached")
        await expect(view_of.locator("dd").last).to_have_text("$5")
        bars = page.locator("#usage-chart button")
        await expect(bars).to_have_count(30)
        await expect(bars.last).to_have_attribute("aria-label", re.compile(r": 1,100 tokens · ≈ \$0.002$"))
        heights = await bars.evaluate_all("all => all.map(one => Number(one.style.getPropertyValue('--height')))")
        assert heights[-1] == pytest.approx(1100 / 6000)
        assert (heights[-3], sum(heights)) == (1, pytest.approx(1 + 1100 / 6000))
        rows = page.locator("#usage-agents tr")
        await expect(rows).to_have_text([re.compile("^desk5,000100≈ "), re.compile(r"^<b>bot</b>2,0000\$5$")])
        await check_axe(page, COLORS, "usage", "#usage")
        await bars.last.click()
        await expect(bars.last).to_have_attribute("aria-pressed", "true")
        await expect(rows).to_have_text([re.compile("^desk1,000100≈")])
        await bars.last.click()
        await expect(rows).to_have_count(2)
        await view_of.get_by_label("Days").select_option("7")
        await expect(bars).to_have_count(7)
        budget = page.locator("#usage-budget")
        for name, tokens in (("7", "4,000"), ('"7"', "2,000"), ("ann", "1,000"), ("nobody", "0")):
            await view_of.get_by_label("User").fill(name)
            await page.keyboard.press("Enter")
            await expect(view_of.locator("dd").first).to_contain_text(f"{tokens} tokens")
            if name == "ann":
                await expect(budget).to_contain_text("Budget of a day · 1,100 of 1,100 tokens · $0 of $9.5 · used up")
                await expect(budget).to_have_class("failed")
            else:
                await expect(budget).to_have_text("")
        await page.go_back()
        await expect(view_of.get_by_label("User")).to_have_value("ann")
        await window.follow("c")
        await facts.get_by_role("link", name="for 7").click()
        await expect(view_of.get_by_label("User")).to_have_value('"7"')
        await expect(view_of.locator("dd").first).to_contain_text("2,000")
        await page.keyboard.press("Escape")
        await expect(page.locator("#welcome")).to_be_visible()
        await windows.close()


@pytest.mark.full
async def test_no_cost_is_shown_that_nobody_gave(windows: Windows, server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store, serve(server.url, namespace) as view:
        spend(store, "a", "ann", "desk", 0, input_tokens=1000, output_tokens=100, model="m-1")
        window = await windows(view.url, viewport={"width": 390, "height": 780})
        page = await window.open("a")
        await expect(page.locator("#facts")).to_contain_text("1.1k tokens used")
        await page.get_by_role("button", name="Back").click()
        await page.get_by_role("link", name="Usage").click()
        await expect(page.locator("#usage-agents tr")).to_have_count(1)
        await expect(page.get_by_role("columnheader", name="Cost")).to_be_hidden()
        await expect(page.locator("#usage dd")).to_have_count(2)
        assert "$" not in await page.locator("body").inner_text()
        await no_sideways_scrolling(page)
        await check_axe(page, COLORS, "usage on a phone")
        await page.get_by_role("button", name="Back").click()
        await expect(page.locator("#conversations li").first).to_be_visible()
        await windows.close()


@pytest.mark.full
async def test_the_inbox_of_approvals(windows: Windows, server: RealServer, namespace: str) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    with (
        HistoryStore(server.url, namespace=namespace) as store,
        serve(server.url, namespace, "--allow-writes") as view,
        serve(server.url, namespace) as reading,
    ):
        store.create_conversation(Conversation("first", title=hostile, user_id=hostile))
        store.append(
            "first", assistant(tool_use("one", hostile, {"sum": 89, "to": hostile}, needs_approval=True), id="m")
        )
        window, other = await windows(view.url), await windows(reading.url)
        page, read = await window.open(), await other.open()
        for each, name in ((page, "Approvals, 1 waiting"), (read, "Approvals")):
            await each.get_by_role("link", name=name, exact=True).click()
            await expect(each.locator(".approval")).to_have_count(1)
        await expect(read.locator(".approval form")).to_have_count(0)
        card = page.locator(".approval").first
        await expect(card.locator(".tool-name")).to_have_text(hostile)
        await expect(card.locator(".data")).to_contain_text('"sum": 89')
        await card.get_by_role("textbox").fill("too mu")
        store.append("second", assistant(tool_use("two", "send", {}, needs_approval=True)))
        await expect(page.locator(".approval")).to_have_count(2)  # it appears without a reload, and the reason stays
        await expect(page.locator("#approvals-count")).to_have_text("2")
        await check_axe(page, COLORS, "approvals")
        await card.get_by_role("textbox").fill("too much")
        await card.get_by_role("button", name="Deny").click()
        await expect(page.locator(".approval")).to_have_count(1)
        await expect(page.locator("#approvals-note")).to_have_text(f"{hostile}: denied.")
        assert "too much" in str(store.get("first"))
        assert [one.conversation_id for one in store.list_approvals()] == ["second"]
        # Somebody else decides while the buttons are still there.
        async with Held(page, "**/v1/approvals?*") as held:
            store.decide("second", "two", False, by="bob")
            await held.arrived.wait()
            await page.get_by_role("button", name="Approve").click()
            await expect(page.locator("#approvals-note")).to_have_text("send was already denied by bob.")
        await expect(page.locator("#approvals-count")).to_be_hidden()
        await expect(read.locator(".approval")).to_have_count(0)
        store.append("third", assistant(tool_use("three", "send", {}, needs_approval=True), id="t"))
        await page.locator(".approval a").click()
        await expect(page.locator(".row.target[data-id=t]")).to_be_visible()
        await windows.close()


@pytest.mark.full
async def test_the_list_shows_one_owner_or_agent(windows: Windows, server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store, serve(server.url, namespace) as view:

        def make(name: str, owner: int | str | None, agent: str | None) -> None:
            store.create_conversation(Conversation(name, user_id=owner, agent_name=agent))
            store.append(name, user("x"))

        make("old", "ann", "desk")
        for number in range(70):  # "old" is on the second page
            make(f"c{number}", [7, "7"][number % 2], "desk" if number % 10 else "bot")
        window = await windows(view.url)
        page = await window.open()
        listed = page.locator("#conversations li[data-id]")
        await expect(page.locator("#list-title")).to_have_text("71 conversations")
        await page.get_by_text("User and agent").click()
        owner, agent = page.get_by_label("Only of user"), page.get_by_label("Only of agent")
        await owner.fill("ann")
        await expect(listed).to_have_count(1)
        await expect(window.card("old")).to_be_visible()
        await check_axe(page, COLORS, "filters", "#list-pane")
        make("new", "ann", "bot")  # events follow the filter
        make("other", "bob", "desk")
        await expect(window.card("new")).to_be_visible()
        store.append("old", user("The last change."))
        await expect(window.card("old")).to_contain_text("The last change.")
        await expect(window.card("other")).to_have_count(0)
        await agent.fill("bot")
        await expect(listed).to_have_count(1)
        await owner.fill('"7"')
        await expect(page.locator("#list-note")).to_have_text("No conversation matches.")
        await owner.fill("7")
        await expect(listed).to_have_count(7)
        await agent.fill("")
        await expect(page.locator("#list-title")).to_have_text("35 conversations")
        store.update_conversation("c0", user_id="ann")
        await expect(window.card("c0")).to_have_count(0)
        await owner.fill("")
        await expect(page.locator("#list-title")).to_have_text("73 conversations")
        values = "all => all.map(one => one.value)"
        assert await page.locator("#known-owners option").evaluate_all(values) == ['"7"', "7", "ann", "bob"]
        await windows.close()


@pytest.mark.full
async def test_an_owner_is_chosen_and_a_call_is_approved(windows: Windows, desk: Site) -> None:
    """The short form of the two tests before."""
    name, store = desk.name("inbox"), desk.store
    store.create_conversation(Conversation(name, user_id=name))
    store.append(name, assistant(tool_use(name, name, {"sum": 3}, needs_approval=True), id="m"))
    page = await (await windows(desk.address)).open()
    await page.get_by_text("User and agent").click()
    await page.get_by_label("Only of user").fill(name)
    await expect(page.locator("#conversations li[data-id]")).to_have_count(1)
    await page.locator("#approvals-link").click()
    await page.locator(".approval", has_text=name).get_by_role("button", name="Approve").click()
    await expect(page.locator("#approvals-note")).to_have_text(f"{name}: approved.")
    assert [one.call_id for one in store.list_approvals(user_id=name)] == []


async def act(page: Page, message: str, name: str) -> None:
    row = page.locator(f".row[data-id={message}]")
    await row.hover()
    await row.get_by_role("button", name=name, exact=True).click()


@pytest.mark.full
async def test_messages_are_edited_asked_again_and_deleted(windows: Windows, desk: Site) -> None:
    name, store = desk.name("edits"), desk.store
    text = "<i>old</i>\nwith lines"
    store.append_many(name, [user(text, id="q"), assistant("An answer.", id="a"), user("More?", id="b")])
    window = await windows(desk.address)
    page = await window.open(name)
    dialog = page.locator("dialog[open]")
    field = dialog.get_by_label("Text")
    await act(page, "q", "Edit")
    await expect(field).to_have_value(text)
    await check_axe(page, COLORS, "edit", "dialog[open]")
    await field.fill("Lost")
    await dialog.get_by_role("button", name="Cancel").click()
    await act(page, "q", "Edit")
    await field.fill("<b>new</b>")
    await dialog.get_by_role("button", name="Save").click()
    await expect(window.said("<b>new</b>")).to_be_visible()
    assert [one.text for one in store.get(name)] == ["<b>new</b>", "An answer.", "More?"]
    await act(page, "b", "Delete message")
    await check_axe(page, COLORS, "confirm", "dialog[open]")
    await dialog.get_by_role("button", name="Cancel").click()
    await act(page, "b", "Delete message")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(window.said("More?")).to_have_count(0)
    await act(page, "q", "Ask again")
    await dialog.get_by_role("button", name="Ask again").click()
    await expect(window.said("An answer.")).to_have_count(0)
    await expect(page.locator("#activity-text")).to_contain_text("owes an answer")
    assert [one.id for one in store.get(name)] == ["q"]
    assert [turn.message_ids for turn in store.list_turns() if turn.conversation_id == name] == [("q",)]
    window.outage = True  # the request is refused
    with HistoryStore(desk.url, namespace="live") as other, other.run(name, agent_name="bot"):
        await act(page, "q", "Ask again")
        await dialog.get_by_role("button", name="Ask again").click()
        await expect(page.locator("#banner")).to_contain_text("stop it first")
    store.drop_turn(name)


@pytest.mark.full
async def test_a_long_text_is_edited_whole(windows: Windows, desk: Site) -> None:
    name = desk.name("long")
    text = "A word. " * 5_000
    desk.store.append(name, user(text, id="q"))
    window = await windows(desk.address)
    page = await window.open(name)
    await act(page, "q", "Edit")
    await expect(page.locator("dialog[open] textarea")).to_have_value(text)


@pytest.mark.full
async def test_only_what_the_user_may_do_is_offered(windows: Windows, server: RealServer, namespace: str) -> None:
    rights: dict[str | None, set[Action]] = {
        None: {"list"},
        "reading": {"read"},
        "writing": {"read", "append", "edit"},
        "all": {"read", "append", "edit", "pin", "fork", "delete", "rename", "stop"},
    }

    def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        return action in rights.get(conversation_id, ())

    async with (
        AsyncHistoryStore(server.url, namespace=namespace) as store,
        LiveView(store, authorize=authorize, read_only=False) as view,
        listening(view) as port,
    ):
        for name in ("reading", "writing", "all"):
            await store.append(name, user("x", id="m"))
        window = await windows(f"http://127.0.0.1:{port}/")
        page = await window.open()
        await expect(page.locator("#usage-link")).to_be_hidden()
        for name, offered in (
            ("reading", {"Copy", "Link"}),
            ("writing", {"Copy", "Link", "Edit"}),
            ("all", {"Copy", "Link", "Edit", "Pin", "Branch", "Ask again", "Delete message"}),
            ("reading", {"Copy", "Link"}),
        ):
            await window.follow(name)
            row = page.locator(".row[data-id=m]")
            await row.hover()
            await expect(row.get_by_role("button")).to_have_count(len(offered))
            labels = "all => all.filter(one => one.checkVisibility()).map(one => one.ariaLabel)"
            assert set(await row.locator("button").evaluate_all(labels)) == offered
            for control, right in (("#composer", "append"), ("#rename", "rename"), ("#delete", "delete")):
                await expect(page.locator(control)).to_be_visible(visible=right in rights[name])
        rights[None].add("usage")
        await window.follow("all")
        await expect(page.locator("#usage-link")).to_be_visible()
        await windows.close()


@pytest.mark.full
async def test_images_are_loaded_when_they_are_near(windows: Windows, site: Site) -> None:
    name, store = site.name("images"), site.store
    large = f"data:image/png;base64,{BASE64}" + "A" * 4 * 20_000
    first = [
        AttachmentPart(name="<b>.png", reference=large),
        AttachmentPart(name="far", reference="https://a.example/x.png"),
    ]
    screenshot = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": large.partition(",")[2]},
    }
    store.append(name, user(TextPart("Look."), *first, id="top"))
    store.append_many(name, [assistant(f"Text {number}.\n\n" + "- words\n" * 30) for number in range(30)])
    store.append_many(name, [assistant(tool_use("t", "shoot")), tool(tool_result("t", [screenshot]), id="r")])
    store.append(name, assistant(f"![dot]({URL}) ![far](https://a.example/y.png)", id="end"))
    window = await windows(site.address)
    page = await window.open(name)
    await expect(page.locator(".row[data-id=end] .prose img")).to_have_js_property("naturalWidth", 1)
    images = [url for url in window.requests if "/images/" in url]
    assert images == [], "neither in view nor unfolded"
    await page.get_by_role("button", name="Tool shoot").click()
    shot = page.locator(".column img")
    await expect(shot).to_have_js_property("naturalWidth", 1)
    await expect(page.locator(".column .data").last).not_to_contain_text("iVBORw0KGgo")
    await page.keyboard.press("g")
    shown = page.locator(".row[data-id=top] img")
    await expect(shown).to_have_js_property("naturalWidth", 1)
    await expect(shown).to_have_attribute("alt", "<b>.png")
    await expect(page.locator(".row[data-id=top] .chip")).to_have_text(re.compile("far"))
    await check_axe(page, COLORS, "images", "#timeline")
    assert len({url for url in window.requests if "/images/" in url}) == 2
    assert len(LARGE) > 32_000


async def test_a_damaged_image_says_so(window: Window, site: Site) -> None:
    name = site.name("damaged")
    site.store.append(name, user(AttachmentPart(name="a.png", reference="data:image/png;base64,@@@@"), id="m"))
    window.outage = True  # the request fails
    page = await window.open(name)
    await expect(page.locator(".row[data-id=m]")).to_contain_text("a.png cannot be shown")


@pytest.mark.full
async def test_signed_out_and_in_again_with_the_token(windows: Windows, server: RealServer, namespace: str) -> None:
    with HistoryStore(server.url, namespace=namespace) as store, serve(server.url, namespace) as view:
        store.append("c", user("Before."))
        window = await windows(view.url)
        window.outage = True
        page = await window.open("c")
        await page.context.clear_cookies()
        await page.evaluate("location.hash = 'view=approvals'")
        door = page.locator("dialog[open]#sign-in")
        await expect(door).to_contain_text("Enter the token")
        await check_axe(page, COLORS, "signed out", "dialog[open]")
        await door.get_by_label("Token").fill("a wrong token of a stranger")
        await page.keyboard.press("Enter")
        await expect(door).to_contain_text("not the token")
        await door.get_by_label("Token").fill(TOKEN)
        await page.keyboard.press("Enter")
        await expect(page.locator("dialog[open]")).to_have_count(0)
        await window.follow("c")
        store.append("c", user("After."))
        await expect(window.said("After.")).to_be_visible()
        # A tab without a cookie: the server's own page has the form.
        await page.context.clear_cookies()
        await page.goto(window.base)
        await page.get_by_label("Token").fill(TOKEN)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator(".card")).to_have_count(1)
        assert TOKEN not in page.url
        await windows.close()


async def test_signed_out_of_an_application(windows: Windows, server: RealServer, namespace: str) -> None:
    signed_in = True

    def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        return signed_in

    async with (
        AsyncHistoryStore(server.url, namespace=namespace) as store,
        LiveView(store, authorize=authorize, sign_in="/sign-in?next=%2F") as view,
        listening(view) as port,
    ):
        window = await windows(f"http://127.0.0.1:{port}/")
        window.outage = True
        page = await window.open()
        signed_in = False
        await page.evaluate("dispatchEvent(new Event('online'))")
        await view._hub.aclose()  # the stream ends as after 30 s, and the page connects again
        door = page.locator("dialog[open]#sign-in")
        await expect(door).to_contain_text("Your session has ended.")
        await expect(door.get_by_label("Token")).to_be_hidden()
        link = door.get_by_role("link", name="Sign in")
        assert await link.evaluate("one => one.pathname + one.search") == "/sign-in?next=%2F"
        await windows.close()
