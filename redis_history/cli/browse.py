"""`redis-history ls`, `show` and `search`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redis_history._sync.store import HistoryStore
from redis_history.cli._completion import conversation_ids
from redis_history.cli._options import Age, Id, language, message_filters, offset, parts_shown
from redis_history.cli._output import complain, console, counted, name, one_line, put
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli._timeline import Timeline, who
from redis_history.cli.commands import FAILED, WRONG, Context, define
from redis_history.errors import CapabilityError
from redis_history.json_form import to_json
from redis_history.model import Conversation, Message
from redis_history.requests import owner_of, owner_text
from redis_history.search.hits import Highlight, SearchHit
from redis_history.search.text import searchable

_ALL = 1_000_000
_HEADINGS = ("ID", "TITLE", "MESSAGES", "TOKENS", "CHANGED", "USER", "AGENT")
_NARROW = 60  # characters
_AGES = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (7 * 86_400, "d", 86_400))
_SORTS: dict[str, tuple[Callable[[Conversation], Any], bool]] = {
    "changed": (lambda one: one.updated_at.timestamp() if one.updated_at else 0.0, True),
    "created": (lambda one: one.created_at.timestamp() if one.created_at else 0.0, True),
    "messages": (lambda one: one.message_count, True),
    "tokens": (lambda one: one.tokens, True),
    "title": (lambda one: (one.title or "").casefold(), False),
}
_NO_SEARCH = """\
Name one conversation with --conversation, which works on any server. Or use a server with search, such as Redis 8:
see `redis-history doctor`"""
_SHOWN = 200  # characters of a message next to a hit
_BLANK = re.compile(r"\s")


@define("ls")
@click.option("--limit", "-n", type=click.IntRange(1), default=50, show_default=True, metavar="N",
              help="Show at most N conversations.")  # fmt: skip
@offset
@click.option("--all", "every", is_flag=True, help="Show all conversations.")
@click.option("--user", metavar="ID", help="Only conversations of this owner: 1 is the number, '\"1\"' the text.")
@click.option("--agent", metavar="NAME", help="Only conversations of this agent.")
@click.option("--title", metavar="TEXT", help="Only conversations with this text in the title, in any case.")
@click.option("--since", type=Age(), metavar="TIME",
              help="Only conversations that changed after a time, such as 2026-01-31T12:00 or 2h.")  # fmt: skip
@click.option("--sort", type=click.Choice(tuple(_SORTS)), default="changed", show_default=True,
              help="The order: the newest, largest or first in the alphabet first.")  # fmt: skip
def ls_command(
    context: Context,
    /,
    limit: int,
    offset: int,
    every: bool,
    user: str | None,
    agent: str | None,
    title: str | None,
    since: datetime | None,
    sort: str,
) -> None:
    """List conversations, the last changed first.

    Prints a table on a terminal. Elsewhere, prints a line for each conversation, with tabs between id, title, number of
    messages, number of tokens (estimated), time of the last change, owner and agent.
    """
    wanted = _ALL if every else limit
    owner = None if user is None else owner_of(user)
    chosen = title is not None or since is not None or sort != "changed"
    page = {"limit": _ALL} if chosen else {"limit": wanted + 1, "offset": offset}
    with open_store(context) as store:
        found = store.list_conversations(user_id=owner, agent_name=agent, **page)
    if chosen:  # the server keeps only the order of the last change
        key, reverse = _SORTS[sort]
        found = [
            one
            for one in sorted(found, key=key, reverse=reverse)
            if (title or "").casefold() in (one.title or "").casefold()
            and (since is None or (one.updated_at is not None and one.updated_at > since))
        ][offset : offset + wanted + 1]
    shown = found[:wanted]
    screen = console()
    if context.json:
        for one in shown:
            context.emit(to_json(one))
    elif screen.is_terminal and shown:
        screen.print(_table(shown, screen.width))
    else:
        for one in shown:
            click.echo("\t".join(_row(one)))
    if len(found) > wanted:
        click.echo(f"There are more: --offset {offset + wanted}, or --all", err=True)
    elif not shown and not context.json:
        whose = "such conversations" if chosen or user or agent or offset else "conversations"
        click.echo(f"There are no {whose} in the namespace '{name(context.namespace)}'.", err=True)


def _row(one: Conversation) -> list[str]:
    updated = "" if one.updated_at is None else one.updated_at.isoformat(timespec="seconds")
    owner = "" if one.user_id is None else name(owner_text(one.user_id))
    counts = [str(one.message_count), str(one.tokens)]
    return [name(one.conversation_id), one_line(one.title or ""), *counts, updated, owner, name(one.agent_name or "")]


def _table(found: Sequence[Conversation], width: int) -> Table:
    """Titles give way to ids; a narrow terminal shows fewer columns."""
    rows = [[*_row(one)[:4], _age(one.updated_at), *_row(one)[5:]] for one in found]
    wanted = _HEADINGS if width >= _NARROW else _HEADINGS[:2]
    columns = {
        heading: cells
        for heading, *cells in zip(_HEADINGS, *rows, strict=True)
        if heading == "ID" or (any(cells) and heading in wanted)
    }
    taken = sum(max(map(cell_len, (heading, *cells))) + 2 for heading, cells in columns.items() if heading != "TITLE")
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in columns:
        if heading == "TITLE":
            table.add_column(heading, overflow="ellipsis", no_wrap=True, max_width=max(12, width - taken))
        elif heading in ("MESSAGES", "TOKENS", "CHANGED"):
            table.add_column(heading, justify="right", no_wrap=True, style="dim" if heading == "CHANGED" else "")
        else:
            table.add_column(heading, overflow="fold", style="cyan" * (heading == "ID"))
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _age(time: datetime | None) -> str:
    """The age of a time, or its date."""
    if time is None:
        return ""
    seconds = max(0.0, (datetime.now(UTC) - time).total_seconds())
    near = next((f"{int(seconds / size)} {unit}" for bound, unit, size in _AGES if seconds < bound), None)
    return near or time.astimezone().strftime("%Y-%m-%d")


@define("show")
@click.argument("conversation", metavar="ID", type=Id(), shell_complete=conversation_ids)
@click.option("--limit", "-n", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="Show at most the newest N messages.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Show all messages.")
@message_filters
@click.option("--archived", is_flag=True, help="Also show archived messages, which summaries replaced.")
@parts_shown
def show_command(
    context: Context,
    /,
    conversation: str,
    limit: int,
    every: bool,
    archived: bool,
    tools: bool,
    reasoning: bool,
    full: bool,
    **filters: Any,
) -> None:
    """Show a conversation.

    Prints the messages in order, with local times. With --json, each line is a message with all its fields.
    """
    filters = {one: value or None for one, value in filters.items()}
    with open_store(context) as store:
        record = store.get_conversation(conversation)
        if record is None:
            no_conversation(store, conversation)
        more = False
        if every:
            messages = store.iter(conversation, include_archived=archived, **filters)
        else:
            found = store.get(conversation, limit=limit + 1, include_archived=archived, **filters)
            more, messages = len(found) > limit, iter(found[-limit:])
        if context.json:
            for message in messages:
                context.emit(to_json(message))
        else:
            screen = console()
            _head(screen, record)
            is_archived = _archived(store, conversation) if archived else None
            Timeline(screen, tools=tools, reasoning=reasoning, full=full, archived=is_archived).together(messages)
    if more:
        click.echo(f"Only the newest {limit:,} are shown: --limit N, or --all", err=True)


def _head(screen: Console, record: Conversation) -> None:
    head = Text(name(record.conversation_id), style="bold")
    if record.title:
        head.append(f"  {one_line(record.title)}", style="not bold")
    screen.print(head)
    facts = [
        counted(record.message_count, "message"),
        counted(record.tokens, "token"),
        "" if record.user_id is None else f"user {name(owner_text(record.user_id))}",
        record.agent_name and f"agent {name(record.agent_name)}",
        record.updated_at and f"changed {record.updated_at.astimezone():%Y-%m-%d %H:%M}",
    ]
    screen.print(Text(" · ".join(fact for fact in facts if fact), style="dim"))
    screen.print()


def _archived(store: HistoryStore, conversation_id: str) -> Callable[[Message], bool]:
    """A function that says whether a message is archived: not after the current summary, and not a system message."""
    oldest = next(
        (one for one in store.iter(conversation_id, batch=50) if one.is_summary or one.role != "system"), None
    )
    if oldest is None or not oldest.is_summary or oldest.position is None:
        return lambda message: False
    id_, through = oldest.id, oldest.position

    def archived(message: Message) -> bool:
        stays = message.id == id_ or (message.role == "system" and not message.is_summary)
        return not stays and message.position is not None and message.position <= through

    return archived


@define("search")
@click.argument("query")
@click.option("--conversation", "-c", metavar="ID", type=Id(), shell_complete=conversation_ids,
              help="Search only this conversation.")  # fmt: skip
@click.option("--user", metavar="ID", help="Only conversations of this owner: 1 is the number, '\"1\"' the text.")
@click.option("--agent", metavar="NAME", help="Only conversations of this agent.")
@click.option("--limit", "-n", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="Show at most the best N messages.")  # fmt: skip
@offset
@message_filters
@click.option("--tool", "tool_names", metavar="NAME", multiple=True,
              help="Only calls and results of this tool. Repeatable.")  # fmt: skip
@click.option("--archived/--no-archived", default=True,
              help="Also search archived messages, which summaries replaced.  [default: archived]")  # fmt: skip
@click.option("--only-archived", is_flag=True, help="Search only archived messages.")
@click.option("--context", "around", type=click.IntRange(0, 100), default=0, metavar="N",
              help="Also show N messages before and after each match.")  # fmt: skip
@language
def search_command(
    context: Context,
    /,
    query: str,
    conversation: str | None,
    user: str | None,
    agent: str | None,
    limit: int,
    offset: int,
    archived: bool,
    only_archived: bool,
    around: int,
    language: str | None,
    **filters: Any,
) -> None:
    """Search messages by their text, best matches first.

    Finds messages with any of the words. "Words in quotes" match as a phrase, and begin* matches all words with this
    beginning. Exit status 1 if no message matches.
    """
    if only_archived and not archived:
        raise click.UsageError("--only-archived and --no-archived exclude each other")
    if conversation is not None and (user is not None or agent is not None):
        raise click.UsageError("--conversation excludes --user and --agent")
    options: dict[str, Any] = {one: value or None for one, value in filters.items()}
    options |= {"limit": limit, "offset": offset, "context": around, "token_cap": None, "highlight": True}
    options["archived"] = True if only_archived else None if archived else False
    with open_store(context, searches=language) as store:
        if conversation is None:
            try:
                owner = None if user is None else owner_of(user)
                hits = store.search_all(query, user_id=owner, agent_name=agent, **options)
            except CapabilityError as error:
                complain(str(error), _NO_SEARCH)
                raise SystemExit(WRONG) from error
        else:
            hits = store.search(conversation, query, **options)
            if not hits and store.get_conversation(conversation) is None:
                no_conversation(store, conversation)
    if context.json:
        for hit in hits:
            context.emit(to_json(hit))
    else:
        screen = console()
        for hit in hits:
            for line, indent in _lines(hit):
                put(screen, line, indent)
            screen.print()
    if not hits:
        click.echo("Nothing was found.", err=True)
        raise SystemExit(FAILED)


def _lines(hit: SearchHit) -> Iterator[tuple[Text, int]]:
    """The lines to show for a hit, each with its indentation."""
    message = hit.message
    time = f"{message.timestamp.astimezone():%Y-%m-%d %H:%M}" if message.timestamp else ""
    head = Text.assemble((name(hit.conversation_id), "cyan"), f"  {time}  ", (who(message), "bold"))
    head.append("  archived" if hit.archived else "", style="dim")
    yield head, 0
    for other in hit.before:
        yield _neighbour(other), 4
    for number, fragment in enumerate(hit.highlights):
        after = " …" if number + 1 < len(hit.highlights) else ""
        yield Text("… " * bool(number)) + _marked(fragment) + Text(after), 2
    if not hit.highlights:
        yield Text(one_line(searchable(message), _SHOWN)), 2
    for other in hit.after:
        yield _neighbour(other), 4


def _neighbour(message: Message) -> Text:
    return Text(f"{who(message)}: {one_line(message.text or searchable(message), _SHOWN)}", style="dim")


def _marked(fragment: Highlight) -> Text:
    """A fragment on one line, with its terms marked."""
    text, end = Text(), 0
    flat = _BLANK.sub(" ", fragment.text)  # keeps the length, and so the ranges
    for start, stop in fragment.ranges:
        text.append(name(flat[end:start]))
        text.append(name(flat[start:stop]), style="bold black on yellow")
        end = stop
    text.append(name(flat[end:]))
    return text
