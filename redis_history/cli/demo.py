"""`redis-history demo`: the demo, shown at a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

import click

from redis_history.cli._failures import tell
from redis_history.cli.commands import Context, define
from redis_history.demo.cli import main
from redis_history.demo.screen import PlainScreen, Row

__all__ = ["command"]

_MOST_AGENTS = 64


@define("demo", shared=("url", "json"))
@click.option("--data", metavar="PATH", help="Transcripts to replay, as `import` takes them.  [default: a sample]")
@click.option("--agents", type=click.IntRange(1, _MOST_AGENTS), default=4, show_default=True, metavar="N",
              help="Processes that write.")  # fmt: skip
@click.option("--conversations", type=click.IntRange(1), metavar="N", help="Only the first N of the transcripts.")
@click.option("--seed", type=int, default=1, show_default=True, metavar="N",
              help="Who sends what, and what is repeated.")  # fmt: skip
@click.pass_obj
def command(context: Context, /, **options: str | int | None) -> None:
    """Watch many agents write at once, and check what became of it.

    Agent processes replay transcripts into shared conversations, a subscriber follows, a compressor puts summaries in
    place of what is old. An agent and the compressor are killed, the subscriber's connection is cut, and messages are
    sent twice. Then all that was stored and told is compared with what was sent. Without --url this happens on the
    private server. What it stores is removed. Exit status 1 if anything is missing, doubled, changed, torn or out of
    order.
    """
    arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
    if context.given_url is not None:
        arguments.append(f"--url={context.given_url}")
    if not context.json:
        raise SystemExit(main(arguments, tell=tell))
    with contextlib.redirect_stdout(sys.stderr):
        screen = _Quiet(0)
        status = main(arguments, make_screen=lambda total: screen, tell=tell)
    if screen.rows:
        context.emit(screen.told())
    raise SystemExit(status)


class _Quiet(PlainScreen):
    """Keeps the table at the end."""

    rows: Sequence[Row] = ()
    title = ""

    def note(self, text: str) -> None:
        pass

    def refresh(self) -> None:
        pass

    def table(self, title: str, rows: Sequence[Row]) -> None:
        self.title, self.rows = title, rows

    def told(self) -> dict[str, object]:
        rows = [{"name": name, "value": value, "ok": ok} for name, value, ok in self.rows]
        return {"ok": all(ok is not False for _, _, ok in self.rows), "title": self.title, "rows": rows}
