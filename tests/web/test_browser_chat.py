"""`docs/examples/chat` with the real `useChat` of the AI SDK in Chromium, and `HttpAgent` of AG-UI: what happens to a
tab, the network, the server or Redis in the middle of an answer, its text arrives once and whole."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import BrowserContext, Page, expect

from redis_history import HistoryStore, assistant, user
from tests.docs.pages import DOCS
from tests.support.servers import DEADLINE, RealServer, free_port, until
from tests.web.browsing import Network, Windows, check_axe

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.full]

#: Words of an answer, of which the example writes ten a second.
WORDS = [f"word{number}" for number in range(40)]
ANSWER = "".join(f"{word} " for word in WORDS)
#: Sends the text, or connects if it is empty. Reconnects after errors, and regenerates an interrupted answer.
AG_UI = """
import { setTimeout } from "node:timers/promises";
import { HttpAgent, runHttpRequest, transformHttpEventStream } from "@ag-ui/client";
const [, , url, threadId, word, text] = process.argv;
process.on("unhandledRejection", () => {});  // ag-ui-protocol/ag-ui#2510
class Agent extends HttpAgent {
  connect() {
    return transformHttpEventStream(runHttpRequest(() => this.fetch(`${url}/${threadId}/stream`, {})));
  }
}
const agent = new Agent({ url, threadId });
const kinds = [], shown = [];
let code = "", begun = false;
agent.subscribe({
  onEvent: ({ event }) => { kinds.push(event.type); },
  onRunErrorEvent: ({ event }) => { code = event.code; },
  onMessagesChanged: ({ messages }) => {
    shown.push(messages.filter((one) => one.role === "assistant").map((one) => one.content));
    if (!begun && shown.at(-1).join().includes(word)) {
      begun = true;
      console.log("begun");
    }
  },
});
if (text) agent.addMessage({ id: "u1", role: "user", content: text });
let act = text ? "runAgent" : "connectAgent";
while (act) {
  code = "";
  try {
    await agent[act]();
    act = code === "interrupted" ? "runAgent" : "";
  } catch {
    await setTimeout(100);
    act = "connectAgent";
  }
}
const messages = agent.messages.map(({ role, content }) => [role, content]);
console.log(JSON.stringify({ kinds, shown, messages }));
"""

#: A UI message with calls in all states.
UI_MESSAGE: Any = {"id": "m", "role": "assistant", "metadata": {"model": "m1", "usage": {"in": 1}}, "parts": [
    {"type": "step-start"},
    {"type": "reasoning", "text": "Hm", "providerMetadata": {"p": {"signature": "s"}}, "state": "done"},
    {"type": "text", "text": "I look.", "providerMetadata": {"p": {"id": "x"}}, "state": "done"},
    {"type": "tool-find", "toolCallId": "c1", "state": "output-available", "input": {"a": 1},
     "output": {"t": [1, None, "x"]}, "providerExecuted": True, "title": "Find",
     "callProviderMetadata": {"p": {"c": 1}}, "resultProviderMetadata": {"p": {"r": 1}}},
    {"type": "dynamic-tool", "toolName": "x", "toolCallId": "c2", "state": "output-error", "input": None,
     "errorText": "no"},
    {"type": "tool-pay", "toolCallId": "c3", "state": "approval-requested", "input": {"sum": 3},
     "approval": {"id": "a3"}},
    {"type": "tool-pay", "toolCallId": "c4", "state": "output-denied", "input": {},
     "approval": {"id": "a4", "approved": False, "reason": "too much"}},
    {"type": "tool-pay", "toolCallId": "c5", "state": "approval-responded", "input": {},
     "approval": {"id": "a5", "approved": True}},
    {"type": "tool-pay", "toolCallId": "c6", "state": "input-available", "input": {"q": "ä"}},
    {"type": "tool-pay", "toolCallId": "c7", "state": "output-available", "input": {}, "output": "half",
     "preliminary": True},
    {"type": "step-start"},
    {"type": "source-url", "sourceId": "s", "url": "https://example.com", "title": "T",
     "providerMetadata": {"p": {"q": 1}}},
    {"type": "source-document", "sourceId": "d", "mediaType": "application/pdf", "title": "D", "filename": "d.pdf"},
    {"type": "file", "url": "https://example.com/a.png", "mediaType": "image/png", "providerMetadata": {"p": {"f": 1}}},
    {"type": "data-weather", "id": "w", "data": {"t": 1}},
    {"type": "text", "text": "Done. 😀", "state": "done"},
]}  # fmt: skip
CARRIER = """
import json
from app import Mount, Starlette, ChatEndpoints, allow_all, store
from redis_history.formats import from_vercel_ai
async def answer(run):
    await run.append_many(from_vercel_ai([json.load(open("message.json"))]))
