"""`redis-history tail`: shows the newest messages of a conversation, and follows changes."""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import orjson
from rich.text import Text

from redis_history._sync.store import HistoryStore
from redis_history._sync.subscription import Feed
from redis_history.cli._completion import conversation_ids
from redis_history.cli._options import Id, parts_shown
from redis_history.cli._output import complain, console, name, put
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli._timeline import Timeline, describe
from redis_history.cli.commands import Context, define, discard_output
from redis_history.errors import BackendUnavailableError
from redis_history.events import ConversationDeleted, Event, ReplyEnded, ReplyGrew
from redis_history.json_form import to_json
from redis_history.model import Message
from redis_history.operations import Snapshot

_CHECK_INTERVAL = 1.0  # seconds between checks of the reader of the output and of the server

_ENDING = (signal.SIGINT, signal.SIGTERM)


@define("tail")
@click.argument("conversation", metavar="[ID]", required=False, type=Id(), shell_complete=conversation_ids)
@click.option("--all", "every", is_flag=True, help="All conversations of the namespace, including future ones.")
@click.option("--limit", "-n", type=click.IntRange(0, 10_000), default=10, show_default=True, metavar="N",
              help="Start with the newest N messages.")  # fmt: skip
@click.option("--follow", "-f", is_flag=True, help="Show changes as they happen, until SIGINT or SIGTERM.")
@click.option("--after", metavar="CURSOR",
              help="Start with the changes after this cursor. --json prints the cursor of each change.")  # fmt: skip
@click.option("--resume", type=click.File("rb"), metavar="FILE",
              help="Start after the last changes in FILE, the output of an earlier tail --json.")  # fmt: skip
@parts_shown
def tail_command(
    context: Context,
    /,
    conversation: str | None,
    every: bool,
    limit: int,
    follow: bool,
    after: str | None,
    resume: Any,
    **shown: bool,
) -> None:
    """Show the newest messages of a conversation, and follow changes.

    With --follow, shows every change by any process as it happens, and continues after a restart of the server. Reports
    changes that are missing because the change log was trimmed or the server lost them. With --json, each line is a
    change with its cursor. To continue later, pass the last cursor to --after, or the output file to --resume.
    """
    if every == (conversation is not None):
        raise click.UsageError("name one conversation, or give --all")
    if after and (every or resume):
        raise click.UsageError("--after needs one conversation, and excludes --resume")
    if every and not (follow or resume):
        raise click.UsageError(
            "--all needs --follow or --resume; `redis-history ls` lists the last changed conversations"
        )
    cursors = _cursors(resume) if resume else {}
    stop = _Stop()
    show = _Shown(context, shown, stop, headings=every)
    with open_store(context) as store, stop:
        if conversation is None:
            with store.subscribe_all(after=cursors or None) as all_changes:
                _show_all(all_changes, store, show, follow)
            return
        start = after or cursors.get(conversation)
        if start is None:
            if not follow and store.get_conversation(conversation) is None:
                no_conversation(store, conversation)
            snapshot = store.snapshot(conversation, limit=max(limit, 1))
            if follow and not snapshot.cursor.revision:
                complain(f"there is no conversation '{name(conversation)}' yet; waiting for it")
            show.beginning(conversation, snapshot, limit)
            start = str(snapshot.cursor)
            if not follow:
                return
        with store.subscribe(conversation, after=start) as changes:
            _show_all(changes, store, show, follow)
        if not follow and store.get_conversation(conversation) is None:
            no_conversation(store, conversation)


def _cursors(lines: Any) -> dict[str, str]:
    """The last cursor of each conversation whose last change is not its deletion."""
    found: dict[str, str] = {}
    for line in lines:
        try:
            said = orjson.loads(line)
            identity, cursor, event = said["conversation_id"], said["cursor"], said["event"]
        except (ValueError, TypeError, KeyError):
            continue  # an incomplete line, or other output
        if event == ConversationDeleted.__struct_config__.tag:
            found.pop(identity, None)
        else:
            found[identity] = cursor
    return found


