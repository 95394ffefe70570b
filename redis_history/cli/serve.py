"""`redis-history serve`, the live view of a namespace, and `mcp`, a server of the Model Context Protocol."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from redis_history.cli._options import Number
from redis_history.cli._stores import connect, owner_in, search_options
from redis_history.cli.commands import INTERRUPTED, TERMINATED, Context, define
from redis_history.errors import ConfigurationError
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store.retry import RetryPolicy
from redis_history.store.urls import parse_url
from redis_history.values._validation import missing
from redis_history.values.ids import owner_of

#: Seconds for which a request waits for an unreachable server. Short, because a user is waiting.
_PATIENCE = 3.0
#: Seconds for open connections to end; then they are aborted.
_GRACE = 2
#: Milliseconds after which the system drops a client that does not acknowledge data.
_UNANSWERED = 60_000


@define("serve")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS",
              help="The address to listen on. Any but a loopback address allows access from the network.")  # fmt: skip
@click.option("--port", type=Number(0, 65535), default=8642, help="The port to listen on. 0: any free port.")
@click.option("--allow-writes", is_flag=True, help="Allow the view to change conversations.")
@click.option("--allowed-host", "hosts", multiple=True, metavar="NAME",
              help="Another host name to accept, such as that of a proxy. Repeatable.")  # fmt: skip
@click.option("--max-streams", type=Number(1), default=1000, help="Maximum number of open streams.")
@click.option("--max-streams-per-address", type=Number(1), default=100,
              help="Maximum number of open streams of one client address.")  # fmt: skip
@click.option("--secure-cookie/--no-secure-cookie", default=None,
              help="Send the cookie only over https. Default: only if the sign-in used https.")  # fmt: skip
@click.option("--price", "prices", multiple=True, metavar="MODEL=INPUT/OUTPUT",
              help="What a million tokens of a model cost, such as m-1=2.5/10, or m-1=2.5/10/0.25 with the price of "
              "cached input. '*' is for totals and other models. Repeatable.")  # fmt: skip
@click.option("--open", "show", is_flag=True, help="Open the view in the browser.")
def serve_command(
    context: Context, host: str, port: int, allow_writes: bool, hosts: tuple[str, ...], max_streams: int,
    max_streams_per_address: int, secure_cookie: bool | None, prices: tuple[str, ...], show: bool,
) -> None:  # fmt: skip
    """Show conversations in a browser, live.

    Prints the URL to open. It contains a token that gives access to all conversations of the namespace: keep it secret.
    The token is that of REDIS_HISTORY_TOKEN, or a new one each time. Runs until SIGTERM or SIGINT.
    """
    try:
        import uvicorn

        from redis_history.web import Limits, LiveView
        from redis_history.web._prices import price_of
        from redis_history.web.access import holder
        from redis_history.web.application import Invitation, application, check_token
    except ImportError as error:
        raise missing("cli,web", error) from error
    token = check_token(os.environ.get("REDIS_HISTORY_TOKEN") or secrets.token_urlsafe(24))
    priced = dict(map(price_of, prices))
    limits = Limits(streams=max_streams, streams_per_address=max_streams_per_address)

    class Server(uvicorn.Server):
        """Aborts slow connections. Leaves signals to the command, and to the view, which ends its streams."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            abort = asyncio.get_running_loop().call_later(_GRACE, self.abort)
            await super().shutdown(sockets)
            abort.cancel()

        def abort(self) -> None:
            for connection in list(self.server_state.connections):
                if connection.transport is not None:
                    connection.transport.abort()

        def stop(self) -> None:
            self.force_exit = self.should_exit  # the second signal
            self.should_exit = True

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    async def work(searching: dict[str, Any]) -> None:
        retry = RetryPolicy(deadline=_PATIENCE)
        async with AsyncHistoryStore(context.url, namespace=context.namespace, retry=retry, **searching) as store:
            address = parse_url(context.url).address
            invitation = Invitation() if show else None
            options: dict[str, Any] = {"address": address, "limits": limits, "prices": priced}
            view = LiveView(store, authorize=holder, read_only=not allow_writes, **options)
            app = application(view, token=token, hosts=(host, *hosts), secure=secure_cookie, invitation=invitation)
            server = Server(_limited(app, lifespan="off", timeout_graceful_shutdown=2 * _GRACE))
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, server.stop)
            with listening(host, port) as listener:
                base = _url(listener)
                context.say(f"{base}?token={token}", url=f"{base}?token={token}")
                if not context.json:
                    _explain(context, listener, allow_writes)
                with _opened(f"{base}?code={invitation.code}") if invitation else contextlib.nullcontext():
                    await server.serve(sockets=[listener])

    with connect(context) as first:  # reports an unreachable server immediately, and keeps the index
        asyncio.run(work(search_options(first)))


