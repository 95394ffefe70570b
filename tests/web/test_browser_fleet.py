"""docs/examples/fleet with `useChat` in Chromium, and with `HttpAgent`: the web process and the workers are apart, and
are killed in the middle of an answer. Its text is exact, and there is one answer."""

# ruff: noqa: F401, F811 -- fixtures of another module
from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import BrowserContext, expect

from redis_history import HistoryStore
from tests.docs.pages import DOCS
from tests.support.servers import RealServer, until
from tests.web.test_browser_chat import (
    ANSWER,
    EXPECTED,
    WORDS,
    Agent,
    Tab,
    context,
    example,
    redis,
    stored,
)
from tests.web.test_fleet import Fleet

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.full, pytest.mark.proves("turns")]

KILLED = {"workers": ("worker 1", "worker 2"), "web": ("web",)}


@pytest.fixture
def fleet(example: Path, redis: RealServer, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Starts the fleet, with the page of the example chat."""
    started: list[Fleet] = []

    async def fleet(protocol: str) -> Fleet:
        folder = example.parent / f"fleet-{protocol}"
        shutil.copytree(DOCS / "examples" / "fleet", folder, dirs_exist_ok=True)
        web = (
            (folder / "web.py")
            .read_text()
            .replace(
                "ChatEndpoints(store, authorize=allow_all)",
                f'ChatEndpoints(store, authorize=allow_all, protocol="{protocol}")',
            )
        )
        (folder / "web.py").write_text(web)
        started.append(Fleet(redis.url, tmp_path / "log", folder, "chat"))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{started[-1].port}") as client:
            await started[-1].answers(client)
        return started[-1]

    yield fleet
    for one in started:
        one.end()


async def has_ended(server: RealServer) -> bool:
    with HistoryStore(server.url, namespace="chat") as store:
        return not store.list_turns()


@pytest.mark.parametrize("killed", KILLED)
async def test_two_tabs_of_a_fleet_whose_processes_are_killed(
    fleet: Any,
    redis: RealServer,
    context: BrowserContext,
    killed: str,
) -> None:
    served = await fleet("ai-sdk")
    first = await Tab.open(context, served.port)
    await first.send()
    second = await Tab.open(context, served.port)
    await second.reads(WORDS[6])
    served.kill(*KILLED[killed])
    for tab in (first, second):
        await tab.is_complete()
    assert stored(redis) == EXPECTED
    await until(lambda: has_ended(redis))


async def test_a_tab_stops_an_answer_of_a_worker(
    fleet: Any,
    redis: RealServer,
    context: BrowserContext,
) -> None:
    served = await fleet("ai-sdk")
    first = await Tab.open(context, served.port)
    await first.send()
    second = await Tab.open(context, served.port)
    await second.reads(WORDS[6])
    await second.does("Stop")
    for tab in (first, second):
        await expect(tab.page.get_by_role("button", name="Send")).to_be_visible()
    [_, kept] = stored(redis)
    assert (kept[0], kept[2], ANSWER.startswith(kept[1])) == ("assistant", "stopped", True)
    await until(lambda: has_ended(redis))


@pytest.mark.parametrize("killed", KILLED)
async def test_an_agent_of_ag_ui_with_a_fleet_whose_processes_are_killed(
    fleet: Any,
    redis: RealServer,
    example: Path,
    killed: str,
) -> None:
    served = await fleet("ag-ui")
    asking = await Agent.begun(example, served.port, " ".join(WORDS))
    served.kill(*KILLED[killed])
    await asking.events()
    assert stored(redis) == EXPECTED
    await until(lambda: has_ended(redis))
