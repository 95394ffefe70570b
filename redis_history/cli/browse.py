"""`redis-history ls`, `namespaces`, `show`, `log` and `search`."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from redis_history.cli import _options
from redis_history.cli._options import Number
from redis_history.cli._output import complain, console, counted, name, one_line, put
from redis_history.cli._stores import (
    check_owner,
    connect,
    existing,
    namespaces,
    open_store,
    other_namespaces,
    owner_in,
)
from redis_history.cli._timeline import Timeline, author, describe, describe_run
from redis_history.cli.commands import FAILED, WRONG, Context, define
from redis_history.errors import CapabilityError
from redis_history.formats.json_form import to_json
from redis_history.store._sync.store import HistoryStore
from redis_history.store.search.hits import Highlight, SearchHit
from redis_history.store.search.text import searchable, shown_text
from redis_history.values import Conversation, Message, Position, Usage, events
from redis_history.values.ids import owner_text
from redis_history.values.runs import RunInfo

_ALL = 1_000_000
_LOGGED = 1000
_HEADINGS = ("ID", "TITLE", "MESSAGES", "TOKENS", "CHANGED", "USER", "AGENT")
_NARROW = 60  # characters
_AGES = ((60, "s", 1), (3600, "min", 60), (86_400, "h", 3600), (7 * 86_400, "d", 86_400))
_NO_SEARCH = """\
Name one conversation with --conversation, which works on any server. Or use a server with search, such as Redis 8:
see `redis-history doctor`"""
_SHOWN = 200  # characters of a message next to a hit


@define("ls")
@click.option("--limit", "-n", type=Number(1), default=50, help="Show at most N conversations.")
@_options.offset
@click.option("--all", "everything", is_flag=True, help="Show all conversations.")
@_options.owners
def ls_command(
    context: Context, limit: int, offset: int, everything: bool, user_id: int | str | None, agent_name: str | None
) -> None:
    """List conversations, the last changed first.

    Prints a table on a terminal. Elsewhere, prints a line for each conversation, with tabs between id, title, number of
    messages, number of tokens (estimated), time of the last change, owner and agent. Exit status 1 for an unknown
    owner.
    """
    limit = _ALL if everything else limit
    with open_store(context) as store:
        owner = owner_in(store, user_id)
        found = store.list_conversations(user_id=owner, agent_name=agent_name, limit=limit + 1, offset=offset)
        if not found:
            check_owner(store, user_id, owner)
        others = "" if found or context.json else other_namespaces(store)
    screen = console()
    if context.json:
        for one in found[:limit]:
            context.emit(to_json(one))
    elif screen.is_terminal and found:
        screen.print(_table(found[:limit], screen.width))
    else:
        for one in found[:limit]:
            click.echo("\t".join(_row(one)))
    if len(found) > limit:
        click.echo(f"There are more: --offset {offset + limit}, or --all", err=True)
    elif not found and not context.json:
        is_filtered = offset or owner is not None or agent_name is not None
        kind = "such conversations" if is_filtered else "conversations"
        click.echo(f"There are no {kind} in the namespace '{name(context.namespace)}'. {others}".rstrip(), err=True)


def _row(one: Conversation) -> list[str]:
    updated = "" if one.updated_at is None else one.updated_at.isoformat(timespec="seconds")
    owner = "" if one.user_id is None else name(owner_text(one.user_id))
    counts = [str(one.message_count), str(one.estimated_tokens)]
    return [name(one.conversation_id), one_line(one.title or ""), *counts, updated, owner, name(one.agent_name or "")]


def _table(found: Sequence[Conversation], width: int) -> Table:
    """Titles are cut before ids. A narrow terminal shows fewer columns."""
    rows = [[*_row(one)[:4], _age(one.updated_at), *_row(one)[5:]] for one in found]
    wanted = _HEADINGS if width >= _NARROW else _HEADINGS[:2]
    columns = {
        heading: cells
        for heading, *cells in zip(_HEADINGS, *rows, strict=True)
        if heading == "ID" or (any(cells) and heading in wanted)
    }
    widths = {heading: max(map(cell_len, (heading, *cells))) + 2 for heading, cells in columns.items()}
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in columns:
        if heading == "TITLE":
            table.add_column(
                heading,
                overflow="ellipsis",
                no_wrap=True,
                max_width=max(12, width - sum(widths.values()) + widths[heading]),
            )
        elif heading in ("MESSAGES", "TOKENS", "CHANGED"):
            table.add_column(heading, justify="right", no_wrap=True, style="dim" if heading == "CHANGED" else "")
        else:
            table.add_column(heading, overflow="fold", style="cyan" if heading == "ID" else "")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _age(time: datetime | None) -> str:
    """The age of a time, or its date."""
    if time is None:
        return ""
    seconds = max(0.0, (datetime.now(UTC) - time).total_seconds())
    recent = next((f"{int(seconds / size)} {unit}" for bound, unit, size in _AGES if seconds < bound), None)
    return recent or time.astimezone().strftime("%Y-%m-%d")


@define("namespaces", shared=("url", "json"))
def namespaces_command(context: Context) -> None:
    """List the namespaces of the server.

    Prints a line for each, with its number of conversations. Scans all keys of the server.
    """
    with connect(context, probe=False) as store:
        found = namespaces(store)
    for namespace, count in sorted(found.items()):
        context.say(f"{name(namespace)}\t{count}", namespace=namespace, conversations=count)
    if not found:
        click.echo("There are no namespaces.", err=True)


@define("show")
@_options.conversation
@click.option("--limit", "-n", type=Number(1), default=100, help="Show at most the newest N messages.")
@click.option("--all", "everything", is_flag=True, help="Show all messages.")
@_options.message_filters
@click.option("--archived", is_flag=True, help="Also show archived messages, which summaries replaced.")
@_options.parts_shown
def show_command(
    context: Context, conversation: str, limit: int, everything: bool, archived: bool,
    tools: bool, reasoning: bool, full: bool, **filters: Any,
) -> None:  # fmt: skip
    """Show a conversation.

    Prints the messages in order, with local times. With --json, each line is a message with all its fields.
    """
    filters = {option: value or None for option, value in filters.items()}
    first = filters["since"]
    with open_store(context) as store:
        record = existing(store, conversation)
        more = False
        if everything:
            messages = store.iter(conversation, **filters, include_archived=archived)
        else:
            found = store.get(conversation, limit=limit + 1, **filters, include_archived=archived)
            more, messages = len(found) > limit, iter(found[-limit:])
            if more and (place := found[-limit].position):
                first = Position(place.timestamp, place.sequence - 1)
        if context.json:
            for message in messages:
                context.emit(to_json(message))
        else:
            screen = console()
            _print_record(screen, record, store.get_run(conversation))
            options: dict[str, Any] = {}
            if archived:
                options["archived"] = _archive_of(store.iter(conversation, **{**filters, "since": first}))
            if record.revision > record.message_count:  # there were other changes than appends
                options["edited"] = frozenset(
                    event.message_id for event in _log(store, conversation) if isinstance(event, events.MessageUpdated)
                )
            Timeline(screen, tools=tools, reasoning=reasoning, full=full, **options).print_all(messages)
    if more:
        click.echo(f"Only the newest {limit:,} are shown: --limit N, or --all", err=True)


def _cost_of(usage: Usage) -> str:
    cost = f", cost {usage.cost:.10g}" if usage.cost else ""
    return f"used {usage.input_tokens:,} + {usage.output_tokens:,} tokens{cost}"


def _print_record(screen: Console, record: Conversation, run: RunInfo | None) -> None:
    head = Text(name(record.conversation_id), style="bold")
    if record.title:
        head.append(f"  {one_line(record.title)}", style="not bold")
    screen.print(head)
    facts = [
        counted(record.message_count, "message"),
        counted(record.estimated_tokens, "estimated token"),
        record.usage and _cost_of(record.usage),
        "" if record.user_id is None else f"user {name(owner_text(record.user_id))}",
        record.agent_name and f"agent {name(record.agent_name)}",
        record.updated_at and f"changed {record.updated_at.astimezone():%Y-%m-%d %H:%M}",
    ]
    screen.print(Text(" · ".join(fact for fact in facts if fact), style="dim"))
    if run is not None and (run.is_active or run.status != "completed"):
        screen.print(Text(describe_run(run), style="bold" if run.is_active else "dim"))
    screen.print()


def _archive_of(live: Iterator[Message]) -> Callable[[Message], bool]:
    """Returns whether a message, of those in order, is archived: it is not among the live ones, and not newer."""
    following, here = next(live, None), dict[str, Position]()

    def is_archived(message: Message) -> bool:
        nonlocal following, here
        place = message.position or Position(0, 0)
        while following is not None and following.position is not None and following.position <= place:
            here = {name: one for name, one in here.items() if one == following.position}
            here[following.id] = following.position
            following = next(live, None)
        return message.id not in here and (following is not None or place <= max(here.values(), default=place))

    return is_archived


@define("log")
@_options.conversation
@click.option("--limit", "-n", type=Number(1), default=100, help="Show at most the newest N changes.")
@click.option("--all", "everything", is_flag=True, help="Show all changes that the change log keeps.")
def log_command(context: Context, conversation: str, limit: int, everything: bool) -> None:
    """Show what changed in a conversation, and when.

    Prints a line for each change: its revision, its time, what it did, and the messages with their authors. With
    --json, each line is a change with its messages and fields as they are now.
    """
    with open_store(context) as store:
        existing(store, conversation)
        for event in deque(_log(store, conversation), maxlen=None if everything else min(limit, _ALL)):
            if context.json:
                context.emit(to_json(event) | {"changed_at": to_json(event.changed_at)})
                continue
            time = event.changed_at.astimezone().strftime("%Y-%m-%d %H:%M:%S") if event.changed_at else ""
            by = f", said to be by {name(event.by)}" if event.by else ""
            click.echo(f"{event.revision}\t{time}\t{_change(event)}{by}")


def _log(store: HistoryStore, conversation_id: str) -> Iterator[events.Event]:
    found = store.log(conversation_id, limit=_LOGGED)
    while found:
        yield from found
        found = store.log(conversation_id, after=found[-1].cursor, limit=_LOGGED)


def _change(event: events.Event) -> str:
    """A description of a change, on one line."""
    match event:
        case events.MessagesAppended():
            what = [f"{name(one.id)} by {author(one)}" for one in event.messages]
            what += [f"{name(one)} (removed since)" for one in event.gone_ids]
            what += [f"removed {name(one)} to make room" for one in event.removed_ids]
            return f"appended {', '.join(what)}"
        case events.MessageUpdated() | events.ReplyEnded():
            who = f" by {author(event.message)}" if event.message else " (removed since)"
            return (
                f"{'edited' if isinstance(event, events.MessageUpdated) else 'finished'} {name(event.message_id)}{who}"
            )
        case events.MessagesDeleted():
            return f"deleted {', '.join(map(name, event.message_ids))}"
        case events.HistoryCompacted():
            return f"replaced {counted(event.count, 'message')} by the summary {name(event.summary_id)}"
        case events.HistoryExpanded():
            return f"restored {counted(event.count, 'message')} of the summary {name(event.summary_id)}"
        case events.ConversationUpdated():  # the log does not keep the values
            return f"changed the record: {', '.join(map(name, event.fields))}"
        case events.Reset(reason="log_trimmed"):
            return "began as a fork or an import"
    return describe(event)[2]


@define("search")
@click.argument("query")
@click.option("--conversation", "-c", **_options.CONVERSATION_ID, help="Search only this conversation.")
@_options.owners
@click.option("--limit", "-n", type=Number(1), default=10, help="Show at most the best N messages.")
@_options.offset
@_options.message_filters
@click.option("--tool", "tool_names", metavar="NAME", multiple=True,
              help="Only calls and results of this tool. Repeatable.")  # fmt: skip
@click.option("--archived/--no-archived", default=True,
              help="Also search archived messages, which summaries replaced.")  # fmt: skip
@click.option("--context", "neighbors", type=Number(0, 100), default=0,
              help="Also show N messages before and after each match.")  # fmt: skip
@_options.language
def search_command(
    context: Context, query: str, conversation: str | None, user_id: int | str | None, agent_name: str | None,
    limit: int, offset: int, archived: bool, neighbors: int, language: str | None,
    **filters: Any,
) -> None:  # fmt: skip
    """Search messages by their text, best matches first.

    Finds messages with any of the words. "Words in quotes" match as a phrase, and begin* matches all words with this
    beginning. Exit status 1 if no message matches.
    """
    if conversation is not None and (user_id is not None or agent_name is not None):
        raise click.UsageError("--conversation excludes --user and --agent")
    options: dict[str, Any] = {option: value or None for option, value in filters.items()}
    options |= {"limit": limit, "offset": offset, "context": neighbors, "token_cap": None, "highlight": True}
    options["archived"] = None if archived else False
    with open_store(context, searches=language) as store:
        if conversation is None:
            try:
                owner = owner_in(store, user_id)
                hits = store.search_all(query, user_id=owner, agent_name=agent_name, **options)
            except CapabilityError as error:
                complain(str(error), _NO_SEARCH)
                raise SystemExit(WRONG) from error
        else:
            hits = store.search(conversation, query, **options)
            if not hits:
                existing(store, conversation)
    screen = console()
    for hit in hits:
        if context.json:
            context.emit(to_json(hit))
            continue
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
    head = Text.assemble((name(hit.conversation_id), "cyan"), f"  {time}  ", (author(message), "bold"))
    head.append("  archived" if hit.archived else "", style="dim")
    yield head, 0
    yield from ((_neighbor(one), 4) for one in hit.before)
    for number, fragment in enumerate(hit.highlights):
        after = " …" if number + 1 < len(hit.highlights) else ""
        yield Text("… " if number else "") + _marked(fragment) + Text(after), 2
    if not hit.highlights:
        yield Text(one_line(searchable(message), _SHOWN)), 2
    yield from ((_neighbor(one), 4) for one in hit.after)


def _neighbor(message: Message) -> Text:
    return Text(f"{author(message)}: {one_line(shown_text(message) or searchable(message), _SHOWN)}", style="dim")


def _marked(fragment: Highlight) -> Text:
    """A fragment on one line, with its terms marked."""
    text, end = Text(), 0
    flat = re.sub(r"\s", " ", fragment.text)  # keeps the length, and so the ranges
    for start, stop in fragment.ranges:
        text.append(name(flat[end:start]))
        text.append(name(flat[start:stop]), style="bold black on yellow")
        end = stop
    text.append(name(flat[end:]))
    return text
