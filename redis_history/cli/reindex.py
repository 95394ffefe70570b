"""`redis-history reindex`: rebuilds the search index of a namespace."""

from __future__ import annotations

import click

from redis_history.cli import _options
from redis_history.cli._console import working
from redis_history.cli._stores import open_store, search_options
from redis_history.cli._text import counted
from redis_history.cli.commands import Context, define
from redis_history.errors import CapabilityError

__all__ = ["command"]


@define("reindex")
@_options.language
@_options.quiet
@click.pass_obj
def command(context: Context, /, language: str | None, quiet: bool) -> None:
    """Rebuild the search index of a namespace.

    Indexes messages that were stored before the server had search. Other processes may read and write meanwhile.
    """
    with open_store(context) as first:
        vectors = search_options(first).get("vectors")
    if vectors is not None:
        raise CapabilityError(
            f"the index of this namespace has vectors of {vectors.dimension} numbers, which need their embedder: "
            "call store.reindex() in a program that has the embedder"
        )
    with (
        open_store(context, lasting=True, searches=language) as store,
        working("reindexing", context, quiet=quiet) as bar,
    ):
        done = store.reindex(on_progress=lambda count, known: bar.update(count, known, "conversations"))
    context.say(
        f"{counted(done.conversations, 'conversation')}, {counted(done.documents, 'document')} written, "
        f"{done.removed:,} removed",
        conversations=done.conversations,
        documents=done.documents,
        removed=done.removed,
    )
