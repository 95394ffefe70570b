"""The page in real Chromium: however changes and pages cross, in the end it shows what is stored."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

import pytest
from playwright.async_api import Page, Route, expect

from redis_history import HistoryStore, Message, user
from tests.web.browsing import PATIENCE, Site, Window

pytestmark = pytest.mark.asyncio(loop_scope="session")


class _Changes:
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
        kind = self._chance.choice(
            ["append"] * 5 + ["insert", "insert", "delete", "delete", "edit", "edit", "compact", "expand"]
        )
        chosen = self._chance.choice(messages)
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


class _SlowAnswers:
    """Holds back pages of messages until some more changes were made: then they are older than what events told."""

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
@pytest.mark.parametrize("seed", [3])
async def test_the_page_shows_what_is_stored(seed: int, window: Window, site: Site, full: bool) -> None:
    name = site.name("converge")
    changes = _Changes(site.store, name, seed)
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    site.store.append_many(name, [changes.new(begun + timedelta(minutes=number)) for number in range(700)])
    page = await window.open(name)
    await expect(page.locator(".row").first).to_be_attached()
    slow = _SlowAnswers(seed)
    await page.route("**/messages?*", slow)
    wander = random.Random(seed)
    for _ in range(300 if full else 60):
        making = asyncio.to_thread(changes.make)
        moving = page.evaluate(
            "by => { document.querySelector('#timeline').scrollTop += by }", wander.randrange(-9000, 7000)
        )
        await asyncio.gather(making, moving)
        await slow.made()
        if wander.random() < 0.05:
            await page.keyboard.press(wander.choice(["g", "G"]))
    await slow.made(over=True)
    # Not by the keys, which would read what is held anew: on foot to the end, to the beginning, and back.
    site.store.append(name, user("The last change.", id="last"))
    expected = {message.id: _begin(message) for message in site.store.get(name)}
    await _walk(page, 2000, "last")
    await _walk(page, -2000, next(iter(expected)))
    shown = await _walk(page, 1200, "last")
    assert list(shown) == list(expected)
    assert shown == expected


def _begin(message: Message) -> str:
    return message.text.split(".")[0].removeprefix("[Earlier conversation summary: ").removesuffix("]")


async def _walk(page: Page, step: int, until: str) -> dict[str, str]:
    """Scroll by so many pixels until a message is in view; the messages that were drawn on the way, in this order, and
    how their texts begin."""
    found: dict[str, str] = {}
    deadline = time.monotonic() + 6 * PATIENCE
    while True:
        rows, places, there = await page.evaluate(
            """async ([step, until]) => {
              const box = document.querySelector('#timeline');
              const rows = [...document.querySelectorAll('.row[data-id]')];
              const found = rows.map(row => [row.dataset.id, row.querySelector('.prose').textContent.split('.')[0]]);
              const places = rows.map(row => Number(row.ariaPosInSet));
              const goal = rows.find(row => row.dataset.id === until)?.getBoundingClientRect();
              const there = goal && goal.bottom > 0 && goal.top < innerHeight;
              if (!there) box.scrollTop += step;
              await new Promise(frame => requestAnimationFrame(() => requestAnimationFrame(frame)));
              return [found, places, there];
            }""",
            [step, until],
        )
        if places:  # none are drawn while a window that became empty is read anew
            assert places == list(range(places[0], places[-1] + 1))
        found |= {name: text for name, text in rows if name not in found}
        if there:
            return found
        assert time.monotonic() < deadline, f"did not come to {until}"
