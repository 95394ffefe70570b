"""This package uses only the public API of redis-py, whose private names may change in any release."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import redis

ROOT = Path(__file__).parents[2]


def test_no_private_name_of_redis_py_is_used() -> None:
    theirs = {name for tree in _trees(Path(redis.__file__).parent) for name in _defined(tree)}
    assert {"_parser", "_reader", "_sock", "_available_connections"} <= theirs, "names of redis-py 8"
    trees = [tree for folder in ("redis_history", "scripts", "tests") for tree in _trees(ROOT / folder)]
    foreign = theirs - {name for tree in trees for name in _defined(tree)}
    used = {name for tree in trees for name in _used(tree) if name in foreign}
    used |= {module for tree in trees for module in _imported(tree) if module.startswith("redis.") and "._" in module}
    assert used == set()
    # The mixin of redis-py's connections has its own names.
    tree = ast.parse((ROOT / "redis_history/_async/_node.py").read_text(encoding="utf-8"))
    [guard] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "AsyncGuard"]
    assert set(_defined(guard)) & theirs == set()


def _trees(folder: Path) -> Iterator[ast.Module]:
    for path in folder.rglob("*.py"):
        if path != Path(__file__):
            yield ast.parse(path.read_text(encoding="utf-8"))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _defined(tree: ast.AST) -> Iterator[str]:
    """Private functions, classes, variables and attributes that are assigned."""
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if name is not None and _is_private(name):
            yield name


def _used(tree: ast.AST) -> Iterator[str]:
    """Private attributes, and texts such as the second argument of getattr."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_private(node.value):
            yield node.value


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
