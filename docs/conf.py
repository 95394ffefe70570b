"""How the pages become a site, by `scripts/docs`. They are plain Markdown, for a forge's view too; what only Sphinx
needs is here."""

from __future__ import annotations

import importlib
import pkgutil
import re
import runpy
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

import redis_history
from redis_history import errors, integrations, types

_ROOT = Path(__file__).resolve().parent.parent

for _module in pkgutil.iter_modules(integrations.__path__):  # before autodoc does, which sets TYPE_CHECKING for them
    importlib.import_module(f"{integrations.__name__}.{_module.name}")

project = "redis_history"
copyright = "the redis_history maintainers"
version = release = redis_history.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_markdown_builder"]
nitpicky = True
myst_heading_anchors = 6  # named as a forge names them, so that a link with a fragment leads to the same place in both

default_role = "py:obj"  # of `name` in docstrings: code, and a link if the name is public
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
smartquotes = False  # quotes in docstrings are code
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}

html_theme = "furo"  # light and dark, and nothing from other hosts
html_title = f"{project} {version}"
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"\]\(([\w/-]+)\.md\)")
_PUBLIC = {name: module.__name__ for module in (redis_history, types, errors) for name in module.__all__}
_ERROR = re.compile(rf"(?<![\w`.])({'|'.join(errors.__all__)})(?![\w`])")
_DOCUMENT = re.compile(r"docs/([\w/-]+)\.md")


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
        pages = re.findall(r"\]\((reference/\w+)\.md\)", source[0])
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", "", *pages, "```"])
    elif page == "how-to/command-line":  # like the rest of the reference, from what the code says
        source[0] += "\n## All commands and options\n\n" + runpy.run_path(str(_ROOT / "scripts" / "help"))["options"]()
    elif page == "changelog":  # which is in the repository's root, where tools look for it
        source[0] = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](")


def _docstring(_app: Any, _kind: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: names of errors and paths of pages become links here."""
    for at, line in enumerate(lines):
        if line.startswith("    "):  # preformatted
            continue
        line = _ERROR.sub(rf":py:exc:`~{errors.__name__}.\1`", line)
        lines[at] = _DOCUMENT.sub(r":doc:`/\1`", line)


def _signature(
    _app: Any, _kind: str, _name: str, _object: Any, _options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Sphinx gives up on defaults such as <factory>, and shows all types as they are in the code."""
    if signature and "<factory>" in signature:
        signature = re.sub(r"~?(?:\w+\.)+(\w+)", r"\1", signature.replace("<factory>", "..."))
        signature = re.sub(r"Annotated\[(\w+), Meta\([^)]*\)\]", r"\1", signature)
    return signature, returned


def _resolve(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Links of public names, wherever their module is. Other names stay as they are: most are of other packages."""
    if node.get("refdomain") != "py":
        return None
    name = node["reftarget"].rpartition(".")[2]
    if name in _PUBLIC and node["reftarget"].startswith((name, "redis_history.")):
        target = f"{_PUBLIC[name]}.{name}"
        return env.domains["py"].resolve_xref(env, node["refdoc"], app.builder, "obj", target, node, content) or content
    return content


def setup(app: Any) -> dict[str, bool]:
    app.add_lexer("acl", TextLexer)
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _docstring)
    app.connect("autodoc-process-signature", _signature)
    app.connect("missing-reference", _resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
