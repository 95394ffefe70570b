"""`redis-history import` and `export`."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
from msgspec import structs

from redis_history.backends.redis.urls import parse_url
from redis_history.cli import _options
from redis_history.cli._completion import conversation_ids
from redis_history.cli._listening import check_listening
from redis_history.cli._options import Id
from redis_history.cli._output import Update, complain, counted, name, one_line, progress
from redis_history.cli._stores import check_url, no_conversation, open_store
from redis_history.cli.commands import FAILED, WRONG, Context, define
from redis_history.errors import InvalidInputError
from redis_history.importers import (
    FORMATS,
    FRAMEWORKS,
    Exported,
    FrameworkSource,
    Imported,
    ImportLimits,
    ImportProblem,
    OnError,
    export_messages,
    import_messages,
    read_transcripts,
)

_CHUNK = 1 << 16  # bytes
_PATH = click.Path(allow_dash=True, exists=True)
_LONGEST_NAME = 255  # bytes of the name of a file
_MOST_PROBLEMS = 20  # to print; further ones are only counted

#: Help texts by field of ImportLimits.
_LIMITS = {
    "max_bytes": "Unpacked bytes of a source: all files of a folder or archive together.",
    "max_ratio": "Ratio of unpacked to packed bytes, after the first 16 MiB.",
    "max_files": "Files and folders in a folder, or entries of an archive.",
    "max_record_bytes": "Bytes of a record: a line, an item of a list, or another JSON document.",
    "max_values": "Numbers, strings, lists and objects in a record.",
    "max_depth": "Nesting depth of lists and objects, at most 250.",
    "max_conversation_bytes": "Bytes of the lines that make up one conversation.",
}


def _limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each field of ImportLimits."""
    for field, text in reversed(_LIMITS.items()):
        kind = click.IntRange(1, 250 if field == "max_depth" else None)
        flag, default = f"--{field.replace('_', '-')}", getattr(ImportLimits(), field)
        command = click.option(flag, type=kind, default=default, show_default=True, metavar="N", help=text)(command)
    return command


@define("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--from",
    "framework",
    type=click.Choice(FRAMEWORKS),
    help="Import what this framework's own class has stored in Redis. FILE is the URL of that server.",
)
@click.option(
    "--key-prefix",
    metavar="TEXT",
    help="With --from: what the framework's keys begin with.  [default: that of the framework]",
)
@click.option("--format", type=click.Choice(("auto", *FORMATS)), default="auto", show_default=True,
              help="The format of the files. auto: detect it from the first records.")  # fmt: skip
@click.option("--name", "stdin_name", default="stdin", show_default=True, metavar="NAME",
              help="The file name to use for - (standard input). Ids are derived from it.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 1000), default=200, show_default=True, metavar="N",
              help="How many messages to store at once.")  # fmt: skip
@_limits
@_options.language
@click.option("--dry-run", is_flag=True, help="Read the files and report their content, but store nothing.")
@_options.quiet
def import_command(
    context: Context,
    /,
    files: tuple[str, ...],
    framework: str | None,
    key_prefix: str | None,
    format: str,
    stdin_name: str,
    batch: int,
    language: str | None,
    dry_run: bool,
    quiet: bool,
    **given: int,
) -> None:
    """Import conversations from files, or from the keys of an agent framework.

    Reads the JSON or JSONL files of chats, agents and other tools, also gzipped, and detects their format. FILE may be
    a folder or a zip archive, a pipe, or - for standard input. A repeated import adds only new messages. If a file
    cannot be read at all, nothing is imported. Skipped records are reported, and make the exit status 1.
    """
    check_url(context)
    problems = _Problems(context)
    if framework is not None:
        if len(files) > 1 or "://" not in files[0]:
            raise click.UsageError("--from takes one URL, such as redis://localhost:6379/0")
        _import_framework(context, framework, files[0], key_prefix, batch, language, dry_run=dry_run, quiet=quiet)
        return
    if key_prefix is not None:
        raise click.UsageError("--key-prefix needs --from")
    for given_path in files:
        if "://" in given_path:
            raise click.UsageError(f"{name(given_path)!r} is a URL: name the framework that wrote there with --from")
        _PATH.convert(given_path, None, click.get_current_context())
    limits = ImportLimits(**given)
    with _opened(files, stdin_name, limits) as opened:
        # Read the start of all files before storing anything.
        with progress("reading", context, quiet=quiet) as update:
            done = [_read(file, format, limits, problems.of(file) if dry_run else None, update) for file in opened]
        if not dry_run:
            with (
                open_store(context, lasting=True, searches=language) as store,
                progress("importing", context, quiet=quiet) as update,
            ):
                earlier = Imported()
                for at, (file, kind, _) in enumerate(done):

                    def show(counts: Imported, earlier: Imported = earlier) -> None:
                        now = _sum((earlier, counts))
                        update(now.messages, None, counted(now.conversations, "conversation"))

                    counts = import_messages(
                        file.path, store, format=format, batch=batch, limits=limits,
                        on_error=problems.of(file), on_progress=show,
                    )  # fmt: skip
                    earlier = _sum((earlier, counts))
                    done[at] = _Done(file, kind, counts)
    for file, kind, counts in done:
        text = f"{name(file.shown)} ({kind or 'no conversations'}): {_words(counts, dry_run)}"
        context.say(text, kind="file", path=file.shown, format=kind, dry_run=dry_run, **structs.asdict(counts))
    problems.end()
    counts = _sum(one.counts for one in done)
    if context.json:
        context.emit({"kind": "ended", "dry_run": dry_run, **structs.asdict(counts)})
    elif len(done) > 1:
        click.echo(f"Together: {_words(counts, dry_run)}")
    if counts.problems:
        raise SystemExit(FAILED)


