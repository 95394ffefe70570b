"""`redis-history tail`: shows the newest messages of a conversation, and follows changes."""

from __future__ import annotations

import errno
import logging
import select
import signal
import sys
from collections import deque
from contextlib import suppress
from typing import Any, BinaryIO

import click
import orjson
from rich.text import Text

from redis_history._sync.store import HistoryStore
from redis_history._sync.subscription import Feed
from redis_history.cli import _options
from redis_history.cli._options import Number
from redis_history.cli._output import complain, console, logging_to, name, put
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli._timeline import Timeline, describe
from redis_history.cli.commands import Context, define, discard_output
from redis_history.errors import BackendUnavailableError
from redis_history.events import ConversationDeleted, Event, ReplyEnded, ReplyGrew
from redis_history.formats.json_form import to_json
from redis_history.model import Message
from redis_history.operations import Snapshot

_CHECK_INTERVAL = 0.2  # seconds between checks of signals, of the reader of the output and of the server


@define("tail")
@click.argument("conversation", required=False, **_options.CONVERSATION_ID | {"metavar": "[ID]"})
@click.option("--all", "everything", is_flag=True, help="All conversations of the namespace, including future ones.")
@click.option("--limit", "-n", type=Number(0, 10_000), default=10, help="Start with the newest N messages.")
@click.option("--follow", "-f", is_flag=True, help="Show changes as they happen, until SIGINT or SIGTERM.")
@click.option("--after", metavar="CURSOR",
              help="Start with the changes after this cursor. --json prints the cursor of each change.")  # fmt: skip
@click.option("--resume", type=click.File("rb"), metavar="FILE",
              help="Start after the last changes in FILE, the output of an earlier tail --json.")  # fmt: skip
@_options.parts_shown
def tail_command(
    context: Context, conversation: str | None, everything: bool, limit: int, follow: bool,
    after: str | None, resume: BinaryIO | None, **parts_shown: Any,
) -> None:  # fmt: skip
    """Show the newest messages of a conversation, and follow changes.

    With --follow, shows every change by any process as it happens, and continues after a restart of the server. Reports
    changes that are missing because the change log was trimmed or the server lost them. With --json, each line is a
    change with its cursor. To continue later, pass the last cursor to --after, or the output file to --resume.
    """
    if everything == (conversation is not None):
        raise click.UsageError("name one conversation, or give --all")
    if after and (everything or resume):
        raise click.UsageError("--after needs one conversation, and excludes --resume")
    if everything and not (follow or resume):
        raise click.UsageError(
            "--all needs --follow or --resume; `redis-history ls` lists the last changed conversations"
        )
    cursors = _cursors(resume) if resume else {}
    stop = _Stop()
    printer = _Printer(context, Timeline(console(), **parts_shown), headings=everything)
    with open_store(context) as store, stop:
        if conversation is None:
            with store.subscribe_all(after=cursors or None) as all_changes:
                _print_changes(all_changes, store, printer, follow, stop)
            return
        start = after or cursors.get(conversation)
        if start is None:
            if not follow and store.get_conversation(conversation) is None:
                no_conversation(store, conversation)
            snapshot = store.snapshot(conversation, limit=max(limit, 1))
            if follow and not snapshot.cursor.revision:
                complain(f"there is no conversation '{name(conversation)}' yet; waiting for it")
            printer.snapshot(conversation, snapshot, limit)
            start = str(snapshot.cursor)
            if not follow:
                return
        with store.subscribe(conversation, after=start) as changes:
            _print_changes(changes, store, printer, follow, stop)
        if not follow and store.get_conversation(conversation) is None:
            no_conversation(store, conversation)


def _cursors(lines: BinaryIO) -> dict[str, str]:
    """The last cursor of each conversation whose last change is not its deletion."""
    found: dict[str, str] = {}
    for line in lines:
        try:
            change = orjson.loads(line)
            conversation_id, cursor, event = change["conversation_id"], change["cursor"], change["event"]
        except (ValueError, TypeError, KeyError):
            continue  # an incomplete line, or other output
        if event == ConversationDeleted.__struct_config__.tag:
            found.pop(conversation_id, None)
        else:
            found[conversation_id] = cursor
    return found


class _Stop:
    """A context in which SIGINT or SIGTERM only sets `requested`, so that no line is cut. A second signal ends the
    command, in case the output blocks; and so does the first while `idle`."""

    requested = idle = False

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, *_: Any) -> None:
        if self.idle:
            sys.exit(0)
        if self.requested:
            discard_output()  # otherwise the exit would wait for the rest of the output
            sys.exit(0)
        self.requested = True


