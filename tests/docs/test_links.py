"""Relative links lead somewhere, and pictures are well-formed."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, anchors, name, prose

_LINK = re.compile(r"\[(?:[^][]|\[[^]]*\])*\]\(([^)\s]+)\)")

_HTML = re.compile(r'<[a-z]+ [^>]*\b(?:href|src|srcset)="([^"]+)"')


def _links(page: Path) -> list[str]:
    text = prose(page)
    in_html = _HTML.findall(re.sub(r"`[^`\n]*`", "", text))
    return _LINK.findall(re.sub(r"`[^`\n]*`", lambda code: code[0].replace("[", " "), text)) + in_html


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_of(page: Path) -> None:
    for link in _links(page):
        if re.match(r"[a-z]+:", link):
            assert link.startswith("https://"), link
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), f"{name(page)} links to {link}, which is not there"
        if fragment:
            assert fragment in anchors(target), f"{name(page)} links to {link}, a heading that is not there"


def test_every_page_is_in_the_index() -> None:
    index = DOCS / "index.md"
    listed = {
        (DOCS / link.partition("#")[0]).resolve() for page in (index, DOCS / "reference.md") for link in _links(page)
    }
    assert {page for page in PAGES if page.is_relative_to(DOCS) and page != index} <= listed


def test_the_readme_leads_to_the_documentation() -> None:
    assert {"docs/tutorial.md", "docs/reference.md", "docs/guarantees.md"} <= set(_links(ROOT / "README.md"))


@pytest.mark.parametrize("picture", sorted((DOCS / "images").iterdir()), ids=lambda path: path.name)
def test_pictures(picture: Path) -> None:
    if picture.suffix == ".png":  # of the live view: see scripts/screenshots
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 300_000
    else:
        root = ElementTree.parse(picture).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.find("{http://www.w3.org/2000/svg}title") is not None, "a picture needs a title"
    used = [link for page in PAGES for link in _links(page) if link.endswith(picture.name)]
    assert used, f"no page shows {picture.name}"
