"""The page in real Chromium: what happens while one looks."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from playwright.async_api import expect

from redis_history import HistoryStore, Message, assistant, tool_use, user
from redis_history.model import Participant, ToolResultPart
from tests.support.servers import RealServer, free_port
from tests.support.web import serve
from tests.web.browsing import Site, Window, Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

_ADA = Participant("agent", "ada", "Ada")


async def test_a_message_of_another_process_is_seen(window: Window, site: Site) -> None:
    name = site.name("live")
    site.store.append(name, user("Is anybody there?"))
    page = await window.open(name)
    await expect(page.locator(".row")).to_have_count(1)
    argv = [sys.executable, "-m", "tests.web.paced", site.url, site.store.namespace, name, "3", "20", "30"]
    process = await asyncio.create_subprocess_exec(*argv)
    await expect(page.locator(".row[data-id=m2]")).to_be_in_viewport()
    assert await process.wait() == 0
    await expect(page.locator(".conversations .card-last").first).to_contain_text("x" * 30)
    await expect(page.locator("#announcer")).to_contain_text(re.compile("x{30}|new messages"))


@pytest.mark.proves("page")
@pytest.mark.parametrize("what", ["redis", "web"])
async def test_a_restart_leaves_no_gap_and_no_duplicate(
    what: str, windows: Windows, own_server: Callable[..., RealServer]
) -> None:
    server = own_server("redis", options=("--appendonly", "yes"))
    port = free_port()
    with (
        ExitStack() as ended,
        serve(server.url, "restart", port=port) as served,
        HistoryStore(server.url, namespace="restart") as store,
    ):
        window = await windows(served.url, viewport={"width": 1000, "height": 4000})
        window.outage = True
        sent = [user(f"Message {number} of many.", id=f"m{number}") for number in range(40)]
        store.append_many("c", sent[:10])
        page = await window.open("c")
        await expect(page.locator(".row")).to_have_count(10)
        store.append_many("c", sent[10:20])
        if what == "redis":
            server.kill()
            await expect(page.locator("#link")).not_to_have_attribute("data-state", "refused")
            server.start()
            store.append_many("c", sent[20:30])
        else:
            served.end(signal.SIGKILL)
            store.append_many("c", sent[20:30])
            await expect(page.locator("#link")).to_have_attribute("data-state", "waiting")
            ended.enter_context(serve(server.url, "restart", port=port))
        await expect(page.locator(".row")).to_have_count(30)
        await window.live()
        store.append_many("c", sent[30:])
        await expect(page.locator(".row")).to_have_count(40)
        assert await window.ids() == [message.id for message in sent]
        await expect(page.locator(".card-facts").first).to_contain_text("40 messages")


@pytest.mark.proves("page")
async def test_visible_messages_keep_their_place(window: Window, site: Site) -> None:
    name = site.name("still")
    site.store.append_many(name, [user(f"Line {number}.\n" + "word " * 80, id=f"m{number}") for number in range(60)])
    page = await window.open(name)
    await expect(window.said("Line 59.")).to_be_in_viewport()
    await page.locator("#timeline").evaluate("box => { box.scrollTop -= 2500 }")
    row = page.locator(".row[data-id='m40'], .row[data-id='m38'], .row[data-id='m36']").first
    await expect(row).to_be_attached()
    seen = "() => document.elementFromPoint(900, 400).closest('.row').dataset.id"
    place = "id => Math.round(document.querySelector(`.row[data-id='${id}'] .message`).getBoundingClientRect().top)"
    middle = await page.evaluate(seen)
    before = await page.evaluate(place, middle)
    site.store.append_many(name, [assistant(f"New {number}.") for number in range(3)])
    await expect(page.locator("#newer")).to_have_text("3 new messages ↓")
    assert abs(await page.evaluate(place, middle) - before) <= 1
    await page.locator("#newer").click()
    await expect(window.said("New 2.")).to_be_in_viewport()
    await expect(page.locator("#newer")).to_be_hidden()
    site.store.append(name, assistant("Followed again."))
    await expect(window.said("Followed again.")).to_be_in_viewport()


async def test_compaction_is_seen_as_it_happens(window: Window, site: Site) -> None:
    name = site.name("fold")
    messages = [user(f"Question {number}?", id=f"q{number}") for number in range(6)]
    site.store.append_many(name, messages)
    page = await window.open(name)
    await expect(page.locator(".row")).to_have_count(6)
    done = site.store.compact(name, through=messages[3], summary="[Earlier conversation summary: four questions]")
    assert done.summary is not None
    await expect(page.locator(".summary")).to_contain_text("four questions")
    await expect(page.locator(".summary")).to_contain_text("4 messages")
    await expect(page.locator(".summary")).not_to_contain_text("[Earlier")
    await window.until("() => document.querySelectorAll('.row').length === 3")
    assert await window.ids() == [done.summary.id, "q4", "q5"]
    await page.get_by_role("button", name="Show the originals").click()
    await expect(window.said("Question 0?")).to_be_visible()
    site.store.expand(name, done.summary.id)
    await expect(page.locator(".summary")).to_have_count(0)
    assert await window.ids() == [f"q{number}" for number in range(6)]


async def test_edits_and_deletions_are_seen_as_they_happen(window: Window, site: Site) -> None:
    name = site.name("edit")
    site.store.append_many(name, [user("First.", id="a"), user("Secnod.", id="b"), user("Third.", id="c")])
    page = await window.open(name)
    await expect(page.locator(".row")).to_have_count(3)
    site.store.update_message(name, user("Second.", id="b"))
    await expect(page.locator(".row[data-id=b]")).to_contain_text("Second.")
    site.store.delete_messages(name, ["a", "c"])
    await window.until("() => document.querySelectorAll('.row').length === 1")
    site.store.restore(name, [user("From a copy.", id="r")])
    await expect(window.said("From a copy.")).to_be_visible()
    assert await window.ids() == ["r"]
    site.store.clear(name)
    await expect(page.locator("#banner")).to_contain_text("removed")
    site.store.update_conversation(name, title="Renamed")
    await expect(page.locator("#title")).to_have_text("Renamed")
    site.store.delete_conversation(name)
    await expect(page.locator("#banner")).to_contain_text("deleted")
    site.store.append(name, user("Begun again."))
    await expect(window.said("Begun again.")).to_be_visible()
    await expect(page.locator("#banner")).to_be_hidden()


async def test_a_tool_that_runs_is_told_until_it_answers(window: Window, site: Site) -> None:
    name = site.name("tool")
    call = Message(role="assistant", parts=tool_use("call", "look_up", {"order": 7}), participant=_ADA)
    site.store.append(name, call)
    page = await window.open(name)
    await expect(page.locator("#activity")).to_contain_text("Ada is running look_up")
    await expect(page.locator(".tool")).to_have_attribute("data-state", "waiting")
    site.store.append(name, Message(role="tool", parts=ToolResultPart("call", "found")))
    await expect(page.locator(".tool")).to_have_attribute("data-state", "done")
    await expect(page.locator("#activity")).not_to_contain_text("look_up")


async def test_unseen_messages_are_counted(windows: Windows, site: Site) -> None:
    one, other = site.name("one"), site.name("other")
    site.store.append(one, user("Hello."))
    site.store.append(other, user("Hello."))
    window = await windows(site.address)
    page = await window.open(one)
    card = page.locator(f"li[data-id='{other}']")
    await expect(card).to_be_visible()
    await expect(card.locator(".badge")).to_have_count(0)
    site.store.append_many(other, [assistant("One."), assistant("Two.")])
    site.store.append(one, assistant("This one is looked at."))
    await expect(card.locator(".badge")).to_have_text("2")
    await expect(page.locator(f"li[data-id='{one}'] .badge")).to_have_count(0)
    await window.until("() => /^\\(\\d+\\) /.test(document.title)")
    await page.goto("about:blank")
    created = site.name("created")
    site.store.append(created, user("While nobody looked."))
    await window.open()
    await expect(page.locator(f"li[data-id='{created}'] .badge")).to_have_text("1")
    await expect(card.locator(".badge")).to_have_text("2")
    await card.locator("a").click()
    await expect(page.locator(".unread-line")).to_have_count(1)
    await expect(card.locator(".badge")).to_have_count(0)


async def test_tabs_share_the_stream_of_the_list(windows: Windows, site: Site) -> None:
    name = site.name("tabs")
    site.store.append(name, user("Hello."))
    first = await windows(site.address)
    await first.open()
    second = await windows.another(site.address)
    await second.open()
    for window in (first, second):
        await expect(window.page.locator(f"li[data-id='{name}']")).to_be_visible()
    site.store.append(name, user("Both hear this."))
    for window in (first, second):
        await expect(window.page.locator(f"li[data-id='{name}'] .card-last")).to_contain_text("Both hear this.")
    streams = [url for url in first.requests if url.endswith("v1/events")]  # of both: they share a profile
    assert len(streams) == 1
    await first.page.close()
    site.store.append(name, user("So does the one that is left."))
    await expect(second.page.locator(f"li[data-id='{name}'] .card-last")).to_contain_text("the one that is left")
