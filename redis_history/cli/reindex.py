"""`redis-history reindex`: writes the search documents of a namespace anew."""

from __future__ import annotations

import click
from rich.console import Console
from rich.progress import Progress

from redis_history._sync.store import HistoryStore
from redis_history.cli.commands import Context

__all__ = ["command"]


@click.command(name="reindex")
@click.option("--language", default="english", show_default=True, metavar="NAME", help="That of the stores.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bar.")
@click.pass_obj
def command(context: Context, /, language: str, quiet: bool) -> None:
    """Write the search index of a namespace anew.

    Needed for what was stored before there was search. May run while others read and write.
    """
    bar = Progress(console=Console(stderr=True), transient=True, disable=quiet or context.json)
    with HistoryStore(context.url, namespace=context.namespace, language=language) as store, bar:
        task = bar.add_task("conversations", total=None)
        done = store.reindex(on_progress=lambda count, known: bar.update(task, completed=count, total=known))
    context.say(
        f"{done.conversations:,} conversations, {done.documents:,} documents written, {done.removed:,} removed",
        conversations=done.conversations,
        documents=done.documents,
        removed=done.removed,
    )
