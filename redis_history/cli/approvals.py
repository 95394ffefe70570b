"""`redis-history approvals`, `approve` and `deny`."""

from __future__ import annotations

import json

import click

from redis_history.cli import _options
from redis_history.cli._options import Number
from redis_history.cli._output import complain, name, one_line
from redis_history.cli._stores import check_owner, open_store, owner_in
from redis_history.cli.commands import FAILED, Context, define
from redis_history.errors import ApprovalNotFoundError
from redis_history.formats.json_form import to_json
from redis_history.values.approvals import Approval

_SHOWN = 200  # characters of the arguments of a call


@define("approvals")
@click.option("--limit", "-n", type=Number(1), default=50, help="Show at most N calls.")
@_options.owners
def approvals_command(context: Context, limit: int, user_id: int | str | None, agent_name: str | None) -> None:
    """List the tool calls that wait for the consent of a person, the oldest first.

    Prints a line for each call, with tabs between the id of the conversation, the id of the call, the time, and the
    tool with its arguments. `approve` and `deny` answer them. Exit status 1 for an unknown owner.
    """
    with open_store(context, searches=None) as store:
        owner = owner_in(store, user_id)
        found = store.list_approvals(user_id=owner, agent_name=agent_name, limit=limit + 1)
        if not found:
            check_owner(store, user_id, owner)
    for one in found[:limit]:
        if context.json:
            context.emit(to_json(one))
        else:
            time = one.requested_at.isoformat(timespec="seconds")
            click.echo("\t".join((name(one.conversation_id), name(one.call_id), time, _call(one))))
    if len(found) > limit:
        click.echo(f"There are more: --limit {2 * limit}", err=True)
    elif not found and not context.json:
        click.echo(f"No call waits for approval in the namespace '{name(context.namespace)}'.", err=True)


def _call(one: Approval) -> str:
    arguments = one.input if isinstance(one.input, str) else json.dumps(one.input, ensure_ascii=False, default=str)
    return one_line(f"{one.tool_name or 'a tool'} {arguments}")[:_SHOWN]


_call_id = click.argument("call", metavar="CALL", type=_options.utf8)
_by = click.option("--by", metavar="NAME", type=_options.utf8, help="Who decides.")
_reason = click.option("--reason", type=_options.utf8, help="Why: the model reads it.")


@define("approve")
@_options.conversation
@_call_id
@_by
def approve_command(context: Context, conversation: str, call: str, by: str | None) -> None:
    """Approve a tool call that waits for it.

    The first decision stands. Exit status 1 if the call was denied before, or does not wait.
    """
    _decide(context, conversation, call, True, by=by)


@define("deny")
@_options.conversation
@_call_id
@_by
@_reason
def deny_command(context: Context, conversation: str, call: str, by: str | None, reason: str | None) -> None:
    """Deny a tool call that waits for approval.

    The first decision stands. Exit status 1 if the call was approved before, or does not wait.
    """
    _decide(context, conversation, call, False, by=by, reason=reason)


def _decide(context: Context, conversation: str, call: str, approved: bool, **given: str | None) -> None:
    with open_store(context, searches=None) as store:
        try:
            done = store.decide(conversation, call, approved, **given)
        except ApprovalNotFoundError as error:
            complain(str(error))
            raise SystemExit(FAILED) from error
    before = " before" if done.duplicate else ""
    by = f" by {name(done.by)}" if done.by else ""
    reason = f": {one_line(done.reason)}" if done.reason else ""
    text = f"{name(call)}: {'approved' if done.approved else 'denied'}{before}{by}{reason}"
    context.say(text, **to_json(done))
    if done.approved is not approved:
        raise SystemExit(FAILED)
