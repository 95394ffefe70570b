"""The files of the page: what they must not do, and that a wheel has them. No browser needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import redis_history.web

STATIC = Path(redis_history.web.__file__).parent / "static"
FILES = sorted(path for path in STATIC.iterdir() if path.is_file())  # without those of others, in vendor/
SCRIPTS = [path for path in FILES if path.suffix == ".js"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_nothing_from_a_conversation_can_become_markup(script: Path) -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser|Fragment\("
    assert not re.search(ways, script.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]|@import|url\(", text)


def test_the_page_has_no_script_and_no_style_of_its_own() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
    for file in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert (STATIC.parent / file).is_file(), file
    loaded = re.findall(r'="static/([^"]+\.js)"', page)  # all at once, not one after the other
    assert sorted(loaded) == sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_imports_lead_somewhere(script: Path) -> None:
    text = script.read_text()
    for names, file in re.findall(r"^import \{([^}]*)\} from \"\./([^\"]+)\";", text, re.MULTILINE):
        exported = set(
            re.findall(r"^export (?:async )?(?:function|const|class) (\w+)", (STATIC / file).read_text(), re.MULTILINE)
        )
        for name in re.findall(r"\w+", names):
            assert name in exported, f"{file} has no {name}"
            assert len(re.findall(rf"\b{name}\b", text)) > 1, f"{name} is not used"


def test_every_element_that_the_scripts_ask_for_is_there() -> None:
    ids = set(re.findall(r'\sid="([^"]+)"', (STATIC / "index.html").read_text()))
    asked = {name for script in SCRIPTS for name in re.findall(r'byId\("([^"]+)"\)', script.read_text())}
    assert asked <= ids


def test_the_page_is_light() -> None:
    files = [path for path in STATIC.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]
    assert sum(path.stat().st_size for path in files) < 300_000
    own = [path for path in FILES if path.suffix in (".css", ".js")]
    assert sum(len(path.read_text().splitlines()) for path in own) <= 5000
