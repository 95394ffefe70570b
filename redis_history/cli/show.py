"""`redis-history show`: shows a conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from redis_history._sync.store import HistoryStore
from redis_history.cli._complete import conversation_ids
from redis_history.cli._console import console
from redis_history.cli._options import message_filters, parts_shown
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli._text import counted, name, one_line
from redis_history.cli._timeline import Timeline
from redis_history.cli._values import Id, Moment
from redis_history.cli.commands import Context, define
from redis_history.json_form import to_json
from redis_history.model import Conversation, Message
from redis_history.requests import owner_text

__all__ = ["command"]


@define("show")
@click.argument("conversation", metavar="ID", type=Id(), shell_complete=conversation_ids)
@click.option("--limit", "-n", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="Show at most the newest N messages.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Show all messages.")
@click.option(
    "--since", type=Moment(), help="Only messages after a time, such as 2026-01-31T12:00 or 2h, or a position."
)
@click.option("--before", type=Moment(), help="Only messages before a time or a position.")
@message_filters
@click.option("--archived", is_flag=True, help="Also show archived messages, which summaries replaced.")
@parts_shown
@click.pass_obj
def command(
    context: Context,
    /,
    conversation: str,
    limit: int,
    every: bool,
    roles: tuple[str, ...],
    participants: tuple[str, ...],
    archived: bool,
    tools: bool,
    reasoning: bool,
    full: bool,
    **bounds: Any,
) -> None:
    """Show a conversation.

    Prints the messages in order, with local times. With --json, each line is a message with all its fields.
    """
    filters: dict[str, Any] = {
        **bounds,
        "roles": roles or None,
        "participant_ids": participants or None,
        "include_archived": archived,
    }
    with open_store(context) as store:
        record = store.get_conversation(conversation)
        if record is None:
            no_conversation(store, conversation)
        messages: Iterable[Message]
        more = False
        if every:
            messages = store.iter(conversation, **filters)
        else:
            found = store.get(conversation, limit=limit + 1, **filters)
            more, messages = len(found) > limit, found[-limit:]
        if context.json:
            for message in messages:
                context.emit(to_json(message))
        else:
            screen = console()
            _head(screen, record)
            summarised = _summarised(store, conversation) if archived else None
            Timeline(screen, tools=tools, reasoning=reasoning, full=full, archived=summarised).together(messages)
    if more:
        click.echo(f"Only the newest {limit:,} are shown: --limit N, or --all", err=True)


def _head(screen: Console, record: Conversation) -> None:
    head = Text(name(record.conversation_id), style="bold")
    if record.title:
        head.append(f"  {one_line(record.title)}", style="not bold")
    screen.print(head)
    updated = record.updated_at and f"changed {record.updated_at.astimezone():%Y-%m-%d %H:%M}"
    facts = [
        counted(record.message_count, "message"),
        counted(record.tokens, "token"),
        "" if record.user_id is None else f"user {name(owner_text(record.user_id))}",
        record.agent_name and f"agent {name(record.agent_name)}",
        updated,
    ]
    screen.print(Text(" · ".join(fact for fact in facts if fact), style="dim"))
    screen.print()


def _summarised(store: HistoryStore, conversation_id: str) -> Callable[[Message], bool]:
    """A function that says whether a message is archived: that is, not after the current summary, and not a system
    message."""
    oldest = (one for one in store.iter(conversation_id, batch=50) if one.is_summary or one.role != "system")
    summary = next(oldest, None)
    if summary is None or not summary.is_summary or summary.position is None:
        return lambda message: False
    id_, through = summary.id, summary.position

    def archived(message: Message) -> bool:
        stays = message.id == id_ or (message.role == "system" and not message.is_summary)
        return not stays and message.position is not None and message.position <= through

    return archived