options = {"authorize": allow_all}
routes = [ChatEndpoints(store, answer, protocol=name, **options).mount(path)
          for name, path in (("ai-sdk", "/api/chat"), ("ag-ui", "/ag-ui"))]
app = Starlette(routes=routes)
"""
READ = """
import { HttpAgent } from "@ag-ui/client";
import { DefaultChatTransport, readUIMessageStream } from "ai";
const [, , base] = process.argv;
const asked = { id: "u1", role: "user", parts: [{ type: "text", text: "Go." }] };
const transport = new DefaultChatTransport({ api: `${base}/api/chat` });
const stream = await transport.sendMessages({ chatId: "sdk", messages: [asked], trigger: "submit-message" });
let message;
for await (message of readUIMessageStream({ stream }));
const agent = new HttpAgent({ url: `${base}/ag-ui`, threadId: "ag" });
const image = { type: "image", source: { type: "url", value: "https://example.com/a.png", mimeType: "image/png" } };
agent.addMessage({ id: "u1", role: "user", content: [{ type: "text", text: "Go." }, image] });
await agent.runAgent({});
console.log(JSON.stringify([message, agent.messages]));
"""


def _npm(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["npm", *arguments], cwd=folder, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, f"npm {' '.join(arguments)} failed: {done.stderr[-2000:]}"


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with its page, and the client of AG-UI with it."""
    if shutil.which("npm") is None:
        reason = "npm is not installed: it builds the page of docs/examples/chat"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("chat") / "chat"
    ignored = shutil.ignore_patterns("node_modules", "page")
    shutil.copytree(DOCS / "examples" / "chat", folder, ignore=ignored)
    _npm(folder, "install", "--no-audit", "--no-fund", "--prefer-offline", ".", "@ag-ui/client@^1.0.0")
    _npm(folder, "run", "build")
    (folder / "agent.mjs").write_text(AG_UI)
    code = (folder / "app.py").read_text()
    (folder / "ag_ui_app.py").write_text(code.replace("allow_all)", 'allow_all, protocol="ag-ui")'))
    return folder


class Web:
    """A web process of the example."""

    def __init__(self, folder: Path, url: str, port: int | None = None, app: str = "app:app") -> None:
        self.port = port or free_port()
        argv = [sys.executable, "-m", "uvicorn", app, "--port", str(self.port), "--log-level", "warning"]
        argv += ["--timeout-graceful-shutdown", "8"]
        self._process = subprocess.Popen(argv, cwd=folder, env={**os.environ, "REDIS_HISTORY_URL": url})
        self.base = f"http://127.0.0.1:{self.port}/api/chat"

    async def answers(self) -> Web:
        async def answers() -> bool:
            assert self._process.poll() is None
            try:
                async with httpx.AsyncClient() as client:
                    return (await client.get(f"{self.base}/c/messages")).status_code == 200
            except httpx.TransportError:
                return False

        await until(answers)
        return self

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(how)
        self._process.wait(DEADLINE)


@pytest.fixture
def web(example: Path) -> Iterator[Callable[..., Any]]:
    """Starts web processes of the example."""
    started: list[Web] = []

    async def web(url: str, **options: Any) -> Web:
        started.append(Web(example, url, **options))
        return await started[-1].answers()

    yield web
    for one in started:
        one.end(signal.SIGKILL)


