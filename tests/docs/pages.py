"""The pages of the documentation, and what the tests read out of them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(r"^```([\w{}-]*)\s*$")
_FILE = re.compile(r"^<!-- file: ([\w.]+) -->$")
_HEADING = re.compile(r"^(#{1,6}) (.+)$")


@dataclass(frozen=True)
class Block:
    """A fenced block. `line` is that of its first line of content, from 1; `file` the name of a script, if it is one;
    `prints` the text block right after it, if there is one; `unmarked` whether no marker asks to leave it out."""

    page: Path
    language: str
    line: int
    content: str
    file: str | None
    unmarked: bool
    prints: str | None = None


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    at = 0
    touching = True  # nothing but blank lines since the block before
    marker = ""
    while at < len(lines):
        line = lines[at]
        at += 1
        if (match := _FENCE.match(line)) is None:
            if line.strip():
                marker, touching = line.strip(), False
            continue
        first = at
        while lines[at] != "```":
            at += 1
        content = "\n".join(lines[first:at]) + "\n"
        at += 1
        if match[1] == "text" and found and touching and found[-1].language == "python":
            found[-1] = Block(**{**found[-1].__dict__, "prints": content})
        else:
            script = _FILE.match(marker)
            found.append(Block(page, match[1], first + 1, content, script and script[1], marker != "<!-- no-test -->"))
        marker, touching = "", True
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks, line by line as in the file."""
    kept, inside = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = not inside
            kept.append("")
        else:
            kept.append("" if inside else line)
    return "\n".join(kept)


def headings(page: Path) -> list[str]:
    return [match[2] for line in prose(page).splitlines() if (match := _HEADING.match(line))]


def anchors(page: Path) -> set[str]:
    """The fragments that lead to headings of a page, as GitHub makes them."""
    seen: dict[str, int] = {}
    found = set()
    for heading in headings(page):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found.add(slug if slug not in seen else f"{slug}-{seen[slug]}")
        seen[slug] = seen.get(slug, 0) + 1
    return found


def sections(page: Path) -> dict[str, str]:
    """The text below each heading, up to the next heading of any level."""
    found: dict[str, str] = {}
    heading = ""
    for line in prose(page).splitlines():
        if match := _HEADING.match(line):
            heading = match[2]
            assert heading not in found, f"two headings {heading!r}"
            found[heading] = ""
        else:
            found[heading] = found.get(heading, "") + line + "\n"
    return found


def rows(text: str) -> list[list[str]]:
    """The rows of all tables in a text, without their heads."""
    found: list[list[str]] = []
    lines = text.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if not line.startswith("|"):
            continue
        if set(line) <= set("|-: "):
            found.pop()
            continue
        assert not before or before.startswith("|"), f"a table begins without an empty line before it: {line}"
        found.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return found


def code(cell: str) -> str | None:
    """The content of a cell that is one piece of code."""
    match = re.fullmatch(r"`([^`]+)`", cell)
    return match and match[1]
