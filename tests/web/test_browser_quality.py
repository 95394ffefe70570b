"""The page in real Chromium: accessible by axe-core, quick, and its modules on their own."""

from typing import Any

import pytest
from playwright.async_api import expect

from redis_history import HistoryStore, assistant
from tests.support.servers import RealServer
from tests.support.web import serve
from tests.web import scenes
from tests.web.browsing import Site, Window, Windows, check_axe

pytestmark = pytest.mark.asyncio(loop_scope="session")

CODE = "```py\n# x\ndef f(): return 'a', 1\n```\n```diff\n-a\n+b\n```\n"
TABLE = "| a | b |\n|--|--|\n| 1 | [2](https://a.example) |"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.full
async def test_axe_finds_nothing_serious(width: int, windows: Windows, server: RealServer, namespace: str) -> None:
    with (
        HistoryStore(server.url, namespace=namespace) as store,
        serve(server.url, namespace, "--allow-writes") as served,
    ):
        scenes.tell(store)
        store.append(scenes.MAIN, assistant(f"{CODE}# Plan\n\n- one `two`\n\n{TABLE}"))
        size = {"width": width, "height": 844}
        window = await windows(served.url, viewport=size, reduced_motion="reduce")
        page = await window.open()
        colors: Any = ["light", "dark"]
        await expect(page.locator(".card")).to_have_count(8)
        await check_axe(page, colors, "list")
        await page.get_by_label("Search messages").fill("jacket")
        await expect(page.locator(".hit").first).to_be_visible()
        await page.get_by_text("Filters").click()
        await check_axe(page, colors, "search")
        await window.follow(scenes.MAIN)
        await page.keyboard.press("g")
        await page.get_by_role("button", name="Show the originals").click()
        await page.evaluate("document.querySelectorAll('.tool-head').forEach((one) => one.click())")
        await check_axe(page, colors, "conversation")
        for name in ("Rename", "Export"):
            await page.get_by_role("button", name=name).click()
            await check_axe(page, colors, name, "dialog[open]")
            await page.keyboard.press("Escape")
        await page.keyboard.press("?")
        await check_axe(page, colors, "help", "dialog[open]")
        await windows.close()


async def test_a_thousand_messages_are_painted_at_once(window: Window, site: Site) -> None:
    name = site.name("thousand")
    texts = [f"Message **{number}** of many.\n\n" + "- some words\n" * (number % 9) for number in range(1000)]
    for first in (0, 500):
        site.store.append_many(name, [assistant(text) for text in texts[first : first + 500]])
    page = await window.open()
    await expect(window.card(name)).to_be_visible()
    took = [
        await page.evaluate(
            """async (name) => {
              location.hash = "";
              await new Promise((done) => setTimeout(done, 50));
              const began = performance.now();
              document.querySelector(`li[data-id='${name}'] a`).click();
              while (!document.querySelector(".row")) await new Promise(requestAnimationFrame);
              await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
              return performance.now() - began;
            }""",
            name,
        )
        for _ in range(5)
    ]
    assert min(took) < 300, f"milliseconds from the click until the messages are painted: {took}"


