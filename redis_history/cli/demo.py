"""`redis-history demo`: a replay, shown while it runs, and what to do next."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import click
from rich.text import Text

from redis_history.cli._options import Number
from redis_history.cli._output import complain, console, counted, name, one_line
from redis_history.cli._stores import check_url, connect
from redis_history.cli._timeline import author
from redis_history.cli.commands import FAILED, TERMINATED, Context, define
from redis_history.cli.replay import SAMPLE, Replay, load
from redis_history.cli.serve import listening, serve_command
from redis_history.integrations.importers import ImportProblem
from redis_history.store.urls import parse_url
from redis_history.values import Message
from redis_history.values.ids import new_token

_MAX_PROBLEMS = 5  # shown
_LINE_SECONDS = 1.0


@define("demo", shared=("url", "json"))
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH",
              help="Conversations to replay, as `import` takes them.  [default: six short ones]")  # fmt: skip
@click.option("--agents", type=Number(1, 64), default=4, help="Processes that write.")
@click.option("--conversations", type=Number(1), help="Only the first N conversations.")
@click.option("--serve", is_flag=True, help="Then show the conversations in a page, until SIGINT or SIGTERM.")
@click.option("--port", type=Number(0, 65535), help="The port of the page, with --serve.  [default: any free port]")
def demo_command(
    context: Context, data: Path | None, agents: int, conversations: int | None, serve: bool, port: int | None
) -> None:
    """Watch agents write concurrently, a subscriber follow, and a compressor keep them short.

    Agent processes replay conversations on a real server. They repeat some appends,
    as after a lost reply. The conversations stay for a day in a namespace of their own, so that you can look at them
    afterwards. Exit status 1 if anything is missing, duplicated or out of order.
    """
    if serve and find_spec("starlette") is None:
        raise click.UsageError("--serve needs the extra web: pip install 'redis_history[cli,web]'")
    if port is not None and not serve:
        raise click.UsageError("--port needs --serve")
    if port:
        with listening("127.0.0.1", port):  # a port that is in use is reported before the replay
            pass
    context = context._replace(given_url=context.url, namespace=f"demo-{new_token()[:6]}")
    check_url(context)
    problems: list[ImportProblem] = []
    replay = Replay(context.url, context.namespace, load(data or SAMPLE, conversations, problems.append), agents)
    for problem in problems[:_MAX_PROBLEMS]:
        complain(f"left out: {problem}")
    with connect(context):
        if not context.json:
            address, number = name(parse_url(context.url).address), len(replay.conversations)
            click.echo(
                f"Replaying {counted(number, 'conversation')} on {address} with {counted(replay.agents, 'agent')}."
            )
            click.echo("A subscriber follows. A compressor keeps the conversations short.")
        try:
            asyncio.run(_play(replay, quiet=context.json))
        except asyncio.CancelledError:
            raise SystemExit(TERMINATED) from None
    _report(context, replay, serve=serve)
    if not replay.ok:
        raise SystemExit(FAILED)
    if serve:
        ctx = click.get_current_context()
        ctx.meta.update(url=context.url, namespace=context.namespace)
        ctx.invoke(serve_command, port=port or 0)


async def _play(replay: Replay, *, quiet: bool) -> None:
    """Raises CancelledError at SIGTERM."""
    task = cast("asyncio.Task[None]", asyncio.current_task())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await (replay.run() if quiet else replay.run(_display(replay)))


async def _display(replay: Replay) -> None:
    screen = console()
    if not screen.is_terminal:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            click.echo(f"  {_counts(replay)}")
    with screen.status("") as status:
        while True:
            try:
                await asyncio.sleep(0.1)
            finally:  # also at the end
                while replay.news:
                    screen.print(_line(*replay.news.popleft()))
            status.update(Text(_counts(replay)))


def _counts(replay: Replay) -> str:
    return (
        f"{replay.stored:,} of {replay.total:,} messages stored, {replay.delivered:,} delivered, "
        f"{replay.repeats:,} repeats ignored, {replay.summaries:,} summaries"
    )


def _line(conversation_id: str, message: Message) -> Text:
    calls = [f"calls {use.name}()" for use in message.tool_uses]
    content = one_line("; ".join(filter(None, (message.text, *calls))), 72)
    parts = (one_line(conversation_id[-20:]), "dim"), "  ", (one_line(author(message), 16), "cyan"), f"  {content}"
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _report(context: Context, replay: Replay, *, serve: bool) -> None:
    if context.json:
        counts = ("ok", "total", "stored", "delivered", "repeats", "summaries", "faults")
        fields = {count: getattr(replay, count) for count in counts}
        context.emit({"namespace": context.namespace, "conversations": replay.ids, **fields})
        return
    click.echo(f"  {_counts(replay)}")
    if not replay.ok:
        click.echo(f"WRONG: what was stored or delivered is not what was sent ({replay.faults:,} faults).")
        return
    url = "$REDIS_HISTORY_URL" if "@" in context.url else shlex.quote(context.url)  # no password on the screen
    program = "redis-history" if Path(sys.argv[0]).is_absolute() else shlex.quote(sys.argv[0])
    start = f"{program} --url {url} --namespace {context.namespace}"
    click.echo("Each message is stored once and was delivered once, in order. Nothing that was summarized is lost.\n")
    click.echo(f"What to do next, within a day:\n  {start} ls")
    click.echo(f"  {start} show {shlex.quote(replay.ids[0])} --archived")
    if not serve:
        click.echo(f"  {start} serve --open")
        if find_spec("starlette") is None:
            click.echo("  (serve needs the extra web: pip install starlette uvicorn)")