def _limited(app: Any, **options: Any) -> Any:
    """The settings of a uvicorn server for `app`, behind limits of its connections."""
    import uvicorn

    from redis_history.cli._connection_limit import BACKLOG, ConnectionLimit

    limited = ConnectionLimit(app)
    return uvicorn.Config(
        limited,
        http=limited.protocol,
        backlog=BACKLOG,
        log_level="warning",
        access_log=False,  # URLs may contain tokens
        proxy_headers=False,  # a direct client could forge its address
        server_header=False,
        ws="none",
        **options,
    )


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket. Raises ConfigurationError if the address or the port cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigurationError(f"--host {host[:80]!r} is not an address of this machine: {error}") from error
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED)
        try:
            listener.bind(address)
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


def _explain(context: Context, listener: socket.socket, allow_writes: bool) -> None:
    rights = "may change conversations" if allow_writes else "read-only"
    click.echo(f"namespace {context.namespace!r}, {rights}; ends with Ctrl-C", err=True)
    host = listener.getsockname()[0]
    if not ipaddress.ip_address(host).is_loopback:
        click.echo(
            f"Warning: listening on {host}. Anybody who reaches this machine and has the token sees all "
            "conversations, and the connection is not encrypted: use a proxy with TLS.",
            err=True,
        )


@define("mcp", shared=("url", "namespace"))
@click.option("--conversation", "conversations", metavar="ID", multiple=True,
              help="A conversation to show; repeatable.")  # fmt: skip
@click.option("--user", metavar="ID", type=owner_of,
              help="Show this user's conversations: 1 is the number or else the text, '\"1\"' the text.")  # fmt: skip
@click.option("--all", "everything", is_flag=True, help="Show the whole namespace.")
@click.option("--append-as", metavar="NAME", help="Allow appending, as the agent of this name.")
@click.option("--http", metavar="PORT", type=Number(0, 65535), help="Serve streamable HTTP on 127.0.0.1, at /mcp.")
def mcp_command(
    context: Context, conversations: tuple[str, ...], user: int | str | None, everything: bool,
    append_as: str | None, http: int | None,
) -> None:  # fmt: skip
    """Serve conversations to agents over the Model Context Protocol.

    Speaks on standard input and output; with --http, on a port of this machine, to clients that send the token of
    REDIS_HISTORY_TOKEN as a bearer token. Give --conversation, --user or --all.
    """
    if bool(conversations) + (user is not None) + everything != 1:
        raise click.UsageError("give one of --conversation, --user and --all")
    from redis_history.integrations.mcp_server import mcp_server

    async def work() -> None:
        with connect(context) as first:
            searching, owner = search_options(first), owner_in(first, user)
        async with AsyncHistoryStore(context.url, namespace=context.namespace, **searching) as store:
            server = mcp_server(
                store,
                conversation_ids=conversations or None,
                user_id=owner,
                everything=everything,
                append_as=append_as,
            )
            if http is None:
                await _serve_stdio(store, server)
            else:
                await _serve_mcp(context, server.streamable_http_app(), http)

    asyncio.run(work())


async def _serve_stdio(store: AsyncHistoryStore, server: Any) -> None:
    """Serve standard input and output, until the client closes its end, or SIGINT or SIGTERM."""
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(status: int) -> None:
        if ended.done():  # the second signal
            os._exit(status)
        ended.set_result(status)

    for number, status in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)):
        asyncio.get_running_loop().add_signal_handler(number, end, status)
    serving = asyncio.ensure_future(server.run_stdio_async())
    await asyncio.wait((serving, ended), return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        # A thread of the server waits for input. It cannot be interrupted, and the interpreter would not end before it.
        await store.aclose()
        os._exit(ended.result())
    await serving


async def _serve_mcp(context: Context, app: Any, port: int) -> None:
    import uvicorn

    from redis_history.web.application import Gate

    token = os.environ.get("REDIS_HISTORY_TOKEN")
    if not token:
        raise ConfigurationError("--http needs a token in REDIS_HISTORY_TOKEN, which clients send as a bearer token")
    config = _limited(Gate(app, token=token), lifespan="on")
    with listening("127.0.0.1", port) as listener:
        url = f"{_url(listener)}mcp"
        context.say(url, url=url)
        await uvicorn.Server(config).serve(sockets=[listener])