@pytest.mark.full
async def test_texts_that_could_freeze_the_page(window: Window) -> None:
    page = await window.open()
    found = await page.evaluate("""async () => {
        const { markdown, prose } = await import(new URL("static/markdown.js", location.href.split("#")[0]).href);
        const many = (text) => text.repeat(400_000);
        const hostile = ["```" + many(" ") + "x`", "~~~" + many("a") + "`", "```" + many("a ") + "`"];
        const fenced = prose("Look:\\n```python title\\nx = 1\\n```\\nand\\n~~~~\\n```\\n~~~~\\n``` no `code`");
        const kinds = ["[", "![", "*a_", "**b]", "> ", "- ", "`a", "<a ", "a@b.", "|a\\n|-\\n", "[a]: ", "&", "~~b]"];
        const codes = { py: ["a", "'", "f'{"], js: ["a", "`${", "/ ", "/*", "'"], bash: ["a.", "$(", "; "],
          sql: ["a", "'", "/*", "-- ", "@a "], rs: ["a!", "'a ", "/*", '"', "a ("] };
        const began = performance.now();
        for (const kind of kinds) markdown(kind.repeat(19_990 / kind.length));
        for (const [name, all] of Object.entries(codes))
          for (const one of all) markdown(`~~~${name}\\n${one.repeat(6_000 / one.length)}\\n`);
        const plain = hostile.map((text) => prose(text).children.length);
        const spent = performance.now() - began;
        return { plain, fenced: [...fenced.children].map((one) => [one.tagName, one.textContent]), spent };
    }""")
    assert found["plain"] == [1, 1, 1]
    assert found["spent"] < 10_000, "37 texts; a quadratic parser takes minutes"
    assert found["fenced"] == [
        ["P", "Look:"],
        ["PRE", "pythonCopyx = 1"],
        ["P", "and"],
        ["PRE", "Copy```"],
        ["P", "``` no code"],
    ]


async def test_other_names_of_languages_are_colored(window: Window) -> None:
    page = await window.open()
    plain = await page.evaluate("""async () => {
        const { code } = await import("./static/prose.js");
        const texts = { patch: "+added", py: "def f(): pass", python: "def f(): pass", javascript: "let a", js: "let a",
          typescript: "let a", ts: "let a", sh: "if x", shell: "if x", bash: "if x", yml: "a: 1", JSON: "1",
          sql: "SELECT 1", SQLite: "select 1", postgresql: "WITH a", rust: "fn f()", rs: "let x" };
        return Object.keys(texts).filter((name) => !code(texts[name], name).querySelector("code span"));
    }""")
    assert plain == []


async def test_a_stream_may_be_cut_anywhere(window: Window) -> None:
    page = await window.open()
    frames = ': ping\n\nretry: 50\n: open\n\nid: 1\nevent: one\ndata: {"a": 1}\n\n'
    frames += "event: two\ndata: 早: 上好\u2028!\n\ndata: 3\n\n"
    found = await page.evaluate(
        """async (frames) => {
          const { EventParser } = await import("./static/stream.js");
          const read = (pieces) => {
            const events = [];
            const parser = new EventParser((event) => events.push(event));
            for (const piece of pieces) parser.push(piece);
            return JSON.stringify(events);
          };
          const all = new Set([read([...frames])]);
          for (let at = 0; at <= frames.length; at += 1) all.add(read([frames.slice(0, at), frames.slice(at)]));
          return [...all].map(JSON.parse);
        }""",
        frames,
    )
    events = [("one", "1", '{"a": 1}'), ("two", None, "早: 上好\u2028!"), ("message", None, "3")]
    assert found == [[{"name": name, "id": id, "data": data} for name, id, data in events]]


@pytest.mark.full
async def test_no_frame_is_lost_by_a_failure_or_during_the_work(window: Window) -> None:
    page = await window.open()
    runs = await page.evaluate("""async () => {
        const { oncePerFrame } = await import("./static/dom.js");
        const frames = () => new Promise((done) => setTimeout(done, 300));
        const expected = (event) => event.message.includes("expected") && event.preventDefault();
        addEventListener("error", expected);
        let [failing, nested] = [0, 0];
        const show = oncePerFrame(() => {
          failing += 1;
          if (failing < 3) throw new Error("expected");
        });
        const again = oncePerFrame(() => {
          nested += 1;
          if (nested === 1) again();
        });
        again();
        for (let at = 0; at < 3; at += 1) {
          show();
          await frames();
        }
        removeEventListener("error", expected);
        return [failing, nested];
    }""")
    window.complaints = [one for one in window.complaints if "expected" not in one]
    assert runs == [3, 2]


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