class _Stop:
    """A context that SIGINT or SIGTERM ends silently. The change being shown is finished first, so that no line is cut;
    a second signal interrupts it, in case the output blocks."""

    class _Stopped(BaseException):
        pass

    def __init__(self) -> None:
        self._busy = self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._handle) for number in _ENDING}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        return kind is self._Stopped

    def _handle(self, *_: Any) -> None:
        if self._busy and not self._asked:
            self._asked = True
            return
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)
        if self._busy:
            discard_output()  # otherwise the exit would wait for the rest of the output
        raise self._Stopped

    @contextmanager
    def later(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._asked:
            raise self._Stopped


class _Shown:
    """Shows changes. `headings`: print the conversation's id above its changes."""

    def __init__(self, context: Context, shown: dict[str, Any], stop: _Stop, *, headings: bool) -> None:
        self._context = context
        self._stop = stop
        self._screen = console()
        self._timeline = Timeline(self._screen, **shown)
        self._headings = headings
        self._above: str | None = None
        self._replies: dict[tuple[str, str], Message] = {}  # that are being written, as shown
        self._whole: deque[tuple[str, str]] = deque(maxlen=1000)  # shown, but perhaps as replies that had ended already
        self._reply: tuple[str, str] | None = None  # the one that was shown last
        self._amid = False  # whether its last line is not ended

    def beginning(self, conversation_id: str, snapshot: Snapshot, limit: int) -> None:
        """Show the newest `limit` messages, and with JSON the cursor after them."""
        messages = snapshot.messages[-limit:] if limit else []
        with self._stop.later():
            if not self._context.json:
                self._timeline.together(messages)
                self._begin(conversation_id, messages)
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
        with self._stop.later():
            if self._context.json:
                self._context.emit(to_json(event))
                return
            if isinstance(event, ReplyGrew | ReplyEnded) and self._grow(event):
                return
            self._head(event.conversation_id)
            change = describe(event)
            for message in change.messages:
                if message.status == "streaming":
                    self._timeline.head(message, "writing")
                else:
                    self._timeline.one(message, note=change.note)
                    self._whole.append((event.conversation_id, message.id))
            self._begin(event.conversation_id, change.messages)
            if change.messages and change.messages[-1].status == "streaming":
                self._reply = event.conversation_id, change.messages[-1].id
            if change.words:
                put(self._screen, Text(change.words, style="dim"))
                self._screen.print()

    def _begin(self, conversation_id: str, messages: Iterable[Message]) -> None:
        self._replies.update({(conversation_id, one.id): one for one in messages if one.status == "streaming"})

    def _grow(self, event: ReplyGrew | ReplyEnded) -> bool:
        """Show what a reply has more. False if nothing of it was shown, or it is not there any more."""
        reply = event.conversation_id, event.message_id
        if reply in self._whole:
            return True
        before, ended = self._replies.pop(reply, None), isinstance(event, ReplyEnded)
        after = event.message if isinstance(event, ReplyEnded) else before and event.applied_to(before)
        if before is None or after is None:
            return False
        if not ended:
            self._replies[reply] = after
        interrupted = after.status == "interrupted"
        if after.parts == before.parts and self._reply != reply and not interrupted:
            return True
        if self._reply != reply:
            self._head(event.conversation_id)
            self._timeline.head(before, "continued")
            self._reply = reply
        self._amid = self._timeline.grow(before, after, self._amid)
        if not ended:
            return True
        self._leave()
        if interrupted:
            self._screen.print(Text("-- interrupted", style="dim"))
            self._screen.print()
        return True

    def _leave(self) -> None:
        """End the lines of the reply that was shown last."""
        if self._reply is not None:
            if self._amid:
                self._screen.print()
            self._screen.print()
        self._reply, self._amid = None, False

    def _head(self, conversation_id: str) -> None:
        self._leave()
        if self._headings and conversation_id != self._above:
            self._above = conversation_id
            self._screen.print(Text(f"==> {name(conversation_id)} <==", style="bold"))


def _show_all(changes: Feed, store: HistoryStore, show: _Shown, follow: bool) -> None:
    """Show all changes so far; with `follow`, also future ones."""
    logger, outage = logging.getLogger("redis_history"), _Outage(store)
    logger.addHandler(outage)
    try:
        while True:
            event = changes.get(timeout=_CHECK_INTERVAL if follow else 0)
            if event is not None:
                show.change(event)
            elif not follow or changes.closed:
                return
            else:
                _check_reader()
                outage.check()
    finally:
        logger.removeHandler(outage)


class _Outage(logging.Handler):
    """Notices the warning that a subscription waits for the server, and reports when the server answers again."""

    def __init__(self, store: HistoryStore) -> None:
        super().__init__(logging.WARNING)
        self._store = store
        self._waits = False

    def emit(self, record: logging.LogRecord) -> None:
        arguments = record.args if isinstance(record.args, tuple) else ()
        self._waits = self._waits or any(isinstance(one, BackendUnavailableError) for one in arguments)

    def check(self) -> None:
        if self._waits:
            try:
                self._store.list_conversations(limit=1)
            except BackendUnavailableError:
                return
            self._waits = False
            complain("the server answers again")


def _check_reader() -> None:
    """Raises BrokenPipeError if the reader of the output has closed it. Otherwise only the next write would notice."""
    try:
        output = sys.stdout.fileno()
        if not stat.S_ISFIFO(os.fstat(output).st_mode):
            return
    except (OSError, ValueError, AttributeError):  # closed, as after >&-
        return
    poll = select.poll()
    poll.register(output, 0)
    if any(state & select.POLLERR for _, state in poll.poll(0)):
        raise BrokenPipeError(errno.EPIPE, "the reader of the output closed it")
