"""`redis-history compress` and `reindex`."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import click
from msgspec import structs
from rich.table import Table
from rich.text import Text

from redis_history._async.compressor import AsyncCompressor
from redis_history._async.store import AsyncHistoryStore
from redis_history.cli import _options
from redis_history.cli._options import Duration, named_function
from redis_history.cli._output import console, counted, name, one_line, progress
from redis_history.cli._stores import open_store, search_options
from redis_history.cli.commands import FAILED, Context, define
from redis_history.compaction.extractive import extractive_summarizer
from redis_history.compaction.models import anthropic_summarizer, openai_summarizer
from redis_history.compaction.policy import KEEP_RECENT
from redis_history.compaction.summaries import Summarizer
from redis_history.compaction.worker import CompressionProgress, CompressorStats
from redis_history.errors import CapabilityError


def _summarizer(kind: str, model: str | None, base_url: str | None, tokens: int | None, language: str) -> Summarizer:
    if ":" in kind:
        found: Summarizer = named_function(kind)
        return found
    if kind == "extractive":
        return extractive_summarizer(language=language, max_tokens=tokens or 400)
    make = {"openai": openai_summarizer, "anthropic": anthropic_summarizer}.get(kind)
    if make is None:
        raise click.UsageError(
            f"--summarizer must be extractive, openai, anthropic or package.module:function, not {kind!r}"
        )
    if model is None:
        raise click.UsageError(f"--summarizer {kind} needs --model")
    return make(model, base_url=base_url, max_tokens=tokens or 1024)


@define("compress")
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help="Compress conversations with more than N tokens."
)
@click.option(
    "--max-messages", type=click.IntRange(1), metavar="N", help="Compress conversations with more than N messages."
)
@click.option("--older-than", type=Duration(), metavar="AGE", help="Compress messages older than AGE, such as 7d.")
@click.option("--target", type=click.FloatRange(0, 1, min_open=True), default=0.5, show_default=True,
              help="Compress down to this fraction of the limits.")  # fmt: skip
@click.option("--keep-recent", type=click.IntRange(0), default=KEEP_RECENT, show_default=True, metavar="N",
              help="Keep the newest N messages, if the limits allow it.")  # fmt: skip
@click.option("--summarizer", default="extractive", show_default=True, metavar="WHAT",
              help="extractive (needs no model), openai, anthropic, or package.module:function.")  # fmt: skip
@click.option("--model", metavar="NAME", help="The model, for openai and anthropic.")
@click.option("--base-url", metavar="URL", help="Another server with the same API, for openai and anthropic.")
@click.option(
    "--summary-tokens", type=click.IntRange(16), metavar="N", help="The maximum number of tokens of a summary."
)
@click.option("--language", default="english", show_default=True, metavar="NAME", help="Language of the messages.")
@click.option("--concurrency", type=click.IntRange(1), default=4, show_default=True, metavar="N",
              help="How many conversations to compress at once.")  # fmt: skip
@click.option("--timeout", type=Duration(), default="2m", show_default=True, help="Time limit for one summary.")
@click.option("--lease", type=Duration(), default="30s", show_default=True,
              help="Time after which another worker takes over from a stalled worker.")  # fmt: skip
@click.option(
    "--look-interval", type=Duration(), default="5s", show_default=True, help="Time between checks for changes."
)
@click.option("--sweep-interval", type=Duration(), default="5m", show_default=True,
              help="Time between checks of all conversations.")  # fmt: skip
@click.option("--grace", type=Duration(), default="20s", show_default=True,
              help="Time for running work to finish after SIGTERM or SIGINT.")  # fmt: skip
@click.option("--once", is_flag=True, help="Compress what is too long now, and exit. Exit status 1 if some failed.")
@click.option("--dry-run", is_flag=True, help="Show what would be compressed, change nothing, and exit.")
@click.option("--quiet", "-q", is_flag=True, help="Report only failures.")
def compress_command(
    context: Context,
    /,
    max_tokens: int | None,
    max_messages: int | None,
    older_than: float | None,
    summarizer: str,
    model: str | None,
    base_url: str | None,
    summary_tokens: int | None,
    language: str,
    once: bool,
    dry_run: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Replace the older part of long conversations with summaries.

    Runs until SIGTERM or SIGINT. Any number of processes on any machines may run this command and share the work. The
    replaced messages remain readable in the archive, and `store.expand` restores them.

    Set the API keys of models in the environment: OPENAI_API_KEY, ANTHROPIC_API_KEY.
    """
    if max_tokens is None and max_messages is None and older_than is None:
        raise click.UsageError("no limit is given: use --max-tokens, --max-messages or --older-than")
    chosen = _summarizer(summarizer, model, base_url, summary_tokens, language)

    def report(progress: CompressionProgress) -> None:
        _report(context, progress, quiet)

    def compressor_of(**searching: Any) -> tuple[AsyncHistoryStore, AsyncCompressor]:
        store = AsyncHistoryStore(context.url, namespace=context.namespace, **searching)
        return store, AsyncCompressor(
            store,
            chosen,
            max_tokens=max_tokens,
            max_messages=max_messages,
            older_than=older_than,
            on_progress=None if dry_run else report,
            **options,
        )

    async def work() -> CompressorStats | None:
        store, compressor = compressor_of(**searching)
        async with store:
            if dry_run:
                _show(context, await compressor.preview())
                return None
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, compressor.stop)
            if not quiet and not context.json:
                click.echo(f"compressing in namespace {context.namespace!r} with {summarizer}", err=True)
            elif not quiet and not once:  # from here on, SIGTERM ends it cleanly
                context.emit({"kind": "started", "namespace": context.namespace, "summarizer": summarizer})
            return await (compressor.run_once() if once else compressor.run())

    compressor_of()  # checks the options before anything connects
    with open_store(context) as first:  # reports an unreachable server soon
        searching = search_options(first) or {"language": language}
        stats = asyncio.run(work())
    if stats is None:
        return
    text = (
        f"{counted(stats.compressed, 'conversation')} compressed: {counted(stats.messages, 'message')} of "
        f"{stats.tokens_before:,} tokens into {stats.tokens_after:,}; {stats.failed:,} failed"
    )
    if not quiet or stats.failed:
        context.say(text, kind="ended", **structs.asdict(stats))
    if once and stats.failed:
        sys.exit(FAILED)


