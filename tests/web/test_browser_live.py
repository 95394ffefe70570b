"""The page in real Chromium while conversations change: what it shows is what is stored, whatever crosses."""

import asyncio
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Page, Route, expect

from redis_history import AsyncHistoryStore, HistoryStore, Message, assistant, tool_use, user
from redis_history.values import Participant, ToolResultPart
from tests.support.servers import RealServer, free_port
from tests.support.web import serve
from tests.web.browsing import PATIENCE, Held, Site, Window, Windows

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADA = Participant("agent", "ada", "Ada")


class Changes:
    """Random changes of a conversation, each as some process might make it."""

    def __init__(self, store: HistoryStore, name: str, seed: int) -> None:
        self._store, self._name = store, name
        self._chance = random.Random(seed)
        self._count = 0

    def new(self, moment: datetime | None = None) -> Message:
        self._count += 1
        text = f"Number {self._count}. " + "word " * self._chance.randrange(60)
        return Message(role="user", parts=text, id=f"n{self._count}", timestamp=moment)

    def make(self) -> None:
        messages = self._store.get(self._name)
        kinds = ["append"] * 5 + ["insert", "insert", "delete", "delete", "edit", "edit", "compact", "expand"]
        kind, chosen = self._chance.choice(kinds), self._chance.choice(messages)
        if kind == "append":
            self._store.append_many(self._name, [self.new() for _ in range(self._chance.randrange(1, 12))])
        elif kind == "insert" and chosen.timestamp is not None:
            self._store.append(self._name, self.new(chosen.timestamp + timedelta(microseconds=1)))
        elif kind == "delete":
            self._store.delete_messages(self._name, [one.id for one in self._chance.sample(messages, 15)])
        elif kind == "edit" and not chosen.is_summary:
            self._count += 1
            self._store.update_message(self._name, user(f"Edited {self._count}.", id=chosen.id))
        elif kind == "compact" and self._chance.random() < 0.5:
            self._store.compact(self._name, through=messages[len(messages) // 8], summary=f"summary {self._count}")
        elif kind == "expand" and (summary := next((one for one in messages if one.is_summary), None)):
            self._store.expand(self._name, summary.id)


class SlowAnswers:
    """Delays pages of messages until some more changes were made: then they are older than the events."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._made = 0
        self._over = False
        self._news = asyncio.Condition()

    async def made(self, *, over: bool = False) -> None:
        async with self._news:
            self._made += 1
            self._over = over
            self._news.notify_all()

    async def __call__(self, route: Route) -> None:
        answer = await route.fetch()
        until = self._made + self._chance.randrange(4)
        async with self._news:
            await self._news.wait_for(lambda: self._over or self._made >= until)
        await route.fulfill(response=answer)


@pytest.mark.proves("page")
async def test_the_page_shows_what_is_stored(window: Window, site: Site, full: bool) -> None:
    name, seed = site.name("converge"), 3
    changes = Changes(site.store, name, seed)
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    site.store.append_many(name, [changes.new(begun + timedelta(minutes=number)) for number in range(700)])
    page = await window.open(name)
    await expect(page.locator(".row").first).to_be_attached()
    slow = SlowAnswers(seed)
    await page.route("**/messages?*", slow)
    wander = random.Random(seed)
    for _ in range(300 if full else 60):
        scroll = "by => { document.querySelector('#timeline').scrollTop += by }"
        scrolling = page.evaluate(scroll, wander.randrange(-9000, 7000))
        await asyncio.gather(asyncio.to_thread(changes.make), scrolling)
        await slow.made()
        if wander.random() < 0.05:
            await page.keyboard.press(wander.choice(["g", "G"]))
    await slow.made(over=True)
    # Scrolls, because the keys would load the window again: to the end, to the beginning, and back.
    site.store.append(name, user("The last change.", id="last"))
    expected = {message.id: _begin(message) for message in site.store.get(name)}
    await _scroll_to(page, 2000, "last")
    await _scroll_to(page, -2000, next(iter(expected)))
    shown = await _scroll_to(page, 1200, "last")
    assert list(shown) == list(expected)
    assert shown == expected


def _begin(message: Message) -> str:
    return message.text.split(".")[0].removeprefix("[Earlier conversation summary: ").removesuffix("]")


async def _scroll_to(page: Page, step: int, until: str) -> dict[str, str]:
    """Scroll by `step` pixels until a message is in view. Returns the beginnings of all messages that were drawn on
    the way, in order."""
    found: dict[str, str] = {}
    deadline = time.monotonic() + 6 * PATIENCE
    while True:
        rows, places, arrived, drawn = await page.evaluate(
            """async ([step, until]) => {
              const box = document.querySelector('#timeline');
              const rows = [...document.querySelectorAll('.row[data-id]')];
              const found = rows.map(row => [row.dataset.id, row.querySelector('.prose').textContent.split('.')[0]]);
              const places = rows.map(row => Number(row.ariaPosInSet));
              const goal = rows.find(row => row.dataset.id === until)?.getBoundingClientRect();
              const arrived = goal && goal.bottom > 0 && goal.top < innerHeight;
              if (!arrived) box.scrollTop += step;
              await new Promise(frame => requestAnimationFrame(() => requestAnimationFrame(frame)));
              return [found, places, arrived, box.querySelectorAll('*').length];
            }""",
            [step, until],
        )
        assert drawn < 1800, "however many messages there are; each has up to eight buttons of three elements"
        if places:  # none are drawn while a window that became empty is loaded again
            assert places == list(range(places[0], places[-1] + 1))
        found |= {name: text for name, text in rows if name not in found}
        if arrived:
            return found
        assert time.monotonic() < deadline, f"did not come to {until}"


@pytest.mark.proves("page", "streams")
@pytest.mark.parametrize("what", ["web", "redis"])
@pytest.mark.full
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
    place = "id => Math.round(document.querySelector(`.row[data-id='${id}'] .message`).getBoundingClientRect().top)"
    middle = await page.evaluate("() => document.elementFromPoint(900, 400).closest('.row').dataset.id")
    before = await page.evaluate(place, middle)
    site.store.append_many(name, [assistant(f"New {number}.") for number in range(3)])
    await expect(page.locator("#newer")).to_have_text("3 new messages ↓")
    assert abs(await page.evaluate(place, middle) - before) <= 1
    await page.locator("#newer").click()
    await expect(window.said("New 2.")).to_be_in_viewport()
    await expect(page.locator("#newer")).to_be_hidden()
    site.store.append(name, assistant("Followed again."))
    await expect(window.said("Followed again.")).to_be_in_viewport()
    await expect(page.locator("#announcer")).to_contain_text(re.compile("Followed again|new messages"))


PINNED = {"pinned": True}


async def test_a_compaction_leaves_what_is_pinned(window: Window, site: Site) -> None:
    name = site.name("pins")
    call = Message(role="assistant", parts=(tool_use("t1", "look", {}),), id="call")
    result = Message(role="tool", parts=(ToolResultPart("t1", "seen"),), id="result", metadata=PINNED)
    pinned = user("Two?", id="q2", metadata=PINNED)
    messages = [pinned, call, result, user("One?", id="q1"), user("Three?", id="q3")]
    site.store.append_many(name, messages)
    page = await window.open(name)
    await expect(window.said("Three?")).to_be_visible()
    site.store.compact(name, through=site.store.get(name)[3], summary="[Earlier conversation summary: one question]")
    await expect(page.locator(".summary")).to_contain_text("one question")
    left = [message.id for message in site.store.get(name)]
    assert len(left) == 5
    await expect(window.said("Two?")).to_be_visible()
    await expect(page.locator(".row")).to_have_count(4)
    assert set(await window.ids()) <= set(left)


async def test_changes_are_seen_as_they_happen(window: Window, site: Site) -> None:
    name = site.name("edit")
    messages = [user(f"Question {number}?", id=f"q{number}") for number in range(6)]
    site.store.append_many(name, messages)
    page = await window.open(name)
    rows, summary, banner, facts = map(page.locator, (".row", ".summary", "#banner", "#facts"))
    await expect(rows).to_have_count(6)
    await expect(facts).to_contain_text("6 messages")
    done = site.store.compact(name, through=messages[3], summary="[Earlier conversation summary: four questions]")
    await expect(summary).to_contain_text("four questions")
    await expect(summary).to_contain_text("4 messages")
    await expect(summary).not_to_contain_text("[Earlier")
    await expect(rows).to_have_count(3)
    assert await window.ids() == [done.summary.id, "q4", "q5"]
    await page.get_by_role("button", name="Show the originals").click()
    await expect(window.said("Question 0?")).to_be_visible()
    site.store.expand(name, done.summary.id)
    await expect(rows).to_have_count(6)
    assert await window.ids() == [f"q{number}" for number in range(6)]
    site.store.update_message(name, user("Question one?", id="q1"))
    await expect(page.locator(".row[data-id=q1]")).to_contain_text("Question one?")
    site.store.delete_messages(name, ["q0", "q2", "q3"])
    await expect(rows).to_have_count(3)
    site.store.restore(name, [user("From a copy.", id="r")])
    await expect(window.said("From a copy.")).to_be_visible()
    assert await window.ids() == ["r"]
    site.store.clear(name)
    await expect(banner).to_contain_text("removed")
    site.store.update_conversation(name, title="Renamed")
    await expect(page).to_have_title(re.compile("Renamed · redis-history"))
    site.store.delete_conversation(name)
    await expect(banner).to_contain_text("was deleted")
    await expect(facts).to_be_empty()
    site.store.append(name, user("Begun again."))
    await expect(window.said("Begun again.")).to_be_visible()
    await expect(facts).to_contain_text("1 message")
    await expect(banner).to_be_hidden()
    window.outage = True
    nowhere = site.name("nowhere")
    await window.follow(nowhere)
    await expect(banner).to_contain_text("This conversation does not exist")
    site.store.append(nowhere, user("Now it does."))
    await expect(window.said("Now it does.")).to_be_visible()


async def test_the_page_shows_who_works_and_stops_it(windows: Windows, desk: Site) -> None:
    name = desk.name("run")
    async with AsyncHistoryStore(desk.url, namespace=desk.store.namespace) as store:
        window = await windows(desk.address)
        await store.append(name, user("Why?"))
        await store.append(name, assistant(tool_use("0", "old"), id="old"))
        page = await window.open(name)
        activity, stop = page.locator("#activity"), page.locator("#stop")
        await expect(page.locator(".row[data-id=old] .tool")).to_have_attribute("data-state", "none")
        await expect(stop).to_be_hidden()

        async def work() -> None:
            async with store.run(name, agent_name="Ada") as run:
                await run.append(assistant(tool_use("1", "find_it"), id="call"))
                await expect(activity).to_contain_text("Ada is working since")
                await expect(page.locator(".row[data-id=call] .tool")).to_have_attribute("data-state", "waiting")
                waiter = asyncio.create_task(wait())
                await expect(activity).to_contain_text("Bob waits since")
                await page.reload()
                await window.live()
                await expect(activity).to_contain_text("Ada is working since")
                await stop.click()
                assert await run.wait_stop(10)
                await expect(activity).to_contain_text("Ada was asked to stop")
                await expect(stop).to_be_hidden()
                waiter.cancel()

        async def wait() -> None:
            async with store.run(name, agent_name="Bob", wait=60):
                pass

        await work()
        await expect(activity).to_be_hidden()
        await expect(page.locator(".row[data-id=call] .tool")).to_have_attribute("data-state", "error")
        async with store.run(name, agent_name="Ada"):
            await expect(activity).to_contain_text("Ada is working since")
            await store.delete_conversation(name)
            await expect(activity).to_be_hidden()


async def test_a_reply_grows_and_a_tool_runs(window: Window, site: Site) -> None:
    name = site.name("reply")
    async with AsyncHistoryStore(site.url, namespace=site.store.namespace) as store:
        await store.append(name, user("Why?"))
        page = await window.open(name)
        row, activity, tool = map(page.locator, (".row[data-id=r]", "#activity", ".tool"))
        async with store.stream(name, id="r", participant=ADA) as reply:
            await reply.write("Because of **this")
            await expect(row).to_contain_text("Because of")
            await expect(row.locator(".caret")).to_have_count(1)
            await expect(activity).to_contain_text("Ada is writing")
            await reply.write("** and")
            await expect(row).to_contain_text("Because of this and")
            await reply.add(tool_use("1", "find_it"))
            await expect(tool).to_have_attribute("data-state", "waiting")
            await page.reload()
            await window.live()
            await reply.write("that.")
            await expect(row).to_contain_text("that.")
        await expect(row.locator(".caret")).to_have_count(0)
        await expect(row).to_contain_text("Because of this and")
        await store.append(name, Message(role="tool", parts=ToolResultPart("1", "found")))
        await expect(tool).to_have_attribute("data-state", "done")
        await expect(activity).to_be_hidden()
        stopped = store.stream(name, id="s")
        await stopped.write("Half of ")
        await stopped.aclose()
        await expect(page.locator(".row[data-id=s]")).to_contain_text("stopped before its end")


async def test_unseen_messages_are_counted(windows: Windows, site: Site) -> None:
    one, other, created = site.name("one"), site.name("other"), site.name("created")
    for name in (one, other):
        site.store.append(name, user("Hello."))
    window = await windows(site.address)
    page = await window.open(one)
    badge = window.card(other).locator(".badge")
    await expect(window.card(other)).to_be_visible()
    await expect(badge).to_have_count(0)
    site.store.append_many(other, [assistant("One."), assistant("Two.")])
    site.store.append(one, assistant("This conversation is open."))
    await expect(badge).to_have_text("2")
    await expect(window.card(one).locator(".badge")).to_have_count(0)
    await expect(page).to_have_title(re.compile(r"^\(\d+\) "))
    await page.goto("about:blank")
    site.store.append(created, user("While the page was closed."))
    await window.open()
    await expect(window.card(created).locator(".badge")).to_have_text("1")
    await expect(badge).to_have_text("2")
    await window.card(other).locator("a").click()
    await expect(page.locator(".unread-line")).to_have_count(1)
    await expect(badge).to_have_count(0)


async def test_tabs_share_the_stream_of_the_list(windows: Windows, site: Site) -> None:
    name = site.name("tabs")
    site.store.append(name, user("Hello."))
    first = await windows(site.address)
    await first.open()
    second = await windows.another(site.address)
    await second.open()
    for window in (first, second):
        await expect(window.card(name)).to_be_visible()
    site.store.append(name, user("Both hear this."))
    for window in (first, second):
        await expect(window.card(name)).to_contain_text("Both hear this.")
    streams = [url for url in first.requests if url.endswith("v1/events")]  # of both: they share a profile
    assert len(streams) == 1
    await first.page.close()
    site.store.append(name, user("The other tab takes over."))
    await expect(second.card(name)).to_contain_text("The other tab takes over.")


async def test_nothing_is_missed_between_a_window_and_its_stream(window: Window, site: Site) -> None:
    name = site.name("gap")
    # So few messages that a window around any of them reaches the end, and nothing is loaded on the way there.
    word = name.replace("-", "")
    site.store.append_many(name, [user(f"Line {number}.", id=f"m{number}") for number in range(60)])
    site.store.update_message(name, user(f"The {word}.", id="m20"))
    page = await window.open()
    async with Held(page, f"**/{name}/events*") as stream:
        # Straight to a hit: a second window is requested before the first one is there.
        await page.keyboard.press("/")
        await page.keyboard.type(word)
        await page.locator(".hit").first.click()
        await stream.arrived.wait()
        await expect(window.said(word)).to_be_in_viewport()
        site.store.append(name, user("In between.", id="between"))
    await window.live()
    site.store.append(name, user("Afterwards.", id="after"))
    await page.keyboard.press("G")
    await expect(window.said("Afterwards.")).to_be_in_viewport()
    assert (await window.ids())[-3:] == ["m59", "between", "after"]
    await expect(page).to_have_title("Line 0. · redis-history")


async def test_the_list_is_right_when_it_changes_while_it_is_loaded(window: Window, site: Site) -> None:
    old, still, new, gone = (site.name(what) for what in ("old", "still", "new", "gone"))
    for name in (old, still, gone):
        site.store.append(name, user("Before."))
    page = await window.open()
    await expect(window.card(gone)).to_be_visible()
    async with Held(page, "**/v1/conversations?*") as listing:
        await page.reload()
        await listing.arrived.wait()
        site.store.append(old, user("Meanwhile."))
        site.store.append(new, user("Just begun."))
        site.store.delete_conversation(gone)
        await expect(window.card(new)).to_contain_text("Just begun.")
        await expect(window.card(old)).to_contain_text("2 messages")
        await expect(window.card(still)).to_have_count(0)
    await expect(window.card(still)).to_contain_text("Before.")  # the answer is there
    await expect(window.card(old)).to_contain_text("Meanwhile.")
    await expect(window.card(old)).to_contain_text("2 messages")
    await expect(window.card(new)).to_contain_text("Just begun.")
    await expect(window.card(gone)).to_have_count(0)


@pytest.mark.full
async def test_the_last_navigation_wins(window: Window, site: Site) -> None:
    name = site.name("wish")
    site.store.append_many(name, [user(f"Line {number}.", id=f"m{number}") for number in range(600)])
    page = await window.open(name)
    await expect(window.said("Line 599.")).to_be_in_viewport()
    for first, second, end in (("g", "G", "Line 599."), ("G", "g", "Line 0.")):
        async with Held(page, "**/messages?*") as answer:
            await page.keyboard.press(first)
            if first == "g":
                await answer.arrived.wait()
            await page.keyboard.press(second)
            await answer.arrived.wait()
        await expect(window.said(end)).to_be_in_viewport()
        await window.until("() => !document.querySelector('#timeline[aria-busy=true]')")
        await expect(window.said(end)).to_be_in_viewport()
    early = site.name("early")
    long_ago = [user(f"In {year}.", timestamp=f"{year}-01-01T00:00:00Z") for year in (1700, 1930, 2026)]
    site.store.append_many(early, [*long_ago, *(user("x") for _ in range(400))])
    await window.follow(early)
    await page.keyboard.press("g")
    await expect(window.said("In 1700.")).to_be_in_viewport()


async def test_text_that_is_typed_while_a_message_is_sent_stays(windows: Windows, desk: Site) -> None:
    one, two = desk.name("one"), desk.name("two")
    for name in (one, two):
        desk.store.append(name, user("Hello."))
    window = await windows(desk.address)
    page = await window.open(one)
    draft = page.locator("#draft")
    async with Held(page, "**/messages") as answer:
        await draft.fill("First.")
        await draft.press("Enter")
        await answer.arrived.wait()
        await draft.press_sequentially(" And more")
    await expect(draft).to_have_value("And more")
    async with Held(page, "**/messages") as answer:
        await draft.press("Enter")
        await answer.arrived.wait()
        await window.follow(two)
        await draft.fill("For the other.")
    await expect(draft).to_have_value("For the other.")
    await window.follow(one)
    await expect(draft).to_have_value("")
    await expect(window.said("And more")).to_be_visible()
    assert [message.text for message in desk.store.get(one)] == ["Hello.", "First.", "And more"]
