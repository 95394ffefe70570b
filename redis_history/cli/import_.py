"""`redis-history import`: the conversations of files into a store."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from msgspec import structs

from redis_history._sync.store import HistoryStore
from redis_history.cli import _options
from redis_history.cli._console import Working, working
from redis_history.cli._stores import check_url, open_store
from redis_history.cli._text import counted, name, one_line
from redis_history.cli.commands import FAILED, Context, define
from redis_history.errors import InvalidInputError
from redis_history.importers import FORMATS, Imported, ImportProblem, OnError, import_messages, read_transcripts

__all__ = ["command"]

_LONGEST_NAME = 255  # bytes of the name of a file
_TOLD = 20  # problems, before the others are only counted


@define("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(allow_dash=True, exists=True))
@click.option("--format", type=click.Choice(("auto", *FORMATS)), default="auto", show_default=True,
              help="What the files are in. auto: the first records tell.")  # fmt: skip
@click.option("--name", "stdin_name", default="stdin", show_default=True, metavar="NAME",
              help="For - (standard input): what stands for the name of the file, of which ids are made.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 1000), default=200, show_default=True, metavar="N",
              help="Messages in one change.")  # fmt: skip
@_options.language
@click.option("--dry-run", is_flag=True, help="Read the files, say what is in them, and store nothing.")
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
) -> None:
    """Store the conversations of files.

    What chats, agents and other tools wrote is read, in JSON or JSONL, also gzipped. A folder or a zip archive is read
    file by file, - is standard input, and pipes may be named. The format is told from the content. Importing again
    stores nothing twice, and adds what is new. If a file cannot be read at all, nothing is imported. What is left out
    is told, and the exit status is 1 then.
    """
    check_url(context)
    problems = _Problems(context)
    with _opened(files, stdin_name) as opened:
        # All are looked at before anything is stored; whole, where there is a bar to be filled.
        whole = dry_run or (sys.stderr.isatty() and not quiet)
        with working("reading", context, quiet=quiet) as shown:
            found = [_look(file, format, problems.about(file) if dry_run else None, shown, whole) for file in opened]
        if dry_run:
            done = found
        else:
            total = sum(one.counts.messages for one in found) if whole else None
            with open_store(context, lasting=True, searches=language) as store:
                work = _Work(context, store, format, batch, total, quiet, problems)
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
    """`shown` is what it is called; `path` where it is."""

    shown: str
    path: Path


class _Done(NamedTuple):
    """What was found in a file, or made of it. `format`: of its first conversation, if there is one."""

    file: _File
    format: str | None
    counts: Imported


class _Problems:
    """Tells of what is left out: all of it in JSON, the first of it to people."""

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
            click.echo(one_line(f"{path}:{problem.line}: left out: {problem.reason}"), err=True)

    def end(self) -> None:
        if self._count > _TOLD and not self._context.json:
            click.echo(f"… and {self._count - _TOLD:,} more problems, which --json tells all", err=True)


def _look(file: _File, format: str, on_error: OnError | None, shown: Working, whole: bool) -> _Done:
    """What is in a file. Raises InvalidInputError if it cannot be read at all. Not `whole`: its first conversation."""
    kind, counts, problems = None, Imported(), 0

    def count(problem: ImportProblem) -> None:
        nonlocal problems
        problems += 1
        if on_error is not None:
            on_error(problem)

    try:
        transcripts = read_transcripts(file.path, format=format, on_error=count)
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
    """An import under way. `total`: messages in all files, if they were counted."""

    context: Context
    store: HistoryStore
    format: str
    batch: int
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
def _opened(files: Sequence[str], stdin_name: str) -> Iterator[list[_File]]:
    """The files. What cannot be read twice, such as standard input and pipes, is put into one."""
    if files.count("-") > 1 or not _is_file_name(stdin_name):
        raise click.UsageError("- may be given once, and --name is the name of a file without a folder")
    if "-" in files and sys.stdin is None:  # as after <&-
        raise click.UsageError("standard input is closed")
    with ExitStack() as stack:
        found = []
        for file in files:
            path = Path(file)
            if file == "-" or not (path.is_file() or path.is_dir()):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="redis-history-"))
                path = Path(folder) / (stdin_name if file == "-" else path.name)
                _copy(file, path)
            found.append(_File(file, path))
        yield found


def _is_file_name(text: str) -> bool:
    named = text not in ("", ".", "..") and not {"/", "\0"} & set(text)
    return named and len(os.fsencode(text)) <= _LONGEST_NAME


def _copy(file: str, path: Path) -> None:
    try:
        with ExitStack() as stack:
            source = sys.stdin.buffer if file == "-" else stack.enter_context(Path(file).open("rb"))
            shutil.copyfileobj(source, stack.enter_context(path.open("wb")))
    except OSError as error:
        raise InvalidInputError(f"{file} cannot be read: {error.strerror or error}") from error
