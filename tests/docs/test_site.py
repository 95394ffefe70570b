"""The pages become a site without a warning: each link, each fragment and each picture is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT

_FROM = re.compile(r'<(?:link|script|img|iframe|source)\b[^>]*?\b(?:href|src|srcset)="([^"]*)"')


def _build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    strict = ["--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    command = [sys.executable, "-m", "sphinx", *strict, "--conf-dir", str(DOCS), str(source), str(target)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    built = _build(DOCS, target)
    assert built.returncode == 0, built.stderr
    return target


def test_every_page_is_in_the_sidebar(site: Path) -> None:
    [tree] = re.findall(r'<div class="sidebar-tree">(.*?)\n</div>', (site / "index.html").read_text(), re.DOTALL)
    listed = re.findall(r'<a class="reference internal" href="([^"]+)"', tree)
    pages = [str(page.relative_to(DOCS).with_suffix(".html")) for page in PAGES if page.is_relative_to(DOCS)]
    assert sorted([*listed, "index.html"]) == sorted(pages)
    assert all((site / page).is_file() for page in pages)


def test_the_changes_are_those_of_the_root(site: Path) -> None:
    assert "Keep a Changelog" in (site / "changelog.html").read_text()


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loaded = {link for page in site.rglob("*.html") for link in _FROM.findall(page.read_text())}
    assert len(loaded) > 10
    assert [link for link in loaded if "//" in link] == []
    sheets = [sheet.read_text() for sheet in site.rglob("*.css")]
    assert not any(re.search(r"(@import|url\()[\s'\"]*(https?:)?//", sheet) for sheet in sheets)


def test_it_is_light_and_dark(site: Path) -> None:
    style = (site / "_static" / "styles" / "furo.css").read_text()
    assert "prefers-color-scheme:dark" in style.replace(" ", "")


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    links = ("other.md", "index.md#nowhere", "other.py")
    (tmp_path / "index.md").write_text("# Title\n\n" + "\n".join(f"[text]({link})" for link in links))
    built = _build(tmp_path, tmp_path / "site")
    assert built.returncode != 0
    assert built.stderr.count("WARNING") == len(links), built.stderr
