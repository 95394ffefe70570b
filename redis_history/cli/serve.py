"""`redis-history serve`: the live view of a namespace in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator
from typing import Any

import click

from redis_history._async.store import AsyncHistoryStore
from redis_history.backends.redis.failures import RetryPolicy
from redis_history.backends.redis.urls import parse_url
from redis_history.cli._stores import open_store, search_options
from redis_history.cli.commands import WRONG, Context, define
from redis_history.errors import ConfigurationError

__all__ = ["command"]

#: Seconds for which a question waits for a server that is away: somebody looks at the page meanwhile.
_PATIENCE = 3.0
#: Seconds that open connections have to end; then they are cut.
_GRACE = 2
#: Milliseconds after which the system gives up a client that has gone without a word, or takes nothing.
_UNANSWERED = 60_000


@define("serve")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Where to listen. Any but a loopback address lets others in over the network.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8642, show_default=True, help="0: any that is free.")
@click.option("--token", envvar="REDIS_HISTORY_TOKEN", show_envvar=True, metavar="TOKEN",
              help="What opens the view, at least 16 characters. If not given, a new one each time.")  # fmt: skip
@click.option("--allow-writes", is_flag=True, help="Let the view change conversations too.")
@click.option("--allowed-host", "hosts", multiple=True, metavar="NAME",
              help="Another name under which it is reached, such as that of a proxy. Repeatable.")  # fmt: skip
@click.option("--max-streams", type=click.IntRange(1), default=1000, show_default=True, metavar="N",
              help="Open streams in all.")  # fmt: skip
@click.option("--max-streams-per-address", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="Open streams of one client address.")  # fmt: skip
@click.option("--open", "show", is_flag=True, help="Open the browser.")
@click.pass_obj
def command(
    context: Context,
    /,
    host: str,
    port: int,
    token: str | None,
    allow_writes: bool,
    hosts: tuple[str, ...],
    max_streams: int,
    max_streams_per_address: int,
    show: bool,
) -> None:
    """Show conversations in a browser, live.

    Prints the address to open, which has a token in it: who has it may read everything in the namespace. Runs until
    SIGTERM or SIGINT.
    """
    try:
        import uvicorn

        from redis_history.web._view import Limits, View
        from redis_history.web.application import application, check_token
    except ImportError as error:
        click.echo(
            f"redis-history: serve needs more packages ({error}): pip install 'redis_history[cli,web]'", err=True
        )
        sys.exit(WRONG)
    token = check_token(token or secrets.token_urlsafe(24))
    limits = Limits(streams=max_streams, streams_per_address=max_streams_per_address)

    class Server(uvicorn.Server):
        """Ends the streams first, which would go on for ever; signals are the command's."""

        view: View

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await self.view.aclose()
            late = asyncio.get_running_loop().call_later(_GRACE, self.give_up)
            await super().shutdown(sockets)
            late.cancel()

        def give_up(self) -> None:
            for connection in list(self.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    async def work(searching: dict[str, Any]) -> None:
        retry = RetryPolicy(deadline=_PATIENCE)
        async with AsyncHistoryStore(context.url, namespace=context.namespace, retry=retry, **searching) as store:
            address = parse_url(context.url).address
            view = View(store, authorize=None, read_only=not allow_writes, address=address, limits=limits)
            config: Any = uvicorn.Config(
                application(view, token=token, hosts=(host, *hosts)),
                log_level="warning",
                access_log=False,  # addresses have tokens in them
                proxy_headers=False,  # whoever reaches it directly could say to be anybody
                server_header=False,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=2 * _GRACE,
            )
            server = Server(config)
            server.view = view
            loop = asyncio.get_running_loop()

            def end() -> None:
                server.force_exit = server.should_exit
                server.should_exit = True

            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end)
            with _listening(host, port) as listener:
                url = _url(listener, token)
                context.say(f"{url}", url=url)
                if not context.json:
                    _explain(context, host, allow_writes)
                if show:
                    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
                await server.serve(sockets=[listener])

    with open_store(context) as first:  # a server that cannot be reached is told at once, and an index stays as it is
        asyncio.run(work(search_options(first)))


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens. Raises ConfigurationError, which says what to do."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigurationError(f"--host {host[:80]!r} is no address of this machine: {error}") from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED)
        try:
            listener.bind(where)
            listener.listen(1024)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on port {port} of {host}: {error.strerror}; choose another with --port, or 0 for any"
            ) from error
        yield listener


def _url(listener: socket.socket, token: str) -> str:
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "localhost"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}"


def _explain(context: Context, host: str, allow_writes: bool) -> None:
    what = "may change conversations" if allow_writes else "read-only"
    click.echo(f"namespace {context.namespace!r}, {what}; ends with Ctrl-C", err=True)
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        click.echo(
            f"Warning: it listens on {host}. Who can reach this machine and has the token sees all conversations, and "
            "what is sent is not encrypted: put a proxy with TLS before it.",
            err=True,
        )
