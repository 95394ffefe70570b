"""LLM conversation history in Redis: atomic appends, gapless live subscriptions, search, compaction."""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

# Each name is imported at its first use, so that a program waits only for what it uses. The stub names them once, for
# type checkers and for this module.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {alias.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for alias in node.names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(str(_HOMES[name])), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
