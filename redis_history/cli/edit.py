"""`redis-history say`, `rename`, `delete` and `stats`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, get_args

import click
from rich.table import Table
from rich.text import Text

from redis_history._sync.store import HistoryStore
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.search_index import read_index_info
from redis_history.cli import _options
from redis_history.cli._options import Number
from redis_history.cli._output import console, counted, name
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli._timeline import describe_run
from redis_history.cli.commands import FAILED, Context, define
from redis_history.doctor.checks import size
from redis_history.errors import CorruptDataError
from redis_history.model import Message, Participant, Role, TextPart

_ALL = 100_000


@define("say")
@_options.conversation
@click.argument("text", required=False, type=_options.utf8)
@click.option("--role", type=click.Choice(get_args(Role)), default="user", help="The role.")
@click.option("--as", "author", metavar="NAME", help="The author: an agent for the role assistant, else a user.")
@click.option("--message-id", metavar="ID", help="The id of the message. The same message again is stored once.")
def say_command(
    context: Context, conversation: str, text: str | None, role: Role, author: str | None, message_id: str | None
) -> None:
    """Append a message to a conversation.

    Without TEXT, or with -, the text is read from standard input. A conversation that does not exist is created.
    """
    if (text is None or text == "-") and sys.stdin is not None:
        text = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n")
    if not text:
        raise click.UsageError("the message is empty: give TEXT or standard input")
    given: dict[str, Any] = {} if message_id is None else {"id": message_id}
    if author is not None:
        given["participant"] = Participant(kind="agent" if role == "assistant" else "user", id=author)
    with open_store(context, searches=None) as store:
        done = store.append(conversation, Message(role=role, parts=(TextPart(text=text),), **given))
    fields = {"conversation_id": conversation, "id": done.message.id, "revision": done.revision}
    context.say(name(done.message.id), **fields, duplicate=done.duplicate)


@define("stop")
@_options.conversation
@click.option("--reason", help="Why: the agent and `show` say it.")
def stop_command(context: Context, conversation: str, reason: str | None) -> None:
    """Stop the agent that works on a conversation.

    The agent sees the request at once, and ends its answer as "stopped". Exit status 1 if no agent is at work.
    """
    with open_store(context, searches=None) as store:
        stopping = store.stop_run(conversation, reason=reason)
        run = store.get_run(conversation)
    text = describe_run(run) if run is not None and stopping else "no agent is at work"
    context.say(f"{name(conversation)}: {text}", conversation_id=conversation, stopping=stopping)
    if not stopping:
        raise SystemExit(FAILED)


@define("rename")
@_options.conversation
@click.argument("title", type=_options.utf8)
def rename_command(context: Context, conversation: str, title: str) -> None:
    """Set the title of a conversation.

    An empty title removes it.
    """
    with open_store(context) as store:
        if store.get_conversation(conversation) is None:
            no_conversation(store, conversation)
        store.update_conversation(conversation, title=title or None)
    context.say(f"{name(conversation)}: {name(title)}", conversation_id=conversation, title=title or None)


@define("delete")
@click.argument("conversations", nargs=-1, required=True, **_options.CONVERSATION_ID | {"metavar": "ID..."})
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def delete_command(context: Context, conversations: tuple[str, ...], yes: bool) -> None:
    """Delete conversations with all their messages, including archived ones.

    Asks for confirmation, which needs a terminal or --yes. Exit status 1 if a conversation does not exist.
    """
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError("cannot ask for confirmation without a terminal: give --yes")
        shown = ", ".join(map(name, conversations[:5])) + (" …" if len(conversations) > 5 else "")
        click.confirm(f"Delete {counted(len(conversations), 'conversation')} ({shown})?", abort=True, err=True)
    missing = False
    with open_store(context, searches=None) as store:
        for conversation_id in conversations:
            deleted = store.delete_conversation(conversation_id)
            missing = missing or not deleted
            text = "deleted" if deleted else "there is no such conversation"
            context.say(f"{name(conversation_id)}: {text}", conversation_id=conversation_id, deleted=deleted)
    if missing:
        raise SystemExit(FAILED)


@define("stats")
@click.option("--limit", "-n", type=Number(0, 1000), default=10,
              help="Show the N conversations with the most messages.")  # fmt: skip
def stats_command(context: Context, limit: int) -> None:
    """Show how much a namespace contains, and its largest conversations.

    Sizes are those of MEMORY USAGE, for the messages, the change log and the rest of a conversation, without
    archived messages and search documents.
    """
    with open_store(context) as store:
        found = store.list_conversations(limit=_ALL)
        largest = sorted(found, key=lambda one: one.message_count, reverse=True)[:limit]
        rows: list[dict[str, Any]] = [
            {
                "conversation_id": one.conversation_id,
                "messages": one.message_count,
                **_memory(store, one.conversation_id),
            }
            for one in largest
        ]
        documents = _documents(store)
    conversations, messages = len(found), sum(one.message_count for one in found)
    tokens = sum(one.tokens for one in found)
    index = "no search index" if documents is None else f"{documents:,} messages in the search index"
    context.say(
        f"{counted(conversations, 'conversation')}, {counted(messages, 'message')}, "
        f"{counted(tokens, 'token')} (estimated), {index}",
        conversations=conversations, messages=messages, tokens=tokens, documents=documents, largest=rows,
    )  # fmt: skip
    if rows and not context.json:
        table = Table("ID", box=None, pad_edge=False)
        for heading in ("MESSAGES", "CONTENT", "LOG", "OTHER"):
            table.add_column(heading, justify="right")
        for conversation_id, count, *sizes in (row.values() for row in rows):
            table.add_row(
                Text(name(conversation_id)), f"{count:,}", *("" if one is None else size(one) for one in sizes)
            )
        console().print(table)


def _memory(store: HistoryStore, conversation_id: str) -> dict[str, int | None]:
    """Bytes of a conversation's keys; None if this user may not ask."""
    keys, backend = Keyspace(store.namespace).conversation(conversation_id), _backend(store)
    fields = {"message_bytes": keys.messages, "log_bytes": keys.log, "other_bytes": keys.state}
    nodes = backend.ask([[b"MEMORY", b"USAGE", key, b"SAMPLES", b"50"] for key in fields.values()])
    return {
        field: next((one for one in replies if isinstance(one, int)), None)  # of a cluster, one node has the key
        for field, replies in zip(fields, zip(*nodes, strict=True), strict=True)
    }


def _documents(store: HistoryStore) -> int | None:
    """The number of messages in the search index, if there is one."""
    parts = Keyspace(store.namespace).index_parts(cluster=store.capabilities.mode == "cluster")
    counts = []
    for replies in _backend(store).ask([[b"FT.INFO", part.name] for part in parts]):  # of each node
        with suppress(CorruptDataError):
            counts += [read_index_info(one).documents for one in replies if not isinstance(one, Exception)]
    return sum(counts) if counts else None


def _backend(store: HistoryStore) -> Any:
    return store.backend
