"""Every regular expression and every parser of the package takes linear time, whatever the text.

Steps are counted as the growth of the thread's own time with the length of the text: four times the text may take eight
times as long, where a quadratic expression takes sixteen.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import redis_history
from redis_history import (
    Message,
    Participant,
    PromptOptions,
    assemble_messages,
    assistant,
    extractive_summarizer,
    tool_use,
    user,
)
from redis_history._quoting import as_data, normalized, plain_name
from redis_history._words import words
from redis_history.compaction.rendering import call_lines, chunks, said
from redis_history.compaction.summaries import SUMMARY_START, read_summary, without_frame
from redis_history.model import Position
from redis_history.prompt.addressing import Addressing
from redis_history.search.hits import highlights
from redis_history.search.query import parse_query
from redis_history.search.ranking import Scan
from redis_history.search.text import index_text

PACKAGE = Path(redis_history.__file__).parent
USES = {"search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
#: Characters up to which every text is tried; the worst one goes on to `longest`.
LADDER = (24, 200, 2_000, 8_000)
#: Nanoseconds a character: what takes less is not quadratic at 8,000 characters, what takes more is measured.
CHEAP, HOPELESS = 400, 1_000_000


@pytest.fixture
def longest(full: bool) -> int:
    return 4_000_000 if full else 200_000


class Expression(NamedTuple):
    where: str
    pattern: re.Pattern[Any]
    uses: tuple[str, ...]


@cache
def expressions() -> list[Expression]:
    """All regular expressions of the package, and how they are used. Fails for one that cannot be found so."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
    uses: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in USES:
                uses.setdefault(node.value.id, set()).add(node.attr)
    found = []
    for path, tree in trees.items():
        module = ".".join(("redis_history", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        named = {
            id(node.value): target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "re"), f"{path}: use `import re`"
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "re"):
                continue
            where = f"{module}:{node.lineno}"
            if node.func.attr == "compile":
                assert id(node) in named, f"{where}: compile it into a constant of the module"
                name = named[id(node)]
                pattern = getattr(importlib.import_module(module), name)
                found.append(Expression(f"{module}.{name}", pattern, tuple(sorted(uses.get(name, {"search"})))))
            elif node.func.attr in USES:
                assert isinstance(node.args[0], ast.Constant), f"{where}: use a literal"
                found.append(Expression(where, re.compile(node.args[0].value), (node.func.attr,)))
    return found


def example(tree: Any) -> str:
    """A text that a parsed pattern begins to match."""
    text = ""
    for op, value in tree:
        match str(op):
            case "LITERAL":
                text += chr(value)
            case "IN":
                kind, inside = str(value[0][0]), value[0][1]
                text += chr(inside) if kind == "LITERAL" else chr(inside[0]) if kind == "RANGE" else "a"
            case "ANY" | "NOT_LITERAL":
                text += "a"
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                text += example(value[2]) * max(1, value[0])
            case "SUBPATTERN":
                text += example(value[3])
            case "BRANCH":
                text += example(value[1][0])
    return text


def texts(pattern: re.Pattern[Any]) -> Iterator[Callable[[int], Any]]:
    """For each adversarial text a function of its length: one beginning, and one unit over and over."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    whole = example(re._parser.parse(pattern.pattern, pattern.flags))[:40]  # type: ignore[attr-defined]
    single = list(dict.fromkeys((*whole, *(c for c in source if c not in "\\()[]{}|?*+^$.:"))))[:10]
    beginnings = [whole[:end] for end in range(2, len(whole) + 1)][-8:]
    units = dict.fromkeys((*single, *" a1é", *map("".join, product(single[:6], repeat=2)), *beginnings))
    for before, unit in product(("", *beginnings[-4:]), units):

        def text(length: int, before: str = before, unit: str = unit) -> Any:
            whole = (before + unit * (length // len(unit) + 1))[:length] + "\x00"
            return whole if isinstance(pattern.pattern, str) else whole.encode("latin-1", "replace")

        yield text


def use(pattern: re.Pattern[Any], how: str) -> Callable[[Any], object]:
    if how in ("search", "match", "fullmatch"):
        return getattr(pattern, how)  # type: ignore[no-any-return]
    return lambda text: sum(1 for _ in pattern.finditer(text))


def seconds(work: Callable[[Any], object], text: Any, tries: int = 3) -> float:
    best = float("inf")
    for _ in range(tries):
        begin = time.thread_time()
        work(text)
        best = min(best, time.thread_time() - begin)
    return best


def slow(work: Callable[[Any], object], candidates: Iterator[Callable[[int], Any]], longest: int) -> str | None:
    """A text that takes more than linear time, or None."""
    worst: tuple[float, Callable[[int], Any]] | None = None
    for text in candidates:
        for length in LADDER:
            taken = seconds(work, text(length), 1) * 1e9 / length
            if taken > HOPELESS and seconds(work, text(length)) * 1e9 / length > HOPELESS:
                return f"{text(24)!r} at {length:,} characters"
        if taken > CHEAP and grows(work, text, LADDER[-1] // 4, LADDER[-1]):
            return repr(text(24))
        if worst is None or taken > worst[0]:
            worst = taken, text
    assert worst is not None
    if grows(work, worst[1], longest // 16, longest, 1):
        return f"{worst[1](24)!r} at {longest:,} characters"
    return None


def grows(work: Callable[[Any], object], text: Callable[[int], Any], short: int, long: int, tries: int = 3) -> bool:
    """Whether the time grows with the square of the length. A machine that is busy is asked again."""
    one, other = text(short), text(long)
    bound = (long / short) ** 1.5
    return all(
        (taken := seconds(work, other, 1)) > 0.001 and taken > bound * seconds(work, one, tries) for _ in range(3)
    )


def test_expressions_are_found() -> None:
    found = {one.where for one in expressions()}
    assert "redis_history.search.text._RUN" in found
    assert "redis_history.prompt.projection._SPEAKER" in found
    assert len(found) > 40


@pytest.mark.proves("linear-time")
@pytest.mark.parametrize("expression", expressions(), ids=lambda one: one.where)
def test_an_expression_takes_linear_time(expression: Expression, longest: int) -> None:
    for how in expression.uses:
        assert slow(use(expression.pattern, how), texts(expression.pattern), longest) is None, how


@pytest.mark.parametrize(
    ("pattern", "unit"), [(re.compile(r"\s+$"), " "), (re.compile(r""" - \w+\(["'](.*?)["']\)"""), " - a('")]
)
def test_a_quadratic_expression_is_noticed(pattern: re.Pattern[str], unit: str, longest: int) -> None:
    assert unit in {text(len(unit) - 1)[:-1] + unit[-1] for text in texts(pattern)}, "the unit is tried"
    text = iter([lambda length: unit * (length // len(unit)) + "x"])
    assert slow(use(pattern, "finditer"), text, longest) is not None


ANN = Participant("user", "u1", "Ann")
QUERY = parse_query('hex "a b" pre* ' + "a1 b2 c3 d4 e5")
OPTIONS = PromptOptions(token_budget=None, agent_aliases=("hex", "a a"), addressed_only_mode=True)


def _scanned(text: str) -> object:
    scan = Scan(QUERY)
    scan.add([user(text)], [1])
    return scan.ranked()


def _prompted(text: str) -> object:
    talk = [user(text, participant=ANN), user([text, text], participant=Participant("user", "u2", text[:100]))]
    return assemble_messages([*talk, assistant(text)], "helper", "The helper", OPTIONS)


def _talk(text: str) -> list[Message]:
    name = Participant("user", "u1", text)
    return [user(text, participant=name), assistant(text, tool_use("c", text[:100] or "x", {"q": text}))]


def _position(text: str) -> object:
    try:
        return Position.parse(text)
    except ValueError:
        return None


SUMMARIZE = extractive_summarizer()
PARSERS: dict[str, Callable[[str], object]] = {
    "words": words,
    "normalized": normalized,
    "index_text": lambda text: index_text(user(text, participant=ANN)),
    "highlights": lambda text: highlights(user(text), QUERY),
    "scan": _scanned,
    "parse_query": parse_query,
    "named": Addressing("h7", "hex", PromptOptions(agent_aliases=("a a", "“"))).named,
    "prompt": _prompted,
    "as_data": as_data,
    "plain_name": plain_name,
    "said": lambda text: [said(message, 300) for message in _talk(text)],
    "chunks": lambda text: list(chunks(_talk(text), 100_000)),
    "call_lines": lambda text: call_lines(_talk(text), 1_000),
    "extractive": lambda text: SUMMARIZE([user("x y"), *_talk(text)], text),
    "read_summary": lambda text: (
        without_frame(text),
        without_frame(SUMMARY_START + text + "]"),
        read_summary(user(f"{text}{SUMMARY_START}")),
    ),
    "position": _position,
}
UNITS = [
    " ", "a", "a ", "hex", "xhex ", "Ann: x\n", "\n", "\u2028", "a\u0301\u0323", "\u0301\u0323", "\u0344",
    "\uff9e\u0323", "电", "。", "ก", "“", '"', '"a', "**a", "a* ", "data:", "data:;", "A" * 64 + " ", ".\")", "</",
    "🦜", "[", "]", "ß", "\x00",
]  # fmt: skip


@pytest.mark.proves("linear-time")
@pytest.mark.parametrize("name", PARSERS)
def test_a_parser_takes_linear_time(name: str, longest: int) -> None:
    candidates = ((lambda length, unit=unit: (unit * (length // len(unit) + 1))[:length]) for unit in UNITS)
    assert slow(PARSERS[name], candidates, longest) is None