class _Printer:
    """Prints changes. `headings`: print the conversation's id above its changes."""

    def __init__(self, context: Context, timeline: Timeline, *, headings: bool) -> None:
        self._context = context
        self._timeline = timeline
        self._screen = console()
        self._headings = headings
        self._heading: str | None = None
        # Replies by conversation and message id: those being written, as far as printed, and those printed in one
        # piece. The latter are kept because events of their growth may follow.
        self._growing: dict[tuple[str, str], Message] = {}
        self._printed: deque[tuple[str, str]] = deque(maxlen=1000)
        self._last: tuple[str, str] | None = None  # the reply whose text was printed last
        self._within_line = False  # whether the last line of that text is not ended

    def snapshot(self, conversation_id: str, snapshot: Snapshot, limit: int) -> None:
        """Print the newest `limit` messages, and with JSON the cursor after them."""
        messages = snapshot.messages[-limit:] if limit else ()
        if not self._context.json:
            self._timeline.print_all(messages)
            self._growing = {(conversation_id, one.id): one for one in messages if one.status == "streaming"}
            return
        self._context.emit(
            {
                "conversation_id": conversation_id,
                "event": "snapshot",
                "revision": snapshot.cursor.revision,
                "cursor": str(snapshot.cursor),
                "message_count": snapshot.message_count,
                "messages": [to_json(message) for message in messages],
            }
        )

    def change(self, event: Event) -> None:
        if self._context.json:
            self._context.emit(to_json(event))
        elif not isinstance(event, ReplyGrew | ReplyEnded) or not self._grow(event):
            self._print(event)

    def _print(self, event: Event) -> None:
        self._begin(event.conversation_id)
        messages, note, sentence = describe(event)
        for message in messages:
            reply = event.conversation_id, message.id
            if message.status == "streaming":
                self._timeline.head(message, "writing")
                self._growing[reply] = message
                self._last = reply if message is messages[-1] else None
            else:
                self._timeline.print(message, note=note)
                self._printed.append(reply)
        if sentence:
            put(self._screen, Text(f"-- {sentence}", style="dim"))
            self._screen.print()

    def _grow(self, event: ReplyGrew | ReplyEnded) -> bool:
        """Print the new part of a reply. False if no part of the reply was printed, or it no longer exists."""
        reply = event.conversation_id, event.message_id
        if reply in self._printed:
            return True
        before, ended = self._growing.pop(reply, None), isinstance(event, ReplyEnded)
        after = event.message if isinstance(event, ReplyEnded) else before and event.applied_to(before)
        if before is None or after is None:
            return False
        if not ended:
            self._growing[reply] = after
        interrupted = after.status == "interrupted"
        if self._last != reply:
            if after.parts == before.parts and not interrupted:
                return True
            self._begin(event.conversation_id)
            self._timeline.head(before, "continued")
            self._last = reply
        self._within_line = self._timeline.grow(before, after, self._within_line)
        if ended:
            self._end_reply()
        if interrupted:
            self._screen.print(Text("-- interrupted", style="dim"))
            self._screen.print()
        return True

    def _begin(self, conversation_id: str) -> None:
        """End the reply that was printed last, and print the heading."""
        self._end_reply()
        if self._headings and conversation_id != self._heading:
            self._heading = conversation_id
            self._screen.print(Text(f"==> {name(conversation_id)} <==", style="bold"))

    def _end_reply(self) -> None:
        if self._last is not None:
            self._screen.print("\n" if self._within_line else "")
        self._last, self._within_line = None, False


def _print_changes(changes: Feed, store: HistoryStore, printer: _Printer, follow: bool, stop: _Stop) -> None:
    """Print all changes so far; with `follow`, also future ones."""
    outage = _Outage(store)
    with logging_to(outage):
        while not stop.requested:
            event = changes.get(timeout=_CHECK_INTERVAL if follow else 0)
            if event is not None:
                printer.change(event)
            elif not follow or changes.closed:
                return
            else:
                _check_reader()
                stop.idle = True  # the check waits for the server
                outage.check()
                stop.idle = False


class _Outage(logging.Handler):
    """Notices the warning that a subscription waits for the server, and reports when the server answers again."""

    def __init__(self, store: HistoryStore) -> None:
        super().__init__(logging.WARNING)
        self._store = store
        self._waiting = False

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        self._waiting = self._waiting or any(isinstance(one, BackendUnavailableError) for one in arguments)

    def check(self) -> None:
        if self._waiting:
            with suppress(BackendUnavailableError):
                self._store.list_conversations(limit=1)
                self._waiting = False
                complain("the server answers again")


def _check_reader() -> None:
    """Raises BrokenPipeError if the reader of the output has closed it. Otherwise only the next write would notice."""
    poll = select.poll()
    with suppress(OSError, ValueError, AttributeError):  # closed, as after >&-
        poll.register(sys.stdout.fileno(), 0)
    if any(state & select.POLLERR for _, state in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, "the reader of the output closed it")
