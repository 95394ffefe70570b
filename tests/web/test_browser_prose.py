"""The page in real Chromium: how it shows texts, and that hostile ones do nothing."""

from typing import Any

import pytest
from playwright.async_api import expect

from redis_history import Conversation, Message, assistant, tool_use, user
from redis_history.values import AttachmentPart, Participant, ReasoningPart, Source, TextPart
from tests.web.browsing import Site, Window, Windows, copied, no_sideways_scrolling
from tests.web.test_browser_page import returned

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = '</script><script>window.pwned = 1</script><img src=x onerror="window.pwned = 1"><b onclick=x>bold</b>'
MARKDOWN = """\
# Plan

A **bold** and *soft* ~~old~~ `code`, <b>no tag</b>
and https://www.example.com

- one
  1. deep
- two

> quoted

| a | b |
|---|---|
| 1 | [x](https://example.com/?q=1) |

```js
let a;
```

![pixel](https://evil.example/p.png) [bad](javascript:alert(1)) [data](data:text/x,y)
"""


@pytest.mark.proves("browser-text")
async def test_hostile_content_is_shown_as_text(window: Window, site: Site) -> None:
    name = f"<img src=x onerror=alert(1)>/../{site.name('hostile')}\n\u202e#&?=%00"
    author = Participant("agent", "x" * 200, HOSTILE + "n" * 5_000)
    site.store.create_conversation(Conversation(name, title=HOSTILE, user_id=HOSTILE, agent_name=HOSTILE))
    parts: list[Any] = [
        TextPart(HOSTILE + "\n\nevent: gone\ndata: {}\n\n```html\n" + HOSTILE + "\n```"),
        ReasoningPart(HOSTILE),
        tool_use("call", HOSTILE, {HOSTILE: [HOSTILE, {"__proto__": {"a": 1}, "constructor": 1}]}),
        AttachmentPart(name=HOSTILE, reference="javascript:alert(1)", mime_type="text/html"),
    ]
    sources = (Source(document_name=HOSTILE, chunk=HOSTILE),)
    message = Message(role="assistant", participant=author, parts=parts, sources=sources, trace_id=HOSTILE)
    site.store.append_many(name, [message, returned([{"type": "text", "text": HOSTILE}])])
    site.store.append(name, user("שלום, עולם! " + "مرحبا" + " 你好 " + "\u202e" + "👩‍👩‍👧‍👦" * 3))
    site.store.append_many(name, [user("w" * 3_000), assistant(MARKDOWN)])
    page = await window.open(name)
    await expect(page.locator("#title")).to_have_text(HOSTILE)
    await expect(page.locator("#composer")).to_be_hidden()
    for change in ("Rename", "Delete", "Branch", "Pin"):
        await expect(page.get_by_role("button", name=change)).to_be_hidden()
    await expect(page.locator(".row")).to_have_count(4)
    for button in await page.locator(".fold").all():
        await button.click()
    await expect(page.locator(".prose p").first).to_contain_text("<img src=x onerror=")
    await page.get_by_label("Search messages").fill("bold")
    await expect(page.locator(".hit").first).to_be_visible()
    assert await page.evaluate("window.pwned") is None
    assert await page.locator("img:not([src='static/icon.svg']), script:not([src^='static/'])").count() == 0
    attributes = "[style*=url], [onclick], [onerror], a[href^=javascript], a[href^=data]"
    assert await page.locator(attributes).count() == 0
    await no_sideways_scrolling(page)


async def test_markdown_is_rendered_without_markup_and_requests(window: Window, site: Site) -> None:
    name = site.name("markdown")
    site.store.append(name, assistant(MARKDOWN))
    page = await window.open(name)
    prose = page.locator(".prose")
    for tag, texts in (
        ("h4", ["Plan"]),
        ("strong", ["bold"]),
        ("em", ["soft"]),
        ("s", ["old"]),
        ("p > code", ["code"]),
        ("td", ["1", "x"]),
        ("ol li", ["deep"]),
        ("blockquote", ["quoted"]),
        (".code", ["jsCopylet a;"]),
        (".code-kwd", ["let"]),
    ):
        await expect(prose.locator(tag)).to_have_text(texts)
    await expect(prose.locator("> ul > li")).to_have_count(2)
    await prose.locator(".code").hover()
    assert await copied(page, prose.locator(".code").get_by_role("button", name="Copy")) == "let a;"
    await expect(prose.locator("b, img")).to_have_count(0)
    await expect(prose).to_contain_text("<b>no tag</b>")
    hrefs = await prose.locator("a").evaluate_all("all => all.map(one => [one.getAttribute('href'), one.rel])")
    targets = ["https://www.example.com", "https://example.com/?q=1", "https://evil.example/p.png"]
    assert hrefs == [[href, "noopener noreferrer nofollow"] for href in targets]


