"""`redis-history export`: writes conversations to a file, with all their data."""

from __future__ import annotations

import errno
import gzip
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import click

from redis_history.cli._complete import conversation_ids
from redis_history.cli._console import working
from redis_history.cli._failures import complain
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli._text import counted, name
from redis_history.cli._values import Id
from redis_history.cli.commands import WRONG, Context, define
from redis_history.importers import Exported, export_messages

__all__ = ["command"]

_ALL = 1_000_000


@define("export")
@click.argument("conversations", nargs=-1, metavar="[ID]...", type=Id(), shell_complete=conversation_ids)
@click.option("--output", "-o", default="-", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True),
              help="The file to write, gzipped if its name ends in .gz.  [default: standard output]")  # fmt: skip
@click.option("--gzip", "packed", is_flag=True, help="Compress standard output with gzip.")
@click.option("--archived", is_flag=True, help="Also export archived messages, which summaries replaced.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress and no summary.")
@click.pass_obj
def command(
    context: Context, /, conversations: tuple[str, ...], output: str, packed: bool, archived: bool, quiet: bool
) -> None:
    """Export conversations, or a whole namespace, to a file.

    The file is JSONL: a line for the record of each conversation and a line for each message, with all their data.
    `redis-history import` reads it. An existing file is replaced once the new file is complete.
    """
    if output == "/dev/stdout":  # opening it by name would truncate a file that it is redirected to
        output = "-"
    if packed and output != "-":
        raise click.UsageError("--gzip is for standard output; a file is gzipped if its name ends in .gz")
    if output == "-" and sys.stdout is None:  # as after >&-
        raise click.UsageError("standard output is closed: name a file with --output")
    if output == "-" and sys.stdout.isatty():
        raise click.UsageError("the export would go to your terminal: name a file with --output, or use a pipe")
    with open_store(context, lasting=True) as store:
        for identity in conversations:
            if store.get_conversation(identity) is None:
                no_conversation(store, identity)
        total = None
        if conversations:
            records = [store.get_conversation(identity) for identity in conversations]
            total = sum(record.message_count for record in records if record is not None)
        elif not quiet and sys.stderr.isatty():
            total = sum(record.message_count for record in store.list_conversations(limit=_ALL))
        with working("exporting", context, quiet=quiet) as shown:

            def progress(done: Exported) -> None:
                shown.update(done.messages, None if archived else total, counted(done.conversations, "conversation"))

            try:
                with _target(output, packed) as target:
                    done = export_messages(
                        store,
                        target,
                        conversation_ids=conversations or None,
                        include_archived=archived,
                        on_progress=progress,
                    )
            except OSError as error:
                if output == "-" or error.errno == errno.EPIPE:
                    raise
                complain(f"{output or repr(output)} cannot be written: {error.strerror or error}")
                raise SystemExit(WRONG) from error
    text = f"{counted(done.conversations, 'conversation')}, {counted(done.messages, 'message')}"
    if output == "-":
        if not quiet:
            click.echo(text, err=True)
    elif context.json:
        context.say("", path=output, conversations=done.conversations, messages=done.messages)
    elif not quiet:
        click.echo(f"{name(output)}: {text}")


@contextmanager
def _target(output: str, packed: bool) -> Iterator[Path | IO[bytes]]:
    if output != "-":
        yield Path(output)
        return
    stdout = sys.stdout.buffer
    if packed:
        with gzip.GzipFile("", "wb", fileobj=stdout, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    else:
        yield stdout
    stdout.flush()
