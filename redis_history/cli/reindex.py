"""`redis-history reindex`: writes the search documents of a namespace anew."""

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
    """Write the search index of a namespace anew.

    Needed for what was stored before there was search. May run while others read and write.
    """
    with open_store(context) as first:
        vectors = search_options(first).get("vectors")
    if vectors is not None:
        raise CapabilityError(
            f"the index of this namespace has vectors of {vectors.dimension} numbers, which only its embedder makes: "
            "call store.reindex() in a program that has it"
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
