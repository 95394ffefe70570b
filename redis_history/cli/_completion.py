"""`redis-history completion`: completion of commands, options and ids of conversations, by click."""

from __future__ import annotations

from contextlib import closing

import click
from click.shell_completion import CompletionItem, get_completion_class

from redis_history.cli.commands import Context, cli, define

_MOST = 100


@define("completion", shared=())
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion_command(context: Context, /, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: eval "$(redis-history completion bash)"     in ~/.bashrc
    zsh:  eval "$(redis-history completion zsh)"      in ~/.zshrc
    fish: redis-history completion fish > ~/.config/fish/completions/redis-history.fish

    It completes commands, options and the ids of conversations.
    """
    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 -- click.Choice allows only these shells
    click.echo(made(cli, {}, "redis-history", "_REDIS_HISTORY_COMPLETE").source())


def conversation_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest conversations whose ids begin with `incomplete`.

    No completions, and no error, if the server does not answer at once. Never starts a server."""
    from redis_history._sync.store import HistoryStore
    from redis_history.backends.redis.urls import embedded_server, parse_url
    from redis_history.embedded import status
    from redis_history.errors import RedisHistoryError
    from redis_history.retry import RetryPolicy

    context = Context.of(ctx)
    url = context.url
    if url.startswith(("redis://", "rediss://", "unix://")) and "socket_" not in url:
        url += ("&" if "?" in url else "?") + "socket_connect_timeout=0.5&socket_timeout=0.5"
    try:
        target = parse_url(url)
        if target.scheme == "embedded":
            server = status(embedded_server(target).path)
            if not server.running:
                return []
            url = server.url  # the URL of its socket, which starts no server
        store = HistoryStore(url, namespace=context.namespace, retry=RetryPolicy(deadline=0), search="off")
        with closing(store):
            found = store.list_conversations(limit=_MOST)
    except (RedisHistoryError, OSError):
        return []
    return [
        CompletionItem(one.conversation_id, help=(one.title or "") if (one.title or "").isprintable() else "")
        for one in found
        if one.conversation_id.startswith(incomplete) and one.conversation_id.isprintable()
    ]
