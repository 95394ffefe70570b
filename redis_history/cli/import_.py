"""`redis-history import`: imports conversations from files."""

from __future__ import annotations

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

from redis_history._sync.store import HistoryStore
from redis_history.cli import _options
from redis_history.cli._console import Working, working
from redis_history.cli._stores import check_url, open_store
from redis_history.cli._text import counted, name, one_line
from redis_history.cli.commands import FAILED, Context, define
from redis_history.errors import InvalidInputError
from redis_history.importers import (
    FORMATS,
    Imported,
    ImportLimits,
    ImportProblem,
    OnError,
    import_messages,
    read_transcripts,
)

__all__ = ["command"]

_CHUNK = 1 << 16  # bytes
_LONGEST_NAME = 255  # bytes of the name of a file
_TOLD = 20  # problems to print; further ones are only counted


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
        option = click.option(
            f"--{field.replace('_', '-')}",
            type=kind,
            default=getattr(ImportLimits(), field),
            show_default=True,
            metavar="N",
            help=text,
        )
        command = option(command)
    return command


@define("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(allow_dash=True, exists=True))
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
@click.pass_obj
def command(
    context: Context,
    /,
    files: tuple[str, ...],
    format: str,
    stdin_name: str,
    batch: int,
    language: str | None,
    dry_run: bool,
    quiet: bool,
    **given: int,
) -> None:
    """Import conversations from files.

    Reads the JSON or JSONL files of chats, agents and other tools, also gzipped, and detects their format. FILE may be
    a folder or a zip archive, a pipe, or - for standard input. A repeated import adds only new messages. If a file
    cannot be read at all, nothing is imported. Skipped records are reported, and make the exit status 1.
    """
    check_url(context)
    problems = _Problems(context)
    limits = ImportLimits(**given)
    with _opened(files, stdin_name, limits) as opened:
        # Read the start of all files before storing anything; whole files to know the total of a progress bar.
        whole = dry_run or (sys.stderr.isatty() and not quiet)
        with working("reading", context, quiet=quiet) as shown:
            found = [
                _look(file, format, limits, problems.about(file) if dry_run else None, shown, whole) for file in opened
            ]
        if dry_run:
            done = found
        else:
            total = sum(one.counts.messages for one in found) if whole else None
            with open_store(context, lasting=True, searches=language) as store:
                work = _Work(context, store, format, batch, limits, total, quiet, problems)
                done = work.of(found)
    for one in done:
        _tell(context, one, dry_run)
    problems.end()
    counts = _sum(one.counts for one in done)
    if context.json:
        context.say("", kind="ended", dry_run=dry_run, **structs.asdict(counts))
    elif len(done) > 1:
        click.echo(f"Together: {_words(counts, dry_run)}")
    if counts.problems:
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
        self._count = 0

    def about(self, file: _File) -> OnError:
        return lambda problem: self._tell(file, problem)

    def _tell(self, file: _File, problem: ImportProblem) -> None:
        self._count += 1
        path = problem.path.replace(str(file.path), file.shown, 1)
        if self._context.json:
            self._context.say("", kind="problem", path=path, line=problem.line, reason=problem.reason)
        elif self._count <= _TOLD:
            click.echo(one_line(f"{path}:{problem.line}: skipped: {problem.reason}"), err=True)

    def end(self) -> None:
        if self._count > _TOLD and not self._context.json:
            click.echo(f"… and {self._count - _TOLD:,} more problems; --json reports all of them", err=True)


def _look(
    file: _File, format: str, limits: ImportLimits, on_error: OnError | None, shown: Working, whole: bool
) -> _Done:
    """Reads a file, or unless `whole` its first conversation. Raises InvalidInputError if it cannot be read at all."""
    kind, counts, problems = None, Imported(), 0

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
        counts = Imported(counts.conversations + 1, counts.messages + len(transcript.messages))
        shown.update(counts.messages, more=one_line(file.shown, 40))
        if not whole:
            break
    return _Done(file, kind, structs.replace(counts, problems=problems))


class _Work(NamedTuple):
    """A running import. `total`: the messages in all files, if known."""

    context: Context
    store: HistoryStore
    format: str
    batch: int
    limits: ImportLimits
    total: int | None
    quiet: bool
    problems: _Problems

    def of(self, found: Sequence[_Done]) -> list[_Done]:
        done: list[_Done] = []
        with working("importing", self.context, quiet=self.quiet) as shown:
            for one in found:

                def progress(counts: Imported) -> None:
                    so_far = _sum([*(earlier.counts for earlier in done), counts])
                    shown.update(so_far.messages, self.total, counted(so_far.conversations, "conversation"))

                counts = import_messages(
                    one.file.path,
                    self.store,
                    format=self.format,
                    batch=self.batch,
                    limits=self.limits,
                    on_error=self.problems.about(one.file),
                    on_progress=progress,
                )
                done.append(_Done(one.file, one.format, counts))
        return done


def _sum(counts: Iterable[Imported]) -> Imported:
    every = [structs.astuple(one) for one in counts]
    return Imported(*map(sum, zip(*every, strict=True)))


def _tell(context: Context, done: _Done, dry_run: bool) -> None:
    shown = name(done.file.shown)
    text = f"{shown} ({done.format or 'no conversations'}): {_words(done.counts, dry_run)}"
    fields = structs.asdict(done.counts)
    context.say(text, kind="file", path=done.file.shown, format=done.format, dry_run=dry_run, **fields)


def _words(counts: Imported, dry_run: bool) -> str:
    text = f"{counted(counts.conversations, 'conversation')}, {counted(counts.messages, 'message')}"
    if not dry_run:
        text += f": {counts.new:,} new, {counts.duplicates:,} known"
    if counts.problems:
        text += f"; {counted(counts.problems, 'problem')}"
    return text


@contextmanager
def _opened(files: Sequence[str], stdin_name: str, limits: ImportLimits) -> Iterator[list[_File]]:
    """The files to read. Copies pipes and standard input, which cannot be read twice, to temporary files."""
    if files.count("-") > 1 or not _is_file_name(stdin_name):
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


def _is_file_name(text: str) -> bool:
    named = text not in ("", ".", "..") and not {"/", "\0"} & set(text)
    return named and len(os.fsencode(text)) <= _LONGEST_NAME


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
