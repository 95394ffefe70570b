"""`redis-history search`: searches messages by their text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click
from rich.text import Text

from redis_history.cli import _options
from redis_history.cli._complete import conversation_ids
from redis_history.cli._console import console, put
from redis_history.cli._failures import complain
from redis_history.cli._options import message_filters
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli._text import name, one_line
from redis_history.cli._timeline import who
from redis_history.cli._values import Id, Moment
from redis_history.cli.commands import FAILED, WRONG, Context, define
from redis_history.errors import CapabilityError
from redis_history.json_form import to_json
from redis_history.model import Message
from redis_history.search.highlight import Highlight
from redis_history.search.hits import SearchHit
from redis_history.search.text import searchable

__all__ = ["command"]

_NO_SEARCH = """\
Name one conversation with --conversation, which works on any server. Or use a server with search, such as Redis 8:
see `redis-history doctor`"""
_SHOWN = 200
_BLANK = re.compile(r"\s")


@define("search")
@click.argument("query")
@click.option(
    "--conversation",
    "-c",
    metavar="ID",
    type=Id(),
    shell_complete=conversation_ids,
    help="Search only this conversation.",
)
@click.option("--limit", "-n", type=click.IntRange(1), default=10, show_default=True, metavar="N",
              help="Show at most the best N messages.")  # fmt: skip
@click.option("--offset", type=click.IntRange(0), default=0, metavar="N", help="Skip the first N.")
@message_filters
@click.option("--tool", "tools", metavar="NAME", multiple=True,
              help="Only calls and results of this tool. Repeatable.")  # fmt: skip
@click.option(
    "--since", type=Moment(), help="Only messages after a time, such as 2026-01-31T12:00 or 2h, or a position."
)
@click.option("--before", type=Moment(), help="Only messages before a time or a position.")
@click.option("--archived/--no-archived", default=None,
              help="Only archived messages, which summaries replaced, or none of them.  [default: both]")  # fmt: skip
@click.option("--context", "around", type=click.IntRange(0, 100), default=0, metavar="N",
              help="Also show N messages before and after each match.")  # fmt: skip
@_options.language
@click.pass_obj
def command(
    context: Context,
    /,
    query: str,
    conversation: str | None,
    roles: tuple[str, ...],
    participants: tuple[str, ...],
    tools: tuple[str, ...],
    around: int,
    language: str | None,
    **filters: Any,
) -> None:
    """Search messages by their text, best matches first.

    Finds messages with any of the words. "Words in quotes" match as a phrase, and begin* matches all words with this
    beginning. Exit status 1 if no message matches.
    """
    options: dict[str, Any] = {
        **filters,
        "roles": roles or None,
        "participant_ids": participants or None,
        "tool_names": tools or None,
        "context": around,
        "token_cap": None,
        "highlight": True,
    }
    with open_store(context, searches=language) as store:
        if conversation is None:
            try:
                hits = store.search_all(query, **options)
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
    for fragment in hit.highlights:
        yield _marked(fragment), 2
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
