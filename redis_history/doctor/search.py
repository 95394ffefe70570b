"""Interprets a server's replies: search. No I/O."""

from __future__ import annotations

from redis_history.capabilities import Capabilities
from redis_history.doctor.finding import Finding
from redis_history.doctor.questions import Answers
from redis_history.doctor.where import Where

__all__ = ["check_search"]

_WITHOUT = "search in one conversation works, ranked by the client; search in all conversations does not"


def check_search(found: Capabilities, answers: Answers, where: Where, *, stored: bool) -> Finding:
    """`stored`: whether there are conversations in the namespace."""
    if where.several:
        return Finding("search", "limited", f"a cluster keeps no index: {_WITHOUT}")
    if answers.unsearchable:
        return Finding("search", "limited", f"this user may not use the index: {_WITHOUT}", "see rights")
    if found.search_module is None and answers.index is None:
        fix = "use Redis 8 or newer, or Redis Stack: `docker compose up -d`, or --url embedded://"
        return Finding("search", "limited", f"no search module: {_WITHOUT}", fix)
    if where.database:
        text = f"there is no index on database {where.database}, only on 0: {_WITHOUT}"
        return Finding("search", "limited", text, "use database 0: the path /0 of the URL")
    if found.search_module == "search 8.0.0":
        text = "search 8.0.0 has a bug: it sometimes returns no results"
        return Finding("search", "limited", text, "upgrade to Redis 8.0.1 or newer")
    module = found.search_module or "search"
    index = answers.index
    if index is None:
        if stored:
            return Finding(
                "search", "limited", f"{module}, but no index: searches find nothing", "redis-history reindex"
            )
        return Finding("search", "ok", f"{module}; the first message that is stored creates the index")
    told = f"{module}, {index.documents:,} messages in the index{_form(answers)}"
    if not index.complete:
        text = f"{told}, still being built: {100 * index.share:.0f} %"
        return Finding("search", "limited", text, "wait: until then, search in all conversations may fail")
    if answers.failures:
        text = f"{told}; {answers.failures:,} could not be indexed"
        return Finding("search", "limited", text, "redis-history reindex")
    if stored and not index.documents:
        return Finding("search", "limited", f"{told}, though there are conversations", "redis-history reindex")
    return Finding("search", "ok", told)


def _form(answers: Answers) -> str:
    form = answers.form
    if form is None:
        return " (of another version)"
    vectors = f", vectors of {form.vector.dimension} numbers" if form.vector else ""
    return f" ({form.language}{vectors})"
