"""`redis-history demo`: a replay, shown while it runs, and what to do next."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import click
from rich.text import Text

from redis_history._ids import new_token
from redis_history.backends.redis.urls import parse_url
from redis_history.cli._output import complain, console, name, one_line
from redis_history.cli._stores import check_url, open_store
from redis_history.cli._timeline import who
from redis_history.cli.commands import FAILED, TERMINATED, Context, define
from redis_history.demo.replay import SAMPLE, Replay, load
from redis_history.errors import RedisHistoryError
from redis_history.importers import ImportProblem
from redis_history.model import Message

_MAX_PROBLEMS = 5  # shown
_LINE_SECONDS = 1.0


@define("demo", shared=("url", "json"))
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH",
              help="Conversations to replay, as `import` takes them.  [default: six short ones]")  # fmt: skip
@click.option("--agents", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N",
              help="Processes that write.")  # fmt: skip
@click.option("--conversations", type=click.IntRange(1), metavar="N", help="Only the first N conversations.")
@click.option("--serve", is_flag=True, help="Then show the conversations in a page, until SIGINT or SIGTERM.")
def demo_command(context: Context, /, data: Path | None, agents: int, conversations: int | None, serve: bool) -> None:
    """Watch agents write at once, a subscriber follow, and a compressor keep the conversations short.

    Agent processes replay conversations on a real server: on the private one without --url. They repeat some appends,
    as after a lost reply. The conversations stay for a day in a namespace of their own, so that you can look at them
    afterwards. Exit status 1 if anything is missing, doubled or out of order.
    """
    if serve and find_spec("starlette") is None:
        raise click.UsageError("--serve needs the extra web: pip install 'redis_history[cli,web]'")
    if not context.json:
        click.echo(f"{agents} agent processes write. A subscriber follows. A compressor keeps conversations short.")
    where = context._replace(given_url=context.given_url or "embedded://", namespace=f"demo-{new_token()[:6]}")
    check_url(where)
    problems: list[ImportProblem] = []
    replay = Replay(where.url, where.namespace, load(data or SAMPLE, conversations, problems.append), agents)
    for problem in problems[:_MAX_PROBLEMS]:
        complain(f"left out: {problem}")
    with open_store(where) as store:
        if not context.json:
            click.echo(
                f"Replaying {len(replay.conversations):,} conversations on {name(parse_url(where.url).address)}:"
            )
        try:
            asyncio.run(_play(replay, quiet=context.json))
        except BaseException as error:
            with contextlib.suppress(RedisHistoryError):
                for conversation_id in replay.ids:
                    store.delete_conversation(conversation_id)
            if isinstance(error, asyncio.CancelledError):
                raise SystemExit(TERMINATED) from None
            raise
    _report(where, replay, serve=serve)
    if not replay.ok:
        raise SystemExit(FAILED)
    if serve:
        from redis_history.cli.serve import serve_command

        ctx = click.get_current_context()
        ctx.meta.update(url=where.url, namespace=where.namespace)
        ctx.invoke(serve_command, port=0)


async def _play(replay: Replay, *, quiet: bool) -> None:
    """Raises CancelledError at SIGTERM."""
    loop, this = asyncio.get_running_loop(), cast("asyncio.Task[None]", asyncio.current_task())
    before = signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, this.cancel)
    running = loop.create_task(replay.run())
    screen, printed = console(), time.monotonic()
    live = screen.is_terminal and not quiet
    try:
        with screen.status("") if live else contextlib.nullcontext() as status:
            while not running.done():
                await asyncio.wait([running], timeout=0.1)
                if status is not None:
                    while replay.news:
                        screen.print(_line(*replay.news.popleft()))
                    status.update(Text(_counts(replay)))
                elif not quiet and time.monotonic() - printed >= _LINE_SECONDS:
                    printed = time.monotonic()
                    click.echo(f"  {_counts(replay)}")
        await running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)


def _counts(replay: Replay) -> str:
    return (
        f"{replay.stored:,} of {replay.total:,} messages stored, {replay.delivered:,} delivered, "
        f"{replay.repeats:,} repeats ignored, {replay.summaries:,} summaries"
    )


def _line(conversation_id: str, message: Message) -> Text:
    calls = [f"calls {use.name}()" for use in message.tool_uses]
    what = one_line("; ".join(filter(None, (message.text, *calls))), 72)
    parts = (one_line(conversation_id[-20:]), "dim"), "  ", (one_line(who(message), 16), "cyan"), f"  {what}"
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _report(context: Context, replay: Replay, *, serve: bool) -> None:
    if context.json:
        names = ("ok", "total", "stored", "delivered", "repeats", "summaries", "faults")
        fields = {name: getattr(replay, name) for name in names}
        context.emit({"namespace": context.namespace, "conversations": replay.ids, **fields})
        return
    click.echo(f"  {_counts(replay)}")
    if not replay.ok:
        click.echo(f"WRONG: what was stored or delivered is not what was sent ({replay.faults:,} faults).")
        return
    url = "$REDIS_HISTORY_URL" if "@" in context.url else shlex.quote(context.url)  # no password on the screen
    program = "redis-history" if Path(sys.argv[0]).is_absolute() else shlex.quote(sys.argv[0])
    start = f"{program} --url {url} --namespace {context.namespace}"
    click.echo("Each message is stored once and was delivered once, in order. Nothing that was summarised is lost.\n")
    click.echo(f"What to do next, within a day:\n  {start} ls")
    click.echo(f"  {start} show {shlex.quote(replay.ids[0])} --archived")
    if serve:
        return
    click.echo(f"  {start} serve --open")
    if find_spec("starlette") is None:
        click.echo("  (serve needs the extra web: pip install starlette uvicorn)")