def _import_framework(
    context: Context, framework: str, url: str, key_prefix: str | None, batch: int, language: str | None,
    *, dry_run: bool, quiet: bool,
) -> None:  # fmt: skip
    problems = _Problems(context)
    address = parse_url(url).address  # without the password
    report = problems.of(_File(address, Path(url)))
    check_listening(url)
    source = FrameworkSource(framework, url, key_prefix=key_prefix, on_error=report)
    counts = Imported()
    with progress("reading" if dry_run else "importing", context, quiet=quiet) as update:

        def show(done: Imported) -> None:
            update(done.conversations, len(source), counted(done.messages, "message"))

        if dry_run:
            for transcript in source:
                counts = Imported(counts.conversations + 1, counts.messages + len(transcript.messages))
                show(counts)
        else:
            with open_store(context, lasting=True, searches=language) as store:
                counts = import_messages(source, store, batch=batch, on_error=report, on_progress=show)
    counts = structs.replace(counts, problems=problems.count)
    text = f"{address} ({framework}): {_words(counts, dry_run)}"
    context.say(text, kind="ended", path=address, format=framework, dry_run=dry_run, **structs.asdict(counts))
    problems.end()
    if not len(source):
        complain(f"no conversations of {framework} found there", "Name another database in the URL, or --key-prefix")
    if problems.count:
        raise SystemExit(FAILED)


class _File(NamedTuple):
    """`shown`: the name to show; `path`: the file to read."""

    shown: str
    path: Path


class _Done(NamedTuple):
    """The result of reading or importing a file. `format`: of its first conversation, if there is one."""

    file: _File
    format: str | None
    counts: Imported


