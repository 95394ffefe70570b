"""Every Python block of the documentation runs, page by page, and prints what the page says."""

import ast
import contextlib
import io
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, PAGES, Block, blocks, name
from tests.support.servers import Start

LOCAL = "redis://localhost:6379/0"
RUNNABLE = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_the_examples_of(page: Path, private_home: Path, own_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "examples")
    found = [block for block in blocks(page) if block.language == "python" and block.file is None]
    url = own_server().url if any(LOCAL in block.content for block in found) else LOCAL
    session: dict[str, Any] = {"__name__": "__example__"}
    for block in found:
        printed = run(block, url, session)
        if block.prints is None:
            assert printed == "", f"{name(page)}:{block.line} prints, and the page does not say what"
        else:
            assert printed == block.prints, f"{name(page)}:{block.line}"


def run(block: Block, url: str, session: dict[str, Any]) -> str:
    """The output of a block. An error in it is reported at its line of the page."""
    tree = ast.parse(block.content.replace(LOCAL, url), filename=str(block.page))
    ast.increment_lineno(tree, block.line - 1)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, str(block.page), "exec"), session)
    return printed.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_say_what_they_are(page: Path) -> None:
    for block in blocks(page):
        where = f"{name(page)}:{block.line}"
        assert block.language in ("python", "sh", "text", "acl", "json", "jsx"), (
            f"{where}: a block of language {block.language!r}"
        )
        assert block.unmarked or block.language != "python", f"{where}: Python is not left out"
        assert block.file is None or block.language == "python", where
