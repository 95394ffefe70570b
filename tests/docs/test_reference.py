"""The reference is generated from docstrings: it has every public name, and every docstring names all options."""

import ast
import inspect
import pkgutil
import re
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redis_history
from redis_history import errors, integrations, types
from tests.docs.pages import DOCS, ROOT, anchors, sections

SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "reference"))
REFERENCE: list[Path] = SCRIPT["PAGES"]


def _listed() -> dict[str, Any]:
    """The objects on the pages of the reference, by their full names."""
    found: dict[str, Any] = {}
    for page in REFERENCE:
        for shown in SCRIPT["shown_of"](page):
            assert shown.full_name not in found, f"{shown.full_name} is listed twice"
            found[shown.full_name] = shown.target
    return found


LISTED = _listed()
CLASSES = {
    name: kind
    for name, kind in LISTED.items()
    if inspect.isclass(kind) and not name.startswith("redis_history.store.operations.")
}


def _callables() -> dict[str, Any]:
    found = {name: value for name, value in LISTED.items() if inspect.isfunction(value)}
    for owner, kind in CLASSES.items():
        for name, value in inspect.getmembers(kind):
            if name[0] != "_" and (isinstance(value, property) or inspect.isfunction(value) or inspect.ismethod(value)):
                inherited = any(name in vars(base) for base in kind.__mro__ if base.__module__[:13] != "redis_history")
                if not inherited:
                    found[f"{owner}.{name}"] = value
    return found


CALLABLES = _callables()


def _options(target: Any) -> set[str]:
    return {one.name for one in inspect.signature(target).parameters.values() if one.kind == one.KEYWORD_ONLY}


def test_every_public_name_is_listed() -> None:
    public = {f"redis_history.{name}" for name in redis_history.__all__ if name != "__version__"}
    public |= {f"redis_history.types.{name}" for name in types.__all__}
    assert public <= set(LISTED)


def test_public_modules_are_listed() -> None:
    modules = {module.name for module in pkgutil.iter_modules(integrations.__path__) if module.name[0] != "_"}
    wanted = {f"redis_history.integrations.{name}" for name in modules}
    wanted |= {f"redis_history.{name}" for name in ("errors", "formats", "web", "embedded")}
    assert wanted <= {name.rpartition(".")[0] for name in LISTED}


@pytest.mark.full
def test_the_pages_are_up_to_date() -> None:
    """If not, run scripts/reference."""
    old = [str(path) for path, text in SCRIPT["files"]().items() if path.read_text(encoding="utf-8") != text]
    assert old == []


def test_links_of_the_reference() -> None:
    for page in [*REFERENCE, ROOT / "llms.txt"]:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        links = set(re.findall(r"\]\(([^)\s]+)\)", text))
        assert links or page.name in ("command-line.markdown",), page.name
        for link in links:
            path, _, fragment = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name} links to {link}"
            assert not fragment or fragment in anchors(target), (
                f"{page.name} links to {link}, a heading that is not there"
            )


def test_every_page_of_the_reference_is_listed() -> None:
    overview = (DOCS / "reference.md").read_text(encoding="utf-8")
    assert {page.name for page in REFERENCE} == set(re.findall(r"\]\(reference/([\w.-]+)\)", overview))


def _missing(names: set[str], text: str) -> set[str]:
    return {name for name in names if f"`{name}" not in text}


def test_docstrings_of_classes_name_their_options_and_fields() -> None:
    found = {}
    for name, kind in CLASSES.items():
        own = vars(kind).get("__doc__") or ""
        if not own or issubclass(kind, Exception) or own.startswith(("See `", "Like ")):
            found[name] = set() if own else {"a docstring"}
            continue
        names = getattr(kind, "__struct_fields__", ()) or getattr(kind, "_fields", ())
        bases = [base for base in kind.__mro__[1:] if issubclass(base, msgspec.Struct) and base is not msgspec.Struct]
        text = own + "".join(vars(base).get("__doc__") or "" for base in bases)
        found[name] = _missing(set(names) or (_options(kind) if "__init__" in vars(kind) else set()), text)
    assert {name: missing for name, missing in found.items() if missing} == {}


def test_docstrings_of_functions_name_their_options() -> None:
    found = {}
    for name, target in CALLABLES.items():
        text = inspect.getdoc(target) or ""
        if not text or isinstance(target, property) or re.search(r"\b([Ll]ike|as|as in|see|of) `", text):
            found[name] = set() if text else {"a docstring"}
        else:
            found[name] = _missing(_options(target), text)
    assert {name: missing for name, missing in found.items() if missing} == {}


#: Pairs of the synchronous and the asynchronous class.
PAIRS = [
    (getattr(module, name[5:]), getattr(module, name))
    for module in (redis_history, types)
    for name in module.__all__
    if name.startswith("Async")
]


def _members(kind: type, test: Any) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind, test) if name[0] != "_"}


@pytest.mark.parametrize(("sync", "async_"), PAIRS, ids=[sync.__name__ for sync, _ in PAIRS])
def test_both_kinds_are_the_same(sync: type, async_: type) -> None:
    """The same methods with the same options, and the same properties."""
    methods, others = _members(sync, inspect.isfunction), _members(async_, inspect.isfunction)
    assert methods.keys() - {"close"} == others.keys() - {"aclose"}
    assert _members(sync, inspect.isdatadescriptor).keys() == _members(async_, inspect.isdatadescriptor).keys()
    for name in methods.keys() - {"close"}:
        parameters = [inspect.signature(each[name]).parameters.values() for each in (methods, others)]
        options, others_options = ([(one.name, repr(one.default)) for one in each] for each in parameters)
        assert options == others_options, name


def test_every_error_is_exported() -> None:
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert {name for name in kinds if name[0] != "_"} == set(errors.__all__)


@pytest.mark.full
def test_the_texts_of_troubleshooting_are_in_the_source() -> None:
    texts = []
    for path in (DOCS.parent / "redis_history").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        constants = (node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings)
        texts += [node.value for node in constants if isinstance(node.value, str)]
    source = "\n".join(texts)
    section = sections(DOCS / "troubleshooting.md")["By the text of an error or a log line"]
    quoted = re.findall(r"\*\*`([^`]+)`\*\*", section)
    assert len(quoted) > 10
    assert [text for text in quoted if text not in source] == []


def test_pages_that_docstrings_name_exist() -> None:
    named = {
        path
        for value in (*LISTED.values(), *CALLABLES.values())
        for path in re.findall(r"docs/[\w/-]+\.md", inspect.getdoc(value) or "")
    }
    assert {path for path in named if not (DOCS.parent / path).exists()} == set()
