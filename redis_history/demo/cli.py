"""`python -m redis_history.demo [--data PATH] [--agents N] [--conversations N] [--url URL] [--seed N]`."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from redis.exceptions import RedisError

from redis_history.demo.checks import Findings, check
from redis_history.demo.compaction_checks import check_compactions, originals_of
from redis_history.demo.outcome import Outcome, RunError
from redis_history.demo.plan import SAMPLE, Plan, load, make_plan
from redis_history.demo.run import run
from redis_history.demo.screen import Row, Screen, open_screen
from redis_history.demo.server import Server, reach
from redis_history.errors import BackendError, RedisHistoryError
from redis_history.importers import ImportProblem

__all__ = ["main"]

_MOST_AGENTS = 64
_TOLD = 5  # problems of a file


class _Terminated(KeyboardInterrupt):
    """SIGTERM: it ends as by Ctrl-C, but for the exit status."""


def _told(error: RedisHistoryError) -> int:
    print(f"demo: {error}", file=sys.stderr)
    if isinstance(error, RunError):
        return 1
    return 3 if isinstance(error, BackendError) else 2


def main(
    arguments: Sequence[str] | None = None,
    *,
    make_screen: Callable[[int], Screen] = open_screen,
    tell: Callable[[RedisHistoryError], int] = _told,
) -> int:
    """Run the demo. The exit status: 0 all is right, 1 a check failed, 2 wrong input, 3 no server or one that refuses,
    130 interrupted, 143 ended by SIGTERM.

    `make_screen` makes what shows it, from the number of messages; `tell` tells of an error, and gives the status.
    """
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _terminated)
    problems: list[ImportProblem] = []
    try:
        transcripts = load(options.data or SAMPLE, options.conversations, problems.append)
        plan = make_plan(transcripts, options.agents, options.seed)
        with reach(options.url) as server:
            return _show(plan, server, problems, make_screen)
    except RedisHistoryError as error:
        return tell(error)
    except KeyboardInterrupt as error:
        print("\ndemo: interrupted; everything it started has ended, its keys are removed", file=sys.stderr)
        return 143 if isinstance(error, _Terminated) else 130


def _show(plan: Plan, server: Server, problems: Sequence[ImportProblem], make_screen: Callable[[int], Screen]) -> int:
    print(
        f"{len(plan.shares)} agents replay {len(plan.transcripts):,} conversations, {plan.messages:,} messages, "
        f"from {plan.transcripts[0].format} into {server.address}\n"
        f"a compressor summarises the older part of those with more than {plan.bounds.max_entries:,} messages",
        flush=True,
    )
    for problem in problems[:_TOLD]:
        print(f"! left out: {problem}", flush=True)
    names = [transcript.conversation_id for transcript in plan.transcripts]
    try:
        with make_screen(plan.messages) as screen:
            outcome = run(plan, server, screen)
            findings = Findings()
            for transcript in plan.transcripts:
                name = transcript.conversation_id
                heard, revision = outcome.events.get(name, []), outcome.revisions[name]
                everything = server.store.get(name, include_archived=True)
                check(findings, plan, transcript, originals_of(everything), heard, revision)
                check_compactions(findings, name, plan.bounds, server.store.get(name), everything, heard)
            return _table(plan, outcome, findings, len(problems), screen)
    except BackendError as error:
        raise RunError(f"the server failed on the way: {error}") from error
    finally:
        try:
            server.clean(names)
        except (RedisHistoryError, RedisError) as error:
            print(f"demo: keys of namespace {server.namespace} may be left: {error}", file=sys.stderr)


def _table(plan: Plan, outcome: Outcome, found: Findings, left_out: int, screen: Screen) -> int:
    total = plan.messages
    equal = f"{found.equal:,}"
    if found.of_form:
        equal += f" ({found.equal_form:,} of {found.of_form:,} also in the provider's form)"
    milliseconds = sorted(1000 * second for second in outcome.seconds)
    paced = " (slowed down to be seen)" if plan.pause else ""
    cut = str(outcome.cut) if outcome.not_cut is None else f"0, {outcome.not_cut}"
    rows: list[Row] = [
        ("conversations", f"{len(plan.transcripts):,}", None),
        ("messages sent", f"{total:,}", None),
        ("messages stored", f"{found.stored:,}", found.stored == total),
        ("read back equal", equal, found.equal == total and found.equal_form == found.of_form),
        (
            "retries ignored",
            f"{outcome.ignored:,} of {outcome.ignored + outcome.doubled:,}",
            outcome.doubled == 0 and outcome.ignored > 0,
        ),
        ("duplicates", f"{found.duplicates + outcome.doubled:,}", found.duplicates + outcome.doubled == 0),
        ("events delivered", f"{found.events:,} with {found.delivered:,} messages", found.delivered == total),
        ("gaps", f"{found.gaps:,}", found.gaps == 0),
        ("order violations", f"{found.order_violations:,}", found.order_violations == 0),
        (
            "conversations compacted",
            f"{found.compacted:,} of {plan.too_long:,} of more than {plan.bounds.max_entries:,} messages"
            + f" ({found.held:,} cannot be shorter)" * bool(found.held),
            found.too_long == outcome.too_long == 0,
        ),
        ("messages archived", f"{found.archived:,} by {found.summaries:,} summaries", found.compacted_wrongly == 0),
        (
            "results torn from calls",
            f"{found.torn:,} ({found.late_results:,} came when their calls had left)",
            found.torn == 0,
        ),
        ("agents killed and restarted", f"{outcome.killed}", outcome.killed == 1),
        (
            "compressors killed and replaced",
            f"{outcome.compressors_killed}",
            outcome.compressors_killed == 1 or not found.compacted,
        ),
        ("subscriber connections cut", cut, outcome.cut > 0 or outcome.not_cut is not None),
        ("throughput", f"{total / max(outcome.elapsed, 1e-9):,.0f} messages/s{paced}", None),
        ("append p50 / p99", f"{_at(milliseconds, 0.5):.2f} / {_at(milliseconds, 0.99):.2f} ms", None),
    ]
    if left_out:
        rows.append(("records left out of the file", f"{left_out:,}", None))
    failed = [name for name, _, good in rows if good is False]
    screen.table("All is as it must be" if not failed else f"WRONG: {', '.join(failed)}", rows)
    if outcome.too_long and outcome.compressor_error is not None:
        print(f"! the compressor: {outcome.compressor_error}")
    for problem in found.problems:
        print(f"! {problem}")
    return 1 if failed or found.problems else 0


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def _terminated(signum: int, frame: object) -> None:
    raise _Terminated


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="redis_history.demo",
        description="Many agent processes replay transcripts into shared conversations, a subscriber follows, and a "
        "compressor keeps them short; everything is then checked.",
    )
    parser.add_argument("--data", type=Path, metavar="PATH", help="transcripts, .json or .jsonl, also .gz (a sample)")
    parser.add_argument("--agents", type=_number(_MOST_AGENTS), default=4, metavar="N", help="processes (4)")
    parser.add_argument("--conversations", type=_number(None), metavar="N", help="only the first N of them (all)")
    parser.add_argument("--url", default="embedded://", help="the server (embedded://, a private one)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="who sends what, and what is repeated (1)")
    return parser


def _number(most: int | None) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text) if text.lstrip("-").isdecimal() else 0
        if value < 1 or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1" + (f" to {most}" if most else ""))
        return value

    return number
