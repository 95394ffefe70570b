"""`redis-history mcp`: a server of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from redis_history._async.store import AsyncHistoryStore
from redis_history.cli._stores import open_store, search_options
from redis_history.cli.commands import WRONG, Context, define
from redis_history.errors import ConfigurationError
from redis_history.requests import owner_of


@define("mcp", shared=("url", "namespace"))
@click.option(
    "--conversation", "conversations", metavar="ID", multiple=True, help="A conversation to show; repeatable."
)
@click.option("--user", metavar="ID", help="Show the conversations of this user: 1 is the number, '\"1\"' the text.")
@click.option("--all", "everything", is_flag=True, help="Show the whole namespace.")
@click.option("--append-as", metavar="NAME", help="Allow appending, as the agent of this name.")
@click.option(
    "--http", metavar="PORT", type=click.IntRange(0, 65535), help="Serve streamable HTTP on 127.0.0.1, at /mcp."
)
def mcp_command(
    context: Context,
    /,
    conversations: tuple[str, ...],
    user: str | None,
    everything: bool,
    append_as: str | None,
    http: int | None,
) -> None:
    """Serve conversations to agents over the Model Context Protocol.

    Speaks on standard input and output; with --http, on a port of this machine, to clients that send the token of
    REDIS_HISTORY_TOKEN as a bearer token. Give --conversation, --user or --all.
    """
    if bool(conversations) + (user is not None) + everything != 1:
        raise click.UsageError("give one of --conversation, --user and --all")
    try:
        from redis_history.integrations.mcp_server import mcp_server
    except ImportError as error:
        click.echo(f"redis-history: {error}", err=True)
        sys.exit(WRONG)

    async def work() -> None:
        with open_store(context) as first:
            searching = search_options(first)
        async with AsyncHistoryStore(context.url, namespace=context.namespace, **searching) as store:
            server = mcp_server(
                store,
                conversation_ids=conversations or None,
                user_id=None if user is None else owner_of(user),
                everything=everything,
                append_as=append_as,
            )
            if http is None:
                await server.run_stdio_async()
            else:
                await _serve(context, server.streamable_http_app(), http)

    asyncio.run(work())


async def _serve(context: Context, app: object, port: int) -> None:
    import uvicorn

    from redis_history.cli.serve import listening
    from redis_history.web.application import Gate, check_token

    token = os.environ.get("REDIS_HISTORY_TOKEN")
    if not token:
        raise ConfigurationError("--http needs a token in REDIS_HISTORY_TOKEN, which clients send as a bearer token")
    gate = Gate(app, token=check_token(token), hosts=())  # type: ignore[arg-type]
    config = uvicorn.Config(gate, log_level="warning", access_log=False, lifespan="on")
    with listening("127.0.0.1", port) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        context.say(url, url=url)
        await uvicorn.Server(config).serve(sockets=[listener])
