"""`redis-history say`, `rename`, `delete` and `stats`."""

from __future__ import annotations

import sys
from typing import Any, get_args

import click
from rich.table import Table
from rich.text import Text

from redis_history._sync.store import HistoryStore
from redis_history.backends.redis.keys import Keyspace
from redis_history.backends.redis.search_index import read_index_info
from redis_history.cli._completion import conversation_ids
from redis_history.cli._options import Id
from redis_history.cli._output import console, counted, name
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli.commands import FAILED, Context, define
from redis_history.doctor.checks import size
from redis_history.errors import CorruptDataError
from redis_history.model import Message, Participant, Role, TextPart

_MOST = 100_000

_CONVERSATION = click.argument("conversation", metavar="ID", type=Id(), shell_complete=conversation_ids)


@define("say")
@_CONVERSATION
@click.argument("text", required=False, type=Id())
@click.option("--role", type=click.Choice(get_args(Role)), default="user", show_default=True, help="The role.")
@click.option("--as", "author", metavar="NAME", help="The author: an agent for the role assistant, else a user.")
@click.option("--message-id", metavar="ID", help="The id of the message. The same message again is stored once.")
def say_command(
    context: Context, /, conversation: str, text: str | None, role: Role, author: str | None, message_id: str | None
) -> None:
    """Append a message to a conversation.

    Without TEXT, or with -, the text is read from standard input. A conversation that does not exist is created.
    """
    if (text is None or text == "-") and sys.stdin is not None:
        text = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n")
    if not text:
        raise click.UsageError("the message is empty: give TEXT or standard input")
    kind: Any = "agent" if role == "assistant" else "user"
    given: dict[str, Any] = {} if message_id is None else {"id": message_id}
    participant = None if author is None else Participant(kind=kind, id=author)
    message = Message(role=role, parts=(TextPart(text=text),), participant=participant, **given)
    with open_store(context, searches=None) as store:
        done = store.append(conversation, message)
    fields = {"conversation_id": conversation, "id": done.message.id, "revision": done.revision}
    context.say(name(done.message.id), **fields, duplicate=done.duplicate)


@define("rename")
@_CONVERSATION
@click.argument("title", type=Id())
def rename_command(context: Context, /, conversation: str, title: str) -> None:
    """Set the title of a conversation.

    An empty title removes it.
    """
    with open_store(context) as store:
        if store.get_conversation(conversation) is None:
            no_conversation(store, conversation)
        store.update_conversation(conversation, title=title or None)
    context.say(f"{name(conversation)}: {name(title)}", conversation_id=conversation, title=title or None)


@define("delete")
@click.argument("conversations", nargs=-1, required=True, metavar="ID...", type=Id(), shell_complete=conversation_ids)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def delete_command(context: Context, /, conversations: tuple[str, ...], yes: bool) -> None:
    """Delete conversations with all their messages, also archived ones.

    Asks first; where nobody can be asked, give --yes. Exit status 1 if one did not exist.
    """
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked whether to delete: give --yes")
        shown = ", ".join(map(name, conversations[:5])) + (" …" if len(conversations) > 5 else "")
        click.confirm(f"Delete {counted(len(conversations), 'conversation')} ({shown})?", abort=True, err=True)
    missing = False
    with open_store(context, searches=None) as store:
        for identity in conversations:
            deleted = store.delete_conversation(identity)
            missing = missing or not deleted
            text = "deleted" if deleted else "there is no such conversation"
            context.say(f"{name(identity)}: {text}", conversation_id=identity, deleted=deleted)
    if missing:
        raise SystemExit(FAILED)


@define("stats")
@click.option("--limit", "-n", type=click.IntRange(0, 1000), default=10, show_default=True, metavar="N",
              help="Show the N conversations with the most messages.")  # fmt: skip
def stats_command(context: Context, /, limit: int) -> None:
    """Show how much a namespace contains, and its largest conversations.

    Bytes are those of MEMORY USAGE: of the messages, the change log, and the rest of a conversation. Archived messages
    and search documents are not in them.
    """
    with open_store(context) as store:
        found = store.list_conversations(limit=_MOST)
        largest = sorted(found, key=lambda one: one.message_count, reverse=True)[:limit]
        memory = {one.conversation_id: _memory(store, one.conversation_id) for one in largest}
        documents = _documents(store)
    totals = {
        "conversations": len(found),
        "messages": sum(one.message_count for one in found),
        "tokens": sum(one.tokens for one in found),
        "documents": documents,
    }
    rows = [
        {"conversation_id": one.conversation_id, "messages": one.message_count, **memory[one.conversation_id]}
        for one in largest
    ]
    if context.json:
        context.emit({**totals, "largest": rows})
        return
    index = "no search index" if documents is None else f"{documents:,} messages in the search index"
    click.echo(
        f"{counted(totals['conversations'] or 0, 'conversation')}, {counted(totals['messages'] or 0, 'message')}, "
        f"{counted(totals['tokens'] or 0, 'token')} (estimated), {index}"
    )
    if rows:
        table = Table("ID", box=None, pad_edge=False)
        for heading in ("MESSAGES", "CONTENT", "LOG", "OTHER"):
            table.add_column(heading, justify="right")
        for row in rows:
            sizes = ("" if row[one] is None else size(row[one]) for one in _KEYS)
            table.add_row(Text(name(row["conversation_id"])), f"{row['messages']:,}", *sizes)
        console().print(table)


_KEYS = {"message_bytes": "messages", "log_bytes": "log", "other_bytes": "state"}


def _memory(store: HistoryStore, conversation_id: str) -> dict[str, Any]:
    """Bytes by field of `_KEYS`; None if this user may not ask."""
    keys, backend = Keyspace(store.namespace).conversation(conversation_id), _backend(store)
    replies = backend.ask([[b"MEMORY", b"USAGE", getattr(keys, key), b"SAMPLES", b"50"] for key in _KEYS.values()])
    each = zip(*replies, strict=True)  # of a cluster, one node knows the key
    return {
        field: next((one for one in answers if isinstance(one, int)), None)
        for field, answers in zip(_KEYS, each, strict=True)
    }


def _documents(store: HistoryStore) -> int | None:
    [[reply], *_] = _backend(store).ask([[b"FT.INFO", Keyspace(store.namespace).index]])
    try:
        return None if isinstance(reply, Exception) else read_index_info(reply).documents
    except CorruptDataError:
        return None


def _backend(store: HistoryStore) -> Any:
    return store._backend
