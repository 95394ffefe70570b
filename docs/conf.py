"""How the pages become a site, by `scripts/docs`. They are plain Markdown, for a forge's view too; what only Sphinx
needs is here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

import redis_history

_ROOT = Path(__file__).resolve().parent.parent

project = "redis_history"
copyright = "the redis_history maintainers"
version = release = redis_history.__version__

extensions = ["myst_parser"]
source_suffix = {".md": "markdown", ".markdown": "markdown"}  # .markdown: pages of the reference
nitpicky = True
myst_heading_anchors = 6  # named as a forge names them, so that a link with a fragment leads to the same place in both

html_theme = "furo"  # light and dark, and nothing from other hosts
html_title = f"{project} {version}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\(([\w/-]+)\.md\)")


def navigation(index: str) -> str:
    """The sidebar: the pages as the sections of the index list them, so that there is one list of them."""
    parts = _SECTION.split(index)[1:]
    trees = []
    for caption, text in zip(parts[::2], parts[1::2], strict=True):
        if pages := dict.fromkeys(_PAGE.findall(text)):
            trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"]))
    return "\n\n".join(trees)


def _read(_app: Any, page: str, source: list[str]) -> None:
    if page == "index":
        source[0] += "\n" + navigation(source[0])
    elif page == "reference":
        pages = re.findall(r"\]\((reference/[\w-]+)\.markdown\)", source[0])
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", "", *pages, "```"])
    elif page == "changelog":  # which is in the repository's root, where tools look for it
        source[0] = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


def setup(app: Any) -> dict[str, bool]:
    app.add_lexer("acl", TextLexer)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
