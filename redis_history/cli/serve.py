"""`redis-history serve`: serves the live view of a namespace."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from redis_history._async.store import AsyncHistoryStore
from redis_history.backends.redis.urls import parse_url
from redis_history.cli._stores import open_store, search_options
from redis_history.cli.commands import WRONG, Context, define
from redis_history.errors import ConfigurationError
from redis_history.retry import RetryPolicy

#: Seconds for which a request waits for an unreachable server. Short, because a user is waiting.
_PATIENCE = 3.0
#: Seconds for open connections to end; then they are aborted.
_GRACE = 2
#: Milliseconds after which the system drops a client that does not acknowledge data.
_UNANSWERED = 60_000


@define("serve")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="The address to listen on. Any but a loopback address allows access from the network.")  # fmt: skip
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8642,
    show_default=True,
    help="The port to listen on. 0: any free port.",
)
@click.option("--allow-writes", is_flag=True, help="Allow the view to change conversations.")
@click.option("--allowed-host", "hosts", multiple=True, metavar="NAME",
              help="Another host name to accept, such as that of a proxy. Repeatable.")  # fmt: skip
@click.option("--max-streams", type=click.IntRange(1), default=1000, show_default=True, metavar="N",
              help="Maximum number of open streams.")  # fmt: skip
@click.option("--max-streams-per-address", type=click.IntRange(1), default=100, show_default=True, metavar="N",
              help="Maximum number of open streams of one client address.")  # fmt: skip
@click.option("--secure-cookie/--no-secure-cookie", default=None,
              help="Send the cookie only over https. Default: only if the sign-in used https.")  # fmt: skip
@click.option("--open", "show", is_flag=True, help="Open the view in the browser.")
def serve_command(
    context: Context,
    /,
    host: str,
    port: int,
    allow_writes: bool,
    hosts: tuple[str, ...],
    max_streams: int,
    max_streams_per_address: int,
    secure_cookie: bool | None,
    show: bool,
) -> None:
    """Show conversations in a browser, live.

    Prints the URL to open. It contains a token that gives access to everything in the namespace: keep it secret. The
    token is that of REDIS_HISTORY_TOKEN, or a new one each time. Runs until SIGTERM or SIGINT.
    """
    try:
        import uvicorn

        from redis_history.web import Limits, LiveView
        from redis_history.web.access import holder
        from redis_history.web.application import Invitation, application, check_token
    except ImportError as error:
        click.echo(
            f"redis-history: serve needs more packages ({error}): pip install 'redis_history[cli,web]'", err=True
        )
        sys.exit(WRONG)
    token = check_token(os.environ.get("REDIS_HISTORY_TOKEN") or secrets.token_urlsafe(24))
    limits = Limits(streams=max_streams, streams_per_address=max_streams_per_address)

    class Server(uvicorn.Server):
        """Ends the streams first, which would never end by themselves. Leaves signals to the command."""

        view: LiveView

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
            invitation = Invitation() if show else None
            view = LiveView(store, authorize=holder, read_only=not allow_writes, address=address, limits=limits)
            config: Any = uvicorn.Config(
                application(view, token=token, hosts=(host, *hosts), secure=secure_cookie, invitation=invitation),
                log_level="warning",
                access_log=False,  # URLs may contain tokens
                proxy_headers=False,  # a direct client could forge its address
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
            with listening(host, port) as listener:
                base = _url(listener)
                url = f"{base}?token={token}"
                context.say(url, url=url)
                if not context.json:
                    _explain(context, host, allow_writes)
                with _opened(f"{base}?code={invitation.code}") if invitation else contextlib.nullcontext():
                    await server.serve(sockets=[listener])

    with open_store(context) as first:  # reports an unreachable server at once, and keeps the index
        asyncio.run(work(search_options(first)))


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket. Raises ConfigurationError if the address or the port cannot be used."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigurationError(f"--host {host[:80]!r} is not an address of this machine: {error}") from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED)
        try:
            listener.bind(where)
            listener.listen(1024)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on port {port} of {host}: {error.strerror}; choose another --port, or 0 for any"
            ) from error
        yield listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "localhost"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@contextlib.contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open a URL in the browser, via a private file: other users can see the arguments of processes."""
    with tempfile.TemporaryDirectory(prefix="redis_history-") as folder:
        page = Path(folder, "open.html")
        page.touch(0o600)
        page.write_text(
            "<!doctype html><html lang=en><meta charset=utf-8><title>redis_history</title>"
            f"<meta name=referrer content=no-referrer><meta http-equiv=refresh content='0;url={url}'></html>"
        )
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
        yield


def _explain(context: Context, host: str, allow_writes: bool) -> None:
    what = "may change conversations" if allow_writes else "read-only"
    click.echo(f"namespace {context.namespace!r}, {what}; ends with Ctrl-C", err=True)
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        click.echo(
            f"Warning: listening on {host}. Anybody who reaches this machine and has the token sees all "
            "conversations, and the connection is not encrypted: use a proxy with TLS.",
            err=True,
        )