@pytest.fixture
def redis(own_server: Callable[..., RealServer]) -> RealServer:
    return own_server("plain", tcp=True, options=("--appendonly", "yes", "--appendfsync", "always"))


class Tab:
    """The chat in a tab. It always shows a beginning of the answer."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.answer = page.locator("p.assistant")

    @classmethod
    async def open(cls, context: BrowserContext, port: int) -> Tab:
        page = await context.new_page()
        await page.goto(f"http://127.0.0.1:{port}/#c")
        await expect(page.get_by_label("Message")).to_be_visible()
        await page.evaluate(
            """(whole) => {
            window.wrong = [];
            const check = () => {
              const answers = [...document.querySelectorAll("p.assistant")].map((one) => one.textContent);
              if (answers.length > 1 || !whole.startsWith(answers[0] ?? "")) window.wrong.push(answers);
            };
            new MutationObserver(check).observe(document.body, { childList: true, characterData: true, subtree: true });
        }""",
            ANSWER,
        )
        return cls(page)

    async def send(self) -> None:
        await self.page.get_by_label("Message").fill(" ".join(WORDS))
        await self.page.get_by_role("button", name="Send").click()
        await self.reads(WORDS[3])

    async def reads(self, word: str) -> None:
        await expect(self.answer).to_contain_text(word, timeout=60_000)

    async def is_complete(self) -> None:
        await self.reads(WORDS[-1])
        await expect(self.page.get_by_role("button", name="Send")).to_be_visible()
        await expect(self.page.get_by_role("alert")).to_have_count(0)  # gone when no run is left
        await self.shows(ANSWER)

    async def does(self, name: str) -> None:
        await self.page.get_by_role("button", name=name, exact=True).click()

    async def shows(self, answer: str) -> None:
        assert await self.page.locator("#chat > p").all_text_contents() == [" ".join(WORDS), answer]
        assert await self.page.evaluate("window.wrong") == []


@pytest_asyncio.fixture(loop_scope="session")
async def context(windows: Windows) -> BrowserContext:
    """A profile of a browser, without windows."""
    window = await windows("http://127.0.0.1")
    window.outage = True
    return window.page.context


def stored(redis: RealServer, chat: str = "c") -> list[tuple[str, str, str]]:
    with HistoryStore(redis.url, namespace="chat") as store:
        return [(one.role, one.text, one.status) for one in store.get(chat)]


def ids(redis: RealServer, chat: str = "c") -> list[str]:
    with HistoryStore(redis.url, namespace="chat") as store:
        return [one.id for one in store.get(chat)]


EXPECTED = [("user", " ".join(WORDS), "complete"), ("assistant", ANSWER, "complete")]


@pytest.mark.proves("chat")
async def test_an_answer_survives_its_tabs(web: Any, redis: RealServer, context: BrowserContext) -> None:
    port = (await web(redis.url)).port
    tab = await Tab.open(context, port)
    await tab.send()
    await tab.page.close()
    first, second = await Tab.open(context, port), await Tab.open(context, port)
    await first.reads(WORDS[10])
    await first.page.reload()
    first = Tab(first.page)
    await first.reads(WORDS[14])
    await second.is_complete()
    await expect(first.answer).to_have_text(ANSWER)
    assert stored(redis) == EXPECTED
    await second.page.reload()
    await expect(second.answer).to_have_text(ANSWER)


async def test_another_tab_stops_an_answer(web: Any, redis: RealServer, context: BrowserContext) -> None:
    port = (await web(redis.url)).port
    first = await Tab.open(context, port)
    await first.send()
    second = await Tab.open(context, port)
    await second.reads(WORDS[6])
    await second.page.get_by_role("button", name="Stop").click()
    for tab in (first, second):
        await expect(tab.page.get_by_role("button", name="Send")).to_be_visible()
    kept = stored(redis)[1]
    assert (kept[0], kept[2]) == ("assistant", "stopped")
    for tab in (first, second):
        await tab.shows(kept[1])


@pytest.mark.proves("chat")
async def test_an_answer_is_replaced_or_given_in_a_fork(web: Any, redis: RealServer, context: BrowserContext) -> None:
    tab = await Tab.open(context, (await web(redis.url)).port)
    await tab.send()
    await tab.is_complete()
    await check_axe(tab.page, ["light", "dark"], "chat")
    [_, first] = ids(redis)
    await tab.does("Answer again")
    await expect(tab.page.get_by_role("button", name="Stop")).to_be_visible()
    # Until the new answer begins, the page shows the former one, which is complete, too.
    await until(lambda: first not in ids(redis) and stored(redis) == EXPECTED, "the new answer", 60)
    await tab.is_complete()
    [question, second] = ids(redis)
    assert (stored(redis), second == first) == (EXPECTED, False)
    await tab.does("Answer in a new chat")
    await tab.page.wait_for_function("location.hash !== '#c'")
    fork = tab.page.url.partition("#")[2]
    await expect(tab.answer).to_have_text(ANSWER, timeout=60_000)
    await until(lambda: stored(redis, fork) == EXPECTED, "the end of the answer in the fork")
    assert stored(redis) == EXPECTED
    assert (ids(redis), ids(redis, fork)[0]) == ([question, second], question)


@pytest.mark.proves("chat")
async def test_an_answer_whose_process_dies_can_be_asked_for_again(
    web: Any, redis: RealServer, context: BrowserContext
) -> None:
    served = await web(redis.url)
    tab = await Tab.open(context, served.port)
    await tab.send()
    served.end(signal.SIGKILL)
    await expect(tab.page.get_by_role("alert")).to_contain_text("Reconnecting")
    await web(redis.url, port=served.port)
    await expect(tab.page.get_by_role("alert")).to_contain_text("interrupted", timeout=30_000)
    await expect(tab.answer).to_contain_text(WORDS[3])
    await tab.page.get_by_role("button", name="Ask again").click()
    await tab.is_complete()
    assert stored(redis) == EXPECTED


@pytest.mark.proves("chat")
async def test_a_restart_of_redis_in_the_middle(web: Any, redis: RealServer, context: BrowserContext) -> None:
    tab = await Tab.open(context, (await web(redis.url)).port)
    await tab.send()
    redis.kill()
    redis.start()
    await tab.is_complete()
    assert stored(redis) == EXPECTED


@pytest.mark.proves("chat")
@pytest.mark.parametrize("seconds", [1, 20])  # the answer is written in four
async def test_a_network_that_is_away(seconds: int, web: Any, redis: RealServer, context: BrowserContext) -> None:
    port = (await web(redis.url)).port
    with closing(Network(port)) as network:
        tab = await Tab.open(context, network.port)
        await tab.send()
        network.refuse()
        await expect(tab.page.get_by_role("alert")).to_contain_text("Reconnecting")
        await tab.page.wait_for_timeout(1000 * seconds)
        network.forward(port)
        await tab.is_complete()
    assert stored(redis) == EXPECTED


async def test_a_process_that_stops_hands_its_streams_over(
    web: Any, redis: RealServer, context: BrowserContext
) -> None:
    old, new = await web(redis.url), await web(redis.url)
    writer = await Tab.open(context, new.port)
    with closing(Network(old.port)) as network:
        await writer.send()
        reader = await Tab.open(context, network.port)
        await reader.reads(WORDS[6])
        old.end()
        network.forward(new.port)
        await reader.is_complete()
        await writer.is_complete()
    assert stored(redis) == EXPECTED


async def test_an_idle_tab_shows_what_others_write(web: Any, redis: RealServer, context: BrowserContext) -> None:
    """Another tab and an agent elsewhere write, and the second tab is not touched."""
    port = (await web(redis.url)).port
    first, second = await Tab.open(context, port), await Tab.open(context, port)
    await first.send()
    await second.reads(WORDS[6])
    await expect(second.page.get_by_role("button", name="Stop")).to_be_visible()
    await first.is_complete()
    await second.is_complete()
    with HistoryStore(redis.url, namespace="chat") as store:
        store.append("c", user("How is it?", id="ann-1"))
        store.append("c", assistant("Fine.", id="agent-1"))
        for tab in (first, second):
            await expect(tab.page.locator("#chat > p")).to_have_text([" ".join(WORDS), ANSWER, "How is it?", "Fine."])
        store.delete_messages("c", ["ann-1", "agent-1"])
        for tab in (first, second):
            await expect(tab.page.locator("#chat > p")).to_have_text([" ".join(WORDS), ANSWER])
        # The tab that was idle has no gap when it asks in turn.
        store.append("c", user("And now?", id="ann-2"))
        await expect(second.page.locator("#chat > p")).to_have_count(3)
    await second.page.get_by_label("Message").fill("Last.")
    await second.does("Send")
    for tab in (first, second):
        everything = [" ".join(WORDS), ANSWER, "And now?", "Last.", "Last. "]
        await expect(tab.page.locator("#chat > p")).to_have_text(everything)


async def test_the_page_scrolls_with_the_answer(web: Any, redis: RealServer, context: BrowserContext) -> None:
    """The input and Stop stay in view. The page does not move for a user that has scrolled up."""
    port = (await web(redis.url)).port
    with HistoryStore(redis.url, namespace="chat") as store:
        store.append_many("c", [each(f"{number}\n" * 20) for number in range(4) for each in (user, assistant)])
    tab = Tab(await context.new_page())
    await tab.page.set_viewport_size({"width": 400, "height": 500})
    await tab.page.goto(f"http://127.0.0.1:{port}/#c")
    place = "scrollY + innerHeight - document.documentElement.scrollHeight"
    await tab.page.wait_for_function(f"Math.abs({place}) < 2")
    await tab.page.get_by_label("Message").fill("word " * 60)
    await tab.does("Send")
    answer = tab.answer.last
    for count in (5, 20):
        await expect(answer).to_have_text(re.compile("word " * count))
        await tab.page.wait_for_function(f"Math.abs({place}) < 2")
        for shown in (tab.page.get_by_role("button", name="Stop"), tab.page.get_by_label("Message"), answer):
            await expect(shown).to_be_in_viewport()
    await tab.page.mouse.wheel(0, -900)
    await tab.page.wait_for_function(f"{place} < -800")
    before = await tab.page.evaluate("scrollY")
    await expect(answer).to_have_text(re.compile("word " * 40))
    assert await tab.page.evaluate("scrollY") == before
    await expect(tab.page.get_by_role("button", name="Stop")).to_be_in_viewport()


async def test_an_agent_with_a_tool(web: Any, redis: RealServer, context: BrowserContext) -> None:
    tab = await Tab.open(context, (await web(redis.url, app="agent:app")).port)
    for count in (1, 2):
        await tab.page.get_by_label("Message").fill("What is the weather?")
        await tab.does("Send")
        await expect(tab.answer).to_have_text(["It is sunny."] * count)
        await expect(tab.page.get_by_role("button", name="Send", exact=True)).to_be_visible()
    assert [one[:2] for one in stored(redis)] == [
        ("user", "What is the weather?"), ("assistant", ""), ("tool", "Sunny in a"), ("assistant", "It is sunny."),
        ("user", "What is the weather?"), ("assistant", "It is sunny."),
    ]  # fmt: skip


@pytest.mark.proves("chat")
async def test_clients_have_all_that_the_formats_carry(web: Any, redis: RealServer, example: Path) -> None:
    (example / "carrier.py").write_text(CARRIER)
    (example / "message.json").write_text(json.dumps(UI_MESSAGE))
    (example / "read.mjs").write_text(READ)
    base = (await web(redis.url, app="carrier:app")).base.removesuffix("/api/chat")
    argv = ["node", "read.mjs", base]
    process = await asyncio.create_subprocess_exec(*argv, cwd=example, stdout=asyncio.subprocess.PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    message, messages = json.loads(output)
    for part in message["parts"]:
        if part["type"] == "reasoning":
            del part["id"]  # of the stream
    assert message == UI_MESSAGE
    async with httpx.AsyncClient(base_url=base) as client:
        assert (await client.get("/api/chat/sdk/messages")).json()[1] == UI_MESSAGE
        stored = (await client.get("/ag-ui/ag/messages")).json()
    for one in stored:
        one.pop("error", None)  # no event has it
    assert messages == stored
    assert [(one["role"], len(one.get("toolCalls", ()))) for one in stored] == [
        ("user", 0), ("reasoning", 0), ("assistant", 7), *[("tool", 0)] * 4, ("assistant", 0),  # one denied
    ]  # fmt: skip


class Agent:
    """A program with `HttpAgent`, which has shown the first words of the answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def begun(cls, example: Path, port: int, text: str = "") -> Agent:
        """It asks, or connects to the answer."""
        argv = ["node", "agent.mjs", f"http://127.0.0.1:{port}/api/chat", "c", WORDS[3], text]
        process = await asyncio.create_subprocess_exec(*argv, cwd=example, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"begun\n"
        return cls(process)

    async def events(self) -> list[str]:
        """The types of all events, when it has the whole answer. It must never have shown more than a beginning."""
        output, _ = await asyncio.wait_for(self._process.communicate(), 60)
        found = json.loads(output)
        assert found["messages"] == [["user", " ".join(WORDS)], ["assistant", ANSWER]]
        assert [one for one in found["shown"] if len(one) > 1 or not ANSWER.startswith("".join(one))] == []
        kinds: list[str] = found["kinds"]
        return kinds


async def test_clients_of_ag_ui_connect_to_an_answer(web: Any, redis: RealServer, example: Path) -> None:
    port = (await web(redis.url, app="ag_ui_app:app")).port
    writer = await Agent.begun(example, port, " ".join(WORDS))
    reader = await Agent.begun(example, port)
    assert "MESSAGES_SNAPSHOT" not in await writer.events()
    assert (await reader.events()).count("MESSAGES_SNAPSHOT") == 1
    late = await Agent.begun(example, port)
    assert await late.events() == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert stored(redis) == EXPECTED


@pytest.mark.proves("chat")
async def test_ag_ui_after_the_death_of_the_web_process(web: Any, redis: RealServer, example: Path) -> None:
    served = await web(redis.url, app="ag_ui_app:app")
    agent = await Agent.begun(example, served.port, " ".join(WORDS))
    served.end(signal.SIGKILL)
    await web(redis.url, port=served.port, app="ag_ui_app:app")
    assert "RUN_ERROR" in await agent.events()
    assert stored(redis) == EXPECTED


@pytest.mark.proves("chat")
async def test_ag_ui_while_redis_restarts(web: Any, redis: RealServer, example: Path) -> None:
    agent = await Agent.begun(example, (await web(redis.url, app="ag_ui_app:app")).port, " ".join(WORDS))
    redis.kill()
    redis.start()
    assert "RUN_ERROR" not in await agent.events()
    assert stored(redis) == EXPECTED


@pytest.mark.proves("chat")
async def test_ag_ui_without_network(web: Any, redis: RealServer, example: Path) -> None:
    port = (await web(redis.url, app="ag_ui_app:app")).port
    with closing(Network(port)) as cut, closing(Network(port)) as frozen:
        asking = await Agent.begun(example, cut.port, " ".join(WORDS))
        reading = await Agent.begun(example, frozen.port)
        cut.refuse()
        frozen.freeze()
        await asyncio.sleep(20)
        cut.forward(port)
        frozen.mend()
        assert "MESSAGES_SNAPSHOT" in await asking.events()
        await reading.events()
    assert stored(redis) == EXPECTED