WRITTEN = r"""# First
## Second
### Third

Costs $5 and $6, but $E = a_1 * b_1$ and \(x_1\), \[y\,z\].

$$
\int_0^1 x\,dx
- *no list*
$$

- [x] done
- [ ] to do
  - plain

| left | right | middle |
|:-----|------:|:------:|
| a    | 1,234,567.50 | c |

A claim.[^1]

[^1]: Its *source*.
"""


async def test_what_models_write_beside_markdown(windows: Windows, site: Site) -> None:
    name = site.name("written")
    site.store.append(name, assistant(WRITTEN, id="w"))
    site.store.append(name, assistant("```py\nx = 1\n```\n\n" + "Most lines have as many words as fit. " * 30, id="l"))
    window = await windows(site.address, viewport={"width": 1280, "height": 1400})
    page = await window.open(name)
    row = page.locator(".row[data-id=w]")
    formulas = await row.locator(".formula").all_text_contents()
    assert formulas == ["$E = a_1 * b_1$", r"\(x_1\)", r"\[y\,z\]", "$$\n\\int_0^1 x\\,dx\n- *no list*\n$$"]
    await expect(row.locator("p").first).to_have_text(r"Costs $5 and $6, but $E = a_1 * b_1$ and \(x_1\), \[y\,z\].")
    tasks = row.locator(".task")
    assert [await one.get_attribute("aria-label") for one in await tasks.all()] == ["done", "to do"]
    assert await tasks.first.evaluate("box => getComputedStyle(box.parentElement).listStyleType") == "none"
    cells = await row.locator("td").evaluate_all("cells => cells.map(cell => getComputedStyle(cell).textAlign)")
    assert cells == ["start", "end", "center"]
    await expect(row.locator("p > sup").first).to_have_text("1")
    await expect(row.locator(".note")).to_have_text("1Its source.")
    sizes = await row.locator("[data-level]").evaluate_all(
        "all => all.map(one => parseFloat(getComputedStyle(one).fontSize))"
    )
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] > 15, "larger than the text"

    lines = await page.locator(".row[data-id=l] p").evaluate("""(paragraph) => {
        const [text] = paragraph.childNodes;
        const counts = new Map();
        for (let at = 0; at < text.length; at += 1) {
          const range = new Range();
          range.setStart(text, at);
          range.setEnd(text, at + 1);
          const { top } = range.getBoundingClientRect();
          counts.set(top, (counts.get(top) ?? 0) + 1);
        }
        return [...counts.values()];
    }""")
    assert 50 < max(lines) <= 76, "with the blank at the end of a line"
    # Texts are not covered, and no band is below the last message.
    overlap = """() => {
        const boxes = (of) => [...document.querySelectorAll(of)].map((one) => one.getBoundingClientRect());
        const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        return boxes(".code-head, .message-actions").some((one) => boxes(".prose p, code").some((b) => meet(one, b)));
    }"""
    assert not await page.evaluate(overlap)
    bottom = await page.locator("#timeline").evaluate("box => innerHeight - box.getBoundingClientRect().bottom")
    assert bottom < 2
    shadow = await page.locator("#timeline").evaluate(
        "box => getComputedStyle(box).boxShadow + getComputedStyle(box).outlineStyle"
    )
    assert shadow == "nonenone"

    phone = await windows(site.address, viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True)
    small = await phone.open(name)
    await expect(small.locator(".row[data-id=l] pre button")).to_be_visible()
    await expect(small.locator(".row[data-id=l] .message-actions").get_by_role("button", name="Copy")).to_be_visible()
    number = small.locator(".row[data-id=w] td").nth(1)
    assert await number.evaluate("cell => cell.getClientRects().length === 1 && cell.offsetHeight < 40"), "not broken"
    assert await small.evaluate("document.documentElement.scrollWidth <= innerWidth")
