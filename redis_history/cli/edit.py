"""`redis-history say`, `stop`, `rename` and `delete`."""

from __future__ import annotations

import sys
from typing import Any, get_args

import click

from redis_history.cli import _options
from redis_history.cli._output import counted, name
from redis_history.cli._stores import no_conversation, open_store
from redis_history.cli._timeline import describe_run
from redis_history.cli.commands import FAILED, Context, define
from redis_history.model import Message, Participant, Role, TextPart


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
