"""`redis-history work` and `turns`."""

from __future__ import annotations

import asyncio
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, get_args

import click

from redis_history.agents._async.turn_worker import AsyncWorker
from redis_history.agents._sync.turn_worker import Worker
from redis_history.cli import _options
from redis_history.cli._options import Number, duration
from redis_history.cli._output import counted, name
from redis_history.cli._stores import check_owner, connect, open_store, owner_in, search_options
from redis_history.cli._timeline import describe_turn
from redis_history.cli.commands import FAILED, Context, define
from redis_history.formats.json_form import to_json
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store._sync.store import HistoryStore
from redis_history.values._validation import is_coroutine_function
from redis_history.values.ids import owner_text
from redis_history.values.turns import ATTEMPTS, FIRST_WAIT, LONGEST_WAIT, LOOK_INTERVAL, Turn, TurnStatus


def _function(path: str) -> Callable[..., Any]:
    """The function package.module:function, as an import from the present directory finds it."""
    if ":" not in path:
        raise click.UsageError(f"ANSWER must be package.module:function, not {path!r}")
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 -- entries of sys.path are text
    try:
        found = pkgutil.resolve_name(path)
    except Exception as error:  # a module may raise anything when it is imported
        raise click.UsageError(f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise click.UsageError(f"{path!r} must be a function, not {found!r}")
    return found  # type: ignore[no-any-return]


@define("work")
@click.argument("answer", metavar="ANSWER")
@click.option("--agent", "agent_name", metavar="NAME", help="Answer the turns of this agent.")
@click.option("--concurrency", type=Number(1), default=10, help="How many turns to answer at once.")
@click.option("--per-user", type=Number(1), help="How many turns of one owner all workers answer at once.")
@click.option("--attempts", type=Number(1), default=ATTEMPTS, help="Park a turn after N failed attempts.")
@click.option("--first-wait", type=duration, default=f"{FIRST_WAIT:g}s", help="Pause after the first failure.")
@click.option("--longest-wait", type=duration, default=f"{LONGEST_WAIT / 60:g}m", help="Longest pause after a failure.")
@click.option("--look-interval", type=duration, default=f"{LOOK_INTERVAL:g}s", help="Time between looks when idle.")
@click.option("--grace", type=duration, default="20s",
              help="Time for running answers to end after SIGTERM or SIGINT.")  # fmt: skip
@_options.quiet
def work_command(context: Context, answer: str, quiet: bool, **options: Any) -> None:
    """Answer the turns that conversations are owed, with a function of yours.

    ANSWER is package.module:function, a coroutine function or a plain function of the run: see
    docs/how-to/workers.md. Runs until SIGTERM or SIGINT. Any number of processes may share the work.
    """
    function = _function(answer)
    with connect(context) as first:
        searching = search_options(first)
    if not quiet and not context.json:
        click.echo(f"answering in namespace {context.namespace!r} with {answer}", err=True)
    if is_coroutine_function(function):
        asyncio.run(_work(context, function, options, searching, quiet))
        return
    with HistoryStore(context.url, namespace=context.namespace, **searching) as store:
        worker = Worker(store, function, **options)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: worker.stop())
        # In a thread of its own, so that the handler of a signal interrupts no call.
        thread = threading.Thread(target=worker.run, name="redis_history-worker")
        thread.start()
        _started(context, quiet)
        while thread.is_alive():
            thread.join(0.2)


async def _work(
    context: Context, function: Callable[..., Any], options: dict[str, Any], searching: dict[str, Any], quiet: bool
) -> None:
    async with AsyncHistoryStore(context.url, namespace=context.namespace, **searching) as store:
        worker = AsyncWorker(store, function, **options)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, worker.stop)
        _started(context, quiet)
        await worker.run()


def _started(context: Context, quiet: bool) -> None:
    """From here on, SIGTERM ends it cleanly."""
    if context.json and not quiet:
        context.emit({"kind": "started", "namespace": context.namespace})


@define("turns")
@click.option("--status", type=click.Choice(get_args(TurnStatus)), help="Only turns with this status.")
@_options.owners
@click.option("--limit", "-n", type=Number(1), default=50, help="Show at most N turns.")
@click.option("--count", is_flag=True, help="Print how many conversations are owed an answer, or get one now.")
@click.option("--retry", metavar="ID", type=_options.utf8, help="Have the conversation answered now.")
@click.option("--drop", metavar="ID", type=_options.utf8, help="End the turn of the conversation without an answer.")
def turns_command(
    context: Context, status: TurnStatus | None, limit: int, count: bool, retry: str | None, drop: str | None,
    user_id: int | str | None, agent_name: str | None,
) -> None:  # fmt: skip
    """List the answers that conversations are owed, the oldest question first.

    Prints a line for each, with tabs between conversation, status, time when it is due, owner, and a description. Exit
    status 1 if there is nothing to retry or to drop, or for an unknown owner.
    """
    with open_store(context, searches=None) as store:
        if retry is not None or drop is not None:
            _change(context, store, retry, drop)
        elif count:
            from redis_history.store.operations import CountTurns

            number = store.backend.execute(CountTurns())
            context.say(str(number), turns=number)
        else:
            owner = owner_in(store, user_id)
            turns = store.list_turns(status=status, limit=limit, user_id=owner, agent_name=agent_name)
            if not turns:
                check_owner(store, user_id, owner)
            for turn in turns:
                if context.json:
                    context.emit(_shape(turn))
                else:
                    click.echo("\t".join(_row(turn)))


def _change(context: Context, store: HistoryStore, retry: str | None, drop: str | None) -> None:
    for conversation, change, done in ((retry, store.retry_turn, "owed now"), (drop, store.drop_turn, "dropped")):
        if conversation is not None:
            changed = change(conversation)
            text = done if changed else "there is no such turn, or it is running"
            context.say(f"{name(conversation)}: {text}", conversation_id=conversation, changed=changed)
            if not changed:
                raise SystemExit(FAILED)


def _row(turn: Turn) -> list[str]:
    owner = "" if turn.user_id is None else name(owner_text(turn.user_id))
    due = turn.due_at.isoformat(timespec="seconds")
    messages = counted(len(turn.message_ids), "message")
    return [name(turn.conversation_id), turn.status, due, owner, f"{describe_turn(turn)} ({messages})"]


def _shape(turn: Turn) -> dict[str, Any]:
    fields: dict[str, Any] = to_json(turn)
    del fields["messages"], fields["interrupted"]
    return fields
