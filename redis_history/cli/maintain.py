"""`redis-history compress` and `reindex`."""

from __future__ import annotations

import asyncio
import pkgutil
import signal
import sys
from functools import partial
from typing import Any

import click
from msgspec import structs

from redis_history.agents._async.compressor import AsyncCompressor
from redis_history.agents.compaction.extractive import extractive_summarizer
from redis_history.agents.compaction.models import anthropic_summarizer, openai_summarizer
from redis_history.agents.compaction.policy import KEEP_RECENT
from redis_history.agents.compaction.summaries import Summarizer
from redis_history.agents.compaction.worker import CompressionProgress, CompressorStats
from redis_history.cli import _options
from redis_history.cli._options import Number, duration
from redis_history.cli._output import counted, name, one_line, progress
from redis_history.cli._stores import connect, open_store, search_options
from redis_history.cli.commands import FAILED, Context, define
from redis_history.errors import CapabilityError
from redis_history.store._async.store import AsyncHistoryStore


def _summarizer(kind: str, model: str | None, base_url: str | None, tokens: int | None, language: str) -> Summarizer:
    if kind == "extractive":
        return extractive_summarizer(language=language, max_tokens=tokens or 400)
    if kind in ("openai", "anthropic"):
        if model is None:
            raise click.UsageError(f"--summarizer {kind} needs --model")
        make = openai_summarizer if kind == "openai" else anthropic_summarizer
        return make(model, base_url=base_url, max_tokens=tokens or 1024)
    if ":" not in kind:
        raise click.UsageError(
            f"--summarizer must be extractive, openai, anthropic or package.module:function, not {kind!r}"
        )
    try:
        found: Summarizer = pkgutil.resolve_name(kind)
    except Exception as error:  # a module may raise anything when it is imported
        raise click.UsageError(f"{kind!r} cannot be imported: {type(error).__name__}: {error}") from error
    return found


@define("compress")
@click.option("--max-tokens", type=Number(1), help="Compress conversations with more than N tokens.")
@click.option("--max-messages", type=Number(1), help="Compress conversations with more than N messages.")
@click.option("--older-than", type=duration, metavar="AGE", help="Compress messages older than AGE, such as 7d.")
@click.option("--target", type=click.FloatRange(0, 1, min_open=True), default=0.5,
              help="Compress down to this fraction of the limits.")  # fmt: skip
@click.option("--keep-recent", type=Number(0), default=KEEP_RECENT,
              help="Keep the newest N messages, if the limits allow it.")  # fmt: skip
@click.option("--summarizer", default="extractive", metavar="WHAT",
              help="extractive (needs no model), openai, anthropic, or package.module:function.")  # fmt: skip
@click.option("--model", metavar="NAME", help="The model, for openai and anthropic.")
@click.option("--base-url", metavar="URL", help="Another server with the same API, for openai and anthropic.")
@click.option("--summary-tokens", type=Number(16), help="The maximum number of tokens of a summary.")
@click.option("--language", default="english", metavar="NAME", help="Language of the messages.")
@click.option("--concurrency", type=Number(1), default=4, help="How many conversations to compress at once.")
@click.option("--timeout", type=duration, default="2m", help="Time limit for one summary.")
@click.option("--lease", type=duration, default="30s",
              help="Time after which another worker takes over from a stalled worker.")  # fmt: skip
@click.option("--look-interval", type=duration, default="5s", help="Time between checks for changes.")
@click.option("--sweep-interval", type=duration, default="5m", help="Time between checks of all conversations.")
@click.option("--grace", type=duration, default="20s",
              help="Time for running work to finish after SIGTERM or SIGINT.")  # fmt: skip
@click.option(
    "--once",
    is_flag=True,
    help="Compress once and exit, with status 1 if conversations fail or are skipped.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be compressed, change nothing, and exit.")
