"""`redis-history tail`: shows the newest messages of a conversation, and follows changes."""

from __future__ import annotations

import errno
import select
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click
from rich.text import Text

from redis_history.cli import _options
from redis_history.cli._options import Number
from redis_history.cli._output import complain, console, name, put
from redis_history.cli._stores import existing, open_store
from redis_history.cli._timeline import Timeline, describe
from redis_history.cli.commands import Context, define
from redis_history.formats.json_form import to_json
from redis_history.store._sync.subscription import Feed
from redis_history.store.operations import Snapshot
from redis_history.values import Message
from redis_history.values.events import Event, ReplyEnded, ReplyGrew

_CHECK_INTERVAL = 0.2  # seconds between checks of signals and of the reader of the output


@define("tail")
@click.argument("conversation", required=False, **_options.CONVERSATION_ID | {"metavar": "[ID]"})
@click.option("--all", "everything", is_flag=True, help="All conversations of the namespace, including future ones.")
@click.option("--limit", "-n", type=Number(0, 10_000), default=10, help="Start with the newest N messages.")
@click.option("--follow", "-f", is_flag=True, help="Show changes as they happen, until SIGINT or SIGTERM.")
@click.option("--after", metavar="CURSOR",
              help="Start with the changes after this cursor. --json prints the cursor of each change.")  # fmt: skip
@_options.parts_shown
def tail_command(
    context: Context, conversation: str | None, everything: bool, limit: int, follow: bool, after: str | None,
    **parts_shown: Any,
) -> None:  # fmt: skip
    """Show the newest messages of a conversation, and follow changes.

    With --follow, shows every change by any process as it happens, and continues after a restart of the server. Reports
    changes that are missing because the change log was trimmed or the server lost them. With --json, each line is a
    change with its cursor. To continue later, pass the last cursor to --after.
    """
    if everything == (conversation is not None):
        raise click.UsageError("name one conversation, or give --all")
    if everything and (after or not follow):
        raise click.UsageError("--all needs --follow, and excludes --after")
    printer = _Printer(context, Timeline(console(), **parts_shown), headings=everything)
    with open_store(context) as store, _stopping() as stopped:
        if conversation is None:
            with store.subscribe_all() as all_changes:
                _print_changes(all_changes, printer, follow, stopped)
            return
        start = after
        if start is None:
            if not follow:
                existing(store, conversation)
            snapshot = store.snapshot(conversation, limit=max(limit, 1))
            if follow and not snapshot.cursor.revision:
                complain(f"there is no conversation '{name(conversation)}' yet; waiting for it")
            printer.snapshot(conversation, snapshot, limit)
            start = str(snapshot.cursor)
            if not follow:
                return
        with store.subscribe(conversation, after=start) as changes:
            _print_changes(changes, printer, follow, stopped)
        if not follow:
            existing(store, conversation)


@contextmanager
def _stopping() -> Iterator[Callable[[], bool]]:
    """Yields whether SIGINT or SIGTERM has arrived. So no line is cut. A second signal kills the process, because its
    output may block."""
    arrived: list[int] = []

    def note(number: int, _: Any) -> None:
        arrived.append(number)
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(arrived)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def _print_changes(changes: Feed, printer: _Printer, follow: bool, stopped: Callable[[], bool]) -> None:
    """Print all changes so far; with `follow`, also future ones."""
    while not stopped():
        event = changes.get(timeout=_CHECK_INTERVAL if follow else 0)
        if event is not None:
            printer.change(event)
        elif not follow or changes.closed:
            return
        else:
            _check_reader()


def _check_reader() -> None:
    """Raises BrokenPipeError if the reader of the output has closed it. Otherwise only the next write would notice."""
    poll = select.poll()
    with suppress(OSError, ValueError, AttributeError):  # closed, as after >&-
        poll.register(sys.stdout.fileno(), 0)
    if any(state & select.POLLERR for _, state in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, "the reader of the output closed it")