class _Problems:
    """Reports skipped records: all of them in JSON, otherwise the first ones."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.count = 0

    def of(self, file: _File) -> OnError:
        def report(problem: ImportProblem) -> None:
            self.count += 1
            path = problem.path.replace(str(file.path), file.shown, 1)
            if self._context.json:
                self._context.emit({"kind": "problem", "path": path, "line": problem.line, "reason": problem.reason})
            elif self.count <= _MOST_PROBLEMS:
                click.echo(one_line(f"{path}:{problem.line}: skipped: {problem.reason}"), err=True)

        return report

    def end(self) -> None:
        if self.count > _MOST_PROBLEMS and not self._context.json:
            more = self.count - _MOST_PROBLEMS
            click.echo(f"… and {more:,} more problems; --json reports all of them", err=True)


def _read(file: _File, format: str, limits: ImportLimits, on_error: OnError | None, update: Update) -> _Done:
    """Reads a file, or without `on_error` its first conversation. Raises InvalidInputError if it cannot be read."""
    kind, conversations, messages, problems = None, 0, 0, 0

    def count(problem: ImportProblem) -> None:
        nonlocal problems
        problems += 1
        if on_error is not None:
            on_error(problem)

    try:
        transcripts = read_transcripts(file.path, format=format, on_error=count, limits=limits)
    except InvalidInputError as error:
        raise InvalidInputError(str(error).replace(str(file.path), file.shown)) from error
    for transcript in transcripts:
        kind = kind or transcript.format
        conversations, messages = conversations + 1, messages + len(transcript.messages)
        update(messages, more=one_line(file.shown, 40))
        if on_error is None:
            break
    return _Done(file, kind, Imported(conversations, messages, problems=problems))


def _sum(counts: Iterable[Imported]) -> Imported:
    return Imported(*map(sum, zip(*map(structs.astuple, counts), strict=True)))


def _words(counts: Imported, dry_run: bool) -> str:
    text = f"{counted(counts.conversations, 'conversation')}, {counted(counts.messages, 'message')}"
    if not dry_run:
        text += f": {counts.new:,} new, {counts.duplicates:,} known"
    return text + (f"; {counted(counts.problems, 'problem')}" if counts.problems else "")


@contextmanager
def _opened(files: Sequence[str], stdin_name: str, limits: ImportLimits) -> Iterator[list[_File]]:
    """The files to read. Copies pipes and standard input, which cannot be read twice, to temporary files."""
    is_name = stdin_name not in ("", ".", "..") and not {"/", "\0"} & set(stdin_name)
    if files.count("-") > 1 or not is_name or len(os.fsencode(stdin_name)) > _LONGEST_NAME:
        raise click.UsageError("- may be given only once, and --name must be a file name without a folder")
    if "-" in files and sys.stdin is None:  # as after <&-
        raise click.UsageError("standard input is closed")
    with ExitStack() as stack:
        found = []
        for file in files:
            path = Path(file)
            if file == "-" or not (path.is_file() or path.is_dir()):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="redis-history-"))
                path = Path(folder) / (stdin_name if file == "-" else path.name)
                _copy(file, path, limits)
            found.append(_File(file, path))
        yield found


def _copy(file: str, path: Path, limits: ImportLimits) -> None:
    try:
        with ExitStack() as stack:
            source = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            mode = 0 if file == "-" else Path(file).stat().st_mode
            if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not source.isatty()):
                raise InvalidInputError(f"{file} cannot be read: it is a device")
            target, left = stack.enter_context(path.open("wb")), limits.max_bytes
            while data := source.read(min(_CHUNK, left + 1)):
                left -= len(data)
                if left < 0:
                    raise InvalidInputError(f"{file} cannot be read: {limits.refusal('max_bytes', 'what it gives')}")
                target.write(data)
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read: {error.strerror or error}") from error


@define("export")
@click.argument("conversations", nargs=-1, metavar="[ID]...", type=Id(), shell_complete=conversation_ids)
@click.option("--output", "-o", default="-", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True),
              help="The file to write, gzipped if its name ends in .gz.  [default: standard output]")  # fmt: skip
@click.option("--archived", is_flag=True, help="Also export archived messages, which summaries replaced.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress and no summary.")
def export_command(
    context: Context, /, conversations: tuple[str, ...], output: str, archived: bool, quiet: bool
) -> None:
    """Export conversations, or a whole namespace, to a file.

    The file is JSONL: a line for the record of each conversation and a line for each message, with all their data.
    `redis-history import` reads it. An existing file is replaced once the new file is complete.
    """
    if output == "/dev/stdout":  # opening it by name would truncate a file that it is redirected to
        output = "-"
    if output == "-" and sys.stdout is None:  # as after >&-
        raise click.UsageError("standard output is closed: name a file with --output")
    if output == "-" and sys.stdout.isatty():
        raise click.UsageError("the export would go to your terminal: name a file with --output, or use a pipe")
    with open_store(context, lasting=True) as store:
        for identity in conversations:
            if store.get_conversation(identity) is None:
                no_conversation(store, identity)
        with progress("exporting", context, quiet=quiet) as update:

            def show(done: Exported) -> None:
                update(done.messages, None, counted(done.conversations, "conversation"))

            try:
                done = export_messages(
                    store,
                    sys.stdout.buffer if output == "-" else Path(output),
                    conversation_ids=conversations or None,
                    include_archived=archived,
                    on_progress=show,
                )
            except OSError as error:
                if output == "-" or error.errno == errno.EPIPE:
                    raise
                complain(f"{output or repr(output)} cannot be written: {error.strerror or error}")
                raise SystemExit(WRONG) from error
    text = f"{counted(done.conversations, 'conversation')}, {counted(done.messages, 'message')}"
    if context.json and output != "-":
        context.emit({"path": output, "conversations": done.conversations, "messages": done.messages})
    elif not quiet:
        click.echo(text if output == "-" else f"{name(output)}: {text}", err=output == "-")
