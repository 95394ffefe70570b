"""Ids of conversations for shell completion."""

from __future__ import annotations

import os
from typing import Any

import click
from click.shell_completion import CompletionItem

__all__ = ["conversation_ids"]

_MOST = 100


def conversation_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest conversations whose ids begin with `incomplete`.

    No completions, and no error, if the server does not answer at once. Never starts a server."""
    from redis_history._sync.store import HistoryStore
    from redis_history.backends.redis.urls import embedded_server, parse_url
    from redis_history.cli.commands import DEFAULT_URL, given_behind
    from redis_history.embedded import status
    from redis_history.errors import RedisHistoryError
    from redis_history.retry import RetryPolicy

    given: dict[str, Any] = ctx.find_root().params
    url = given_behind(ctx, "url") or given.get("url") or os.environ.get("REDIS_HISTORY_URL") or DEFAULT_URL
    namespace = given_behind(ctx, "namespace") or given.get("namespace")
    namespace = namespace or os.environ.get("REDIS_HISTORY_NAMESPACE") or "default"
    if url.startswith("memory:"):
        return []
    if url.startswith(("redis://", "rediss://", "unix://")) and "socket_" not in url:
        url += ("&" if "?" in url else "?") + "socket_connect_timeout=0.5&socket_timeout=0.5"
    try:
        target = parse_url(url)
        if target.scheme == "embedded":
            server = status(embedded_server(target).path)
            if not server.running:
                return []
            url = server.url  # the URL of its socket, which starts no server
        with HistoryStore(url, namespace=namespace, retry=RetryPolicy(deadline=0), search="off") as store:
            found = store.list_conversations(limit=_MOST)
    except (RedisHistoryError, OSError):
        return []
    return [
        CompletionItem(one.conversation_id, help=(one.title or "") if (one.title or "").isprintable() else "")
        for one in found
        if one.conversation_id.startswith(incomplete) and one.conversation_id.isprintable()
    ]
