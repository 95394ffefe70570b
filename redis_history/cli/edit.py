"""`redis-history say`, `stop`, `rename`, `fork`, `delete` and `erase`."""

from __future__ import annotations

import sys
from typing import Any, get_args

import click

from redis_history.cli import _options
from redis_history.cli._output import complain, counted, name, progress
from redis_history.cli._stores import existing, no_such_owner, open_store, owner_in
from redis_history.cli._timeline import describe_run
from redis_history.cli.commands import FAILED, Context, define
from redis_history.values import Conversation, Message, Participant, Role, TextPart
from redis_history.values.ids import owner_of, owner_text


@define("say")
@_options.conversation
@click.argument("text", required=False, type=_options.utf8)
@click.option("--role", type=click.Choice(get_args(Role)), default="user", help="The role.")
@click.option("--as", "author", metavar="NAME", help="The author: an agent for the role assistant, else a user.")
@click.option("--message-id", metavar="ID", help="The id of the message. The same message again is stored once.")
@click.option("--ask", is_flag=True, help="Ask for an answer, which a worker gives: see `redis-history work`.")
@click.option("--agent", metavar="NAME", help="With --ask: the agent that is asked.")
def say_command(
    context: Context, conversation: str, text: str | None, role: Role, author: str | None, message_id: str | None,
    ask: bool, agent: str | None,
) -> None:  # fmt: skip
    """Append a message to a conversation.

    Without TEXT, or with -, the text is read from standard input. A conversation that does not exist is created.
    """
    if text is None or text == "-":
        text = sys.stdin.buffer.read().decode(errors="replace").rstrip("\n")
    if not text:
        raise click.UsageError("the message is empty: give TEXT or standard input")
    if agent is not None and not ask:
        raise click.UsageError("--agent needs --ask")
    given: dict[str, Any] = {} if message_id is None else {"id": message_id}
    if author is not None:
        given["participant"] = Participant(kind="agent" if role == "assistant" else "user", id=author)
    with open_store(context, searches=None) as store:
        message = Message(role=role, parts=(TextPart(text=text),), **given)
        done = store.ask(conversation, message, agent_name=agent) if ask else store.append(conversation, message)
    fields = {"conversation_id": conversation, "id": done.message.id, "revision": done.revision}
    context.say(name(done.message.id), **fields, duplicate=done.duplicate)


@define("stop")
@_options.conversation
@click.option("--reason", help="Why: the agent and `show` say it.")
def stop_command(context: Context, conversation: str, reason: str | None) -> None:
    """Stop the agent that works on a conversation.

    The agent sees the request immediately, and ends its answer as "stopped". Exit status 1 if no agent is at work.
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
        existing(store, conversation)
        store.update_conversation(conversation, title=title or None)
    context.say(f"{name(conversation)}: {name(title)}", conversation_id=conversation, title=title or None)


@define("fork")
@_options.conversation
@click.argument("new_id", required=False, metavar="[NEW_ID]", type=_options.utf8)
@click.option("--through", metavar="ID", type=_options.utf8, help="The last message of the copy.")
def fork_command(context: Context, conversation: str, new_id: str | None, through: str | None) -> None:
    """Copy a conversation, up to a message if wanted.

    Prints the id of the copy, which has the messages of one moment, also archived ones, and the same record.
    """
    with open_store(context, lasting=True, searches=None) as store:
        existing(store, conversation)
        made = store.fork(conversation, new_id, through=through)
    context.say(name(made.conversation_id), conversation_id=made.conversation_id, message_count=made.message_count)


@define("delete")
@click.argument("conversations", nargs=-1, required=True, **_options.CONVERSATION_ID | {"metavar": "ID..."})
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
def delete_command(context: Context, conversations: tuple[str, ...], yes: bool) -> None:
    """Delete conversations with all their messages, including archived ones.

    Asks for confirmation, which needs a terminal or --yes. Exit status 1 if a conversation does not exist.
    """
    shown = ", ".join(map(name, conversations[:5])) + (" …" if len(conversations) > 5 else "")
    _confirm(yes, f"Delete {counted(len(conversations), 'conversation')} ({shown})?")
    missing = False
    with open_store(context, searches=None) as store:
        for conversation_id in conversations:
            deleted = store.delete_conversation(conversation_id)
            missing = missing or not deleted
            text = "deleted" if deleted else "there is no such conversation"
            context.say(f"{name(conversation_id)}: {text}", conversation_id=conversation_id, deleted=deleted)
    if missing:
        raise SystemExit(FAILED)


def _confirm(yes: bool, question: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("cannot ask for confirmation without a terminal: give --yes")
    click.confirm(question, abort=True, err=True)


@define("erase")
@click.option("--user", "user_id", metavar="ID", type=owner_of, required=True,
              help="The owner of the conversations: 1 is the number or else the text, '\"1\"' the text.")  # fmt: skip
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@_options.quiet
def erase_command(context: Context, user_id: int | str, yes: bool, quiet: bool) -> None:
    """Delete everything that a user owns.

    Deletes all conversations of the user with every copy of their content, also those that the user gets in the
    meantime. Asks for confirmation, which needs a terminal or --yes. After an interruption, the same command continues.
    With --json, prints each deleted conversation. Exit status 1 for an unknown owner.
    """
    with open_store(context, lasting=True, searches=None) as store:
        owner = owner_in(store, user_id)
        assert owner is not None  # noqa: S101 -- the option is required
        who, total = name(owner_text(owner)), store.count_conversations(user_id=owner)
        if not total and not yes:
            complain(no_such_owner(store, user_id))
            raise SystemExit(FAILED)
        _confirm(yes, f"Delete {counted(total, 'conversation')} of the user {who}?")
        done = messages = 0
        with progress("erasing", context, quiet=quiet) as update:

            def show(one: Conversation) -> None:
                nonlocal done, messages
                done, messages = done + 1, messages + one.message_count
                update(done, max(done, total), counted(messages, "message"))
                if context.json:
                    kind = {"kind": "erased", "conversation_id": one.conversation_id}
                    context.emit(kind | {"message_count": one.message_count})

            store.erase_user(owner, on_progress=show)  # also without conversations: unfinished forks may be left
        if not done:
            complain(no_such_owner(store, user_id))
            raise SystemExit(FAILED)
        if isinstance(owner, int) and (others := store.count_conversations(user_id=str(owner))):
            text = f"the owner {name(owner_text(str(owner)))}, a text, still has {counted(others, 'conversation')}"
            click.echo(text, err=True)
    text = f"{who}: {counted(done, 'conversation')} with {counted(messages, 'message')} erased"
    context.say(text, kind="ended", user_id=owner, conversations=done, messages=messages)
