"""`redis-history import` and `export`."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec import structs

from redis_history.cli import _options
from redis_history.cli._options import Number
from redis_history.cli._output import Update, complain, counted, name, one_line, progress
from redis_history.cli._stores import check_url, connect, existing, open_store, other_namespaces
from redis_history.cli.commands import FAILED, WRONG, Context, define
from redis_history.errors import InvalidInputError
from redis_history.integrations import importers
from redis_history.store._sync.store import HistoryStore
from redis_history.store.urls import parse_url

#: Has the URL of --from if no FILE is given.
_FROM_URL = "REDIS_HISTORY_FROM_URL"
_PATH = click.Path(allow_dash=True, exists=True)
_MAX_PROBLEMS = 20  # to print; further ones are only counted


@define("import")
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option("--from", "framework", type=click.Choice(importers.FRAMEWORKS),
              help="Import what this framework's class stored in Redis. FILE is the URL of that server.")  # fmt: skip
@click.option("--key-prefix",
              help="With --from: what the framework's keys begin with.  [default: that of the framework]")  # fmt: skip
@click.option("--format", type=click.Choice(("auto", *importers.FORMATS)), default="auto",
              help="The format of the files. auto: detect it from the first records.")  # fmt: skip
@click.option("--batch", type=Number(1, 1000), default=200, help="How many messages to store at once.")
@_options.language
@click.option("--dry-run", is_flag=True, help="Read the files and report their content, but store nothing.")
@_options.quiet
def import_command(
    context: Context, files: tuple[str, ...], framework: str | None, key_prefix: str | None, format: str,
    batch: int, language: str | None, dry_run: bool, quiet: bool,
) -> None:  # fmt: skip
    """Import conversations from files, or from the keys of an agent framework.

    Reads exports of this package, and messages of OpenAI, Anthropic, LangChain and ShareGPT: lists, batch files, logs,
    and tables with a message on each line, as JSON or JSONL, also gzipped. Detects their format. The FILE - is standard
    input. A repeated import adds only new messages. If a file
    cannot be read at all, nothing is imported. Skipped records are reported, and make the exit status 1.

    With --from, FILE is the URL of the framework's server. Put a URL with a password into the variable
    REDIS_HISTORY_FROM_URL and leave out FILE, because other users of the machine see the arguments of a command.
    """
    check_url(context)
    work = _Import(context, format, batch, language, dry_run, quiet)
    if framework is not None and not files:
        files = tuple(filter(None, [os.environ.get(_FROM_URL)]))
    if not files:
        what = f"the URL, or the variable {_FROM_URL}" if framework is not None else "at least one FILE"
        raise click.UsageError(f"give {what}")
    if framework is not None:
        if len(files) > 1 or "://" not in files[0]:
            raise click.UsageError("--from takes one URL, such as redis://localhost:6379/0")
        counts = work.framework(framework, files[0], key_prefix)
    else:
        if key_prefix is not None:
            raise click.UsageError("--key-prefix needs --from")
        for file in files:
            if "://" in file:
                raise click.UsageError(f"{name(file)!r} is a URL: name the framework that wrote there with --from")
            _PATH.convert(file, None, click.get_current_context())
        counts = work.files(files)
    if counts.problems:
        raise SystemExit(FAILED)


class _Source(NamedTuple):
    """`name`: as given; `path`: the file to read, for standard input a copy."""

    name: str
    path: Path


@dataclass
class _Import:
    """Imports, and prints results and skipped records: all of them in JSON, otherwise the first ones."""

    context: Context
    format: str
    batch: int
    language: str | None
    dry_run: bool
    quiet: bool
    problems: int = 0

    def files(self, files: Sequence[str]) -> importers.Imported:
        with _opened(files) as sources:
            # Read the start of all files before storing anything.
            with progress("reading", self.context, quiet=self.quiet) as update:
                done = [self._read(source, update) for source in sources]
            if not self.dry_run:
                with self._importing() as (store, update):
                    earlier = importers.Imported()

                    def show(counts: importers.Imported) -> None:
                        now = _sum((earlier, counts))
                        update(now.messages, None, counted(now.conversations, "conversation"))

                    for index, source in enumerate(sources):
                        counts = importers.import_messages(
                            source.path, store, format=self.format, batch=self.batch,
                            on_error=self._on_error(source), on_progress=show,
                        )  # fmt: skip
                        earlier = _sum((earlier, counts))
                        done[index] = done[index][0], counts
        for source, (format, counts) in zip(sources, done, strict=True):
            self._print(source.name, format, counts, kind="file")
        self._print_rest()
        total = _sum(counts for _, counts in done)
        if self.context.json:
            self.context.emit({"kind": "ended", "dry_run": self.dry_run, **structs.asdict(total)})
        elif len(done) > 1:
            click.echo(f"Together: {self._describe(total)}")
        return total

    def framework(self, framework: str, url: str, key_prefix: str | None) -> importers.Imported:
        address = parse_url(url).address  # without the password
        on_error = self._on_error(_Source(address, Path(url)))
        with connect(self.context._replace(given_url=url), probe=False) as old:
            backend: Any = old.backend
            backend.ask([[b"PING"]])  # reports an unreachable server soon, and needs no right to our keys
        source = importers.FrameworkSource(framework, url, key_prefix=key_prefix, on_error=on_error)
        counts = importers.Imported()
        if self.dry_run:
            with progress("reading", self.context, quiet=self.quiet) as update:
                for transcript in source:
                    counts = _sum((counts, importers.Imported(1, len(transcript.messages))))
                    update(counts.conversations, len(source), counted(counts.messages, "message"))
        else:
            with self._importing() as (store, update):
                counts = importers.import_messages(
                    source, store, batch=self.batch, on_error=on_error,
                    on_progress=lambda now: update(now.conversations, len(source), counted(now.messages, "message")),
                )  # fmt: skip
        counts = structs.replace(counts, problems=self.problems)
        self._print(address, framework, counts, kind="ended")
        self._print_rest()
        if not len(source):
            complain(
                f"no conversations of {framework} found there", "Name another database in the URL, or --key-prefix"
            )
        return counts

    @contextmanager
    def _importing(self) -> Iterator[tuple[HistoryStore, Update]]:
        with (
            open_store(self.context, lasting=True, searches=self.language) as store,
            progress("importing", self.context, quiet=self.quiet) as update,
        ):
            yield store, update

    def _read(self, source: _Source, update: Update) -> tuple[str | None, importers.Imported]:
        """Reads a file in a dry run, otherwise its first conversation. Returns the format of that, and the counts.

        Raises InvalidInputError if it cannot be read."""
        format, counts, before = None, importers.Imported(), self.problems
        on_error = self._on_error(source) if self.dry_run else lambda problem: None
        try:
            transcripts = importers.read_transcripts(source.path, format=self.format, on_error=on_error)
        except InvalidInputError as error:
            raise InvalidInputError(str(error).replace(str(source.path), source.name)) from error
        for transcript in transcripts:
            format = format or transcript.format
            counts = _sum((counts, importers.Imported(1, len(transcript.messages))))
            update(counts.messages, None, one_line(source.name, 40))
            if not self.dry_run:
                break
        return format, structs.replace(counts, problems=self.problems - before)

    def _on_error(self, source: _Source) -> importers.OnError:
        def report(problem: importers.ImportProblem) -> None:
            self.problems += 1
            path = problem.path.replace(str(source.path), source.name, 1)
            if self.context.json:
                self.context.emit({"kind": "problem", "path": path, "line": problem.line, "reason": problem.reason})
            elif self.problems <= _MAX_PROBLEMS:
                click.echo(one_line(f"{path}:{problem.line}: skipped: {problem.reason}"), err=True)

        return report

    def _print(self, source: str, format: str | None, counts: importers.Imported, *, kind: str) -> None:
        text = f"{name(source)} ({format or 'no conversations'}): {self._describe(counts)}"
        fields = {"path": source, "format": format, "dry_run": self.dry_run, **structs.asdict(counts)}
        self.context.say(text, kind=kind, **fields)

    def _print_rest(self) -> None:
        if self.problems > _MAX_PROBLEMS and not self.context.json:
            more = self.problems - _MAX_PROBLEMS
            click.echo(f"… and {more:,} more problems; --json reports all of them", err=True)

    def _describe(self, counts: importers.Imported) -> str:
        text = f"{counted(counts.conversations, 'conversation')}, {counted(counts.messages, 'message')}"
        if not self.dry_run:
            text += f": {counts.new:,} new, {counts.duplicates:,} known"
        return text + (f"; {counted(counts.problems, 'problem')}" if counts.problems else "")


def _sum(counts: Iterable[importers.Imported]) -> importers.Imported:
    return importers.Imported(*map(sum, zip(*map(structs.astuple, counts), strict=True)))


@contextmanager
def _opened(files: Sequence[str]) -> Iterator[list[_Source]]:
    """The files to read. Standard input is copied to a temporary file, because an import reads files twice."""
    if files.count("-") > 1:
        raise click.UsageError("- may be given only once")
    with tempfile.TemporaryDirectory(prefix="redis-history-") as folder:
        copy = Path(folder, "stdin")
        if "-" in files:
            with copy.open("wb") as stream:
                shutil.copyfileobj(sys.stdin.buffer, stream)
        yield [_Source(file, copy if file == "-" else Path(file)) for file in files]


@define("export")
@click.argument("conversations", nargs=-1, **_options.CONVERSATION_ID | {"metavar": "[ID]..."})
@click.option(
    "--output",
    "-o",
    default="-",
    metavar="FILE",
    type=click.Path(dir_okay=False, allow_dash=True),
    show_default="standard output",
    help="The file to write, gzipped if its name ends in .gz.",
)
@click.option("--no-archived", is_flag=True, help="Leave out archived messages, which summaries replaced.")
@click.option("--resume", is_flag=True,
              help="Continue an interrupted export to FILE, or begin one that can be continued.")  # fmt: skip
@click.option("--quiet", "-q", is_flag=True, help="Show no progress and no summary.")
def export_command(
    context: Context, conversations: tuple[str, ...], output: str, no_archived: bool, resume: bool, quiet: bool
) -> None:  # fmt: skip
    """Export conversations, or a whole namespace, to a file.

    The file is JSONL: a line for the record of each conversation and a line for each message, with all their data.
    `redis-history import` restores them with their times, revisions and archives; repeat it after an interruption. An
    existing file is replaced once the new file is complete.
    """
    if output == "/dev/stdout":  # opening it by name would truncate a file that it is redirected to
        output = "-"
    if output == "-" and sys.stdout.isatty():
        raise click.UsageError("the export would go to your terminal: name a file with --output, or use a pipe")
    if output == "-" and resume:
        raise click.UsageError("--resume needs a file: name it with --output")
    with open_store(context, lasting=True) as store:
        for conversation_id in conversations:
            existing(store, conversation_id)
        with progress("exporting", context, quiet=quiet) as update:

            def show(done: importers.Exported) -> None:
                update(done.messages, None, counted(done.conversations, "conversation"))

            try:
                done = importers.export_messages(
                    store,
                    sys.stdout.buffer if output == "-" else Path(output),
                    conversation_ids=conversations or None,
                    include_archived=not no_archived,
                    resume=resume,
                    on_progress=show,
                )
            except OSError as error:
                if output == "-" or error.errno == errno.EPIPE:
                    raise
                complain(f"{output or repr(output)} cannot be written: {error.strerror or error}")
                raise SystemExit(WRONG) from error
        empty = "" if done.conversations else other_namespaces(store)
    text = f"{counted(done.conversations, 'conversation')}, {counted(done.messages, 'message')}"
    if context.json and output != "-":
        context.emit({"path": output, "conversations": done.conversations, "messages": done.messages})
    elif not quiet:
        click.echo(text if output == "-" else f"{name(output)}: {text}", err=output == "-")
    if empty:
        click.echo(empty, err=True)