def _report(context: Context, progress: CompressionProgress, quiet: bool) -> None:
    wrong = progress.kind in ("failed", "lease_lost")
    if quiet and not wrong:
        return
    identity = name(progress.conversation_id)
    if context.json:
        context.emit(structs.asdict(progress))
    elif progress.kind == "compressed":
        click.echo(
            f"{identity}: {counted(progress.messages, 'message')}, {progress.tokens_before:,} tokens into "
            f"{progress.tokens_after:,}, {progress.seconds:.1f} s"
        )
    elif wrong or progress.kind == "conflict":
        click.echo(
            f"{identity}: {progress.kind}: {one_line(str(progress.error))}; next try in {progress.wait:.0f} s", err=True
        )


def _show(context: Context, planned: list[CompressionProgress]) -> None:
    if context.json:
        for progress in planned:
            context.emit(structs.asdict(progress))
        return
    table = Table(title=f"{counted(len(planned), 'conversation')} would be compressed")
    table.add_column("conversation", overflow="fold")
    table.add_column("messages", justify="right")
    table.add_column("tokens", justify="right")
    for progress in planned:
        table.add_row(Text(name(progress.conversation_id)), f"{progress.messages:,}", f"{progress.tokens_before:,}")
    console().print(table)


@define("reindex")
@_options.language
@_options.quiet
def reindex_command(context: Context, /, language: str | None, quiet: bool) -> None:
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
        progress("reindexing", context, quiet=quiet) as update,
    ):
        done = store.reindex(on_progress=lambda count, known: update(count, known, "conversations"))
    context.say(
        f"{counted(done.conversations, 'conversation')}, {counted(done.documents, 'document')} written, "
        f"{done.removed:,} removed",
        **structs.asdict(done),
    )
