"""The files of the page: what they must not do, and that they fit together. No browser needed."""

import re
from pathlib import Path

import redis_history.web

STATIC = Path(redis_history.web.__file__).parent / "static"
FILES = {path.name: path.read_text() for path in STATIC.iterdir() if path.is_file()}  # without those in vendor/
SCRIPTS = {name: text for name, text in FILES.items() if name.endswith(".js")}
PAGE = FILES["index.html"]


def test_content_cannot_become_markup_and_nothing_comes_from_elsewhere() -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser|Fragment\("
    for name, text in SCRIPTS.items():
        assert not re.search(markup, text), name
    for name, text in FILES.items():
        others = r"https?:|//[a-z0-9-]+\.[a-z]|@import|url\("
        assert not re.search(others, text.replace("http://www.w3.org/2000/svg", "")), name
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", PAGE)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", PAGE))


def test_the_page_is_light() -> None:
    files = [path for path in STATIC.rglob("*") if path.suffix in (".html", ".css", ".js", ".svg")]
    assert sum(path.stat().st_size for path in files) < 320_000
    assert sum(len(text.splitlines()) for name, text in FILES.items() if name.endswith((".css", ".js"))) <= 6000