@click.option("--quiet", "-q", is_flag=True, help="Report only failures.")
def compress_command(
    context: Context, summarizer: str, model: str | None, base_url: str | None, summary_tokens: int | None,
    language: str, once: bool, dry_run: bool, quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Replace the older part of long conversations with summaries.

    Runs until SIGTERM or SIGINT. Any number of processes on any machines may run this command and share the work. The
    replaced messages remain readable in the archive, and `store.expand` restores them.

    Set the API keys of models in the environment: OPENAI_API_KEY, ANTHROPIC_API_KEY.
    """
    if all(options[limit] is None for limit in ("max_tokens", "max_messages", "older_than")):
        raise click.UsageError("no limit is given: use --max-tokens, --max-messages or --older-than")
    summarize = _summarizer(summarizer, model, base_url, summary_tokens, language)

    report = None if dry_run else partial(_report, context, quiet)

    def compressor_of(**searching: Any) -> tuple[AsyncHistoryStore, AsyncCompressor]:
        store = AsyncHistoryStore(context.url, namespace=context.namespace, **searching)
        return store, AsyncCompressor(store, summarize, on_progress=report, **options)

    async def work() -> CompressorStats | None:
        store, compressor = compressor_of(**searching)
        async with store:
            if dry_run:
                _print_plan(context, await compressor.preview())
                return None
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, compressor.stop)
            if not quiet and not context.json:
                click.echo(f"compressing in namespace {context.namespace!r} with {summarizer}", err=True)
            elif not quiet and not once:  # from here on, SIGTERM ends it cleanly
                context.emit({"kind": "started", "namespace": context.namespace, "summarizer": summarizer})
            return await (compressor.run_once() if once else compressor.run())

    compressor_of()  # checks the options before anything connects
    with connect(context) as first:
        searching = search_options(first) or {"language": language}
        stats = asyncio.run(work())
    if stats is None:
        return
    # After a failure, a conversation rests, also for other workers.
    skipped = stats.busy + stats.conflicts + stats.leases_lost
    text = (
        f"{counted(stats.compressed, 'conversation')} compressed: {counted(stats.messages, 'message')} of "
        f"{stats.tokens_before:,} tokens into {stats.tokens_after:,}; {stats.failed:,} failed, {skipped:,} skipped"
    )
    if not quiet or stats.failed or (once and skipped):
        context.say(text, kind="ended", **structs.asdict(stats))
    if once and (stats.failed or skipped or stats.resting):
        sys.exit(FAILED)


def _report(context: Context, quiet: bool, progress: CompressionProgress) -> None:
    failed = progress.kind in ("failed", "lease_lost")
    if quiet and not failed:
        return
    conversation = name(progress.conversation_id)
    if context.json:
        context.emit(structs.asdict(progress))
    elif progress.kind == "compressed":
        click.echo(
            f"{conversation}: {counted(progress.messages, 'message')}, {progress.tokens_before:,} tokens into "
            f"{progress.tokens_after:,}, {progress.seconds:.1f} s"
        )
    elif failed or progress.kind == "conflict":
        reason = one_line(str(progress.error))
        click.echo(f"{conversation}: {progress.kind}: {reason}; next try in {progress.wait:.0f} s", err=True)


def _print_plan(context: Context, plan: list[CompressionProgress]) -> None:
    for planned in plan:
        size = f"{counted(planned.messages, 'message')}, {counted(planned.tokens_before, 'token')}"
        context.say(f"{name(planned.conversation_id)}: {size}", **structs.asdict(planned))
    if not context.json:
        click.echo(f"{counted(len(plan), 'conversation')} would be compressed")


@define("reindex")
@_options.language
@_options.quiet
def reindex_command(context: Context, language: str | None, quiet: bool) -> None:
    """Rebuild the search index of a namespace.

    Indexes messages that were stored before the server had search. Other processes may read and write in the meantime.
    """
    with connect(context) as first:
        vectors = search_options(first).get("vectors")
    if vectors is not None:
        raise CapabilityError(
            f"the index of this namespace has vectors of {vectors} numbers, which need their embedder: "
            "call store.reindex() in a program that has the embedder"
        )
    with (
        open_store(context, lasting=True, searches=language) as store,
        progress("reindexing", context, quiet=quiet) as update,
    ):
        done = store.reindex(on_progress=lambda count, total: update(count, total, "conversations"))
    context.say(
        f"{counted(done.conversations, 'conversation')}, {counted(done.documents, 'document')} written, "
        f"{done.removed:,} removed",
        **structs.asdict(done),
    )
