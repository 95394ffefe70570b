"""One run: the processes, the accidents that happen to them, and what they report."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from redis_history.demo.agent import AgentJob, Did, Failed, Ready, run_agent
from redis_history.demo.compressing import Compressed, CompressJob, Finished, run_compressor
from redis_history.demo.outcome import Outcome, RunError
from redis_history.demo.plan import Plan
from redis_history.demo.processes import Child, Children
from redis_history.demo.screen import Screen
from redis_history.demo.server import Server
from redis_history.demo.watcher import Saw, Told, Until, WatchJob, run_watcher

__all__ = ["run"]

_KILL_AFTER = 0.3  # of the victim's steps
_STOP_AT = 0.6  # of them: further it does not come before it is killed
_CUT_AFTER = 0.2  # of all messages
_PATIENCE = 60.0  # seconds without any sign of life
_TICK = 0.1


def run(plan: Plan, server: Server, screen: Screen) -> Outcome:
    """Carry out the plan. Raises RunError if a process fails or nothing happens any more."""
    with Children() as children:
        return _Run(plan, server, screen, children).run()


class _Run:
    def __init__(self, plan: Plan, server: Server, screen: Screen, children: Children) -> None:
        self._plan = plan
        self._server = server
        self._screen = screen
        self._children = children
        self._log_length = max(1000, 2 * plan.longest)
        self._out = Outcome()
        self._ready: set[Child] = set()
        self._agents: dict[Child, int] = {}
        self._compressor: Child | None = None
        self._compressing = self._agents_done = self._finished = self._told = False
        # The busiest agent is the one that falls.
        self._victim_number = max(range(len(plan.shares)), key=lambda n: len(plan.shares[n]))
        self._victim: Child | None = None
        self._victim_steps = 0

    def run(self) -> Outcome:
        names = tuple(transcript.conversation_id for transcript in self._plan.transcripts)
        job = WatchJob(self._server.watcher_url, self._server.namespace, self._log_length, names)
        watcher = self._children.start("subscriber", run_watcher, job)
        self._start_compressor()
        for number in range(len(self._plan.shares)):
            self._start_agent(number)
        self._wait(lambda: self._ready >= {watcher, self._compressor, *self._agents})
        began = time.monotonic()
        for agent in self._agents:
            agent.send("start")
        self._wait(lambda: not self._agents)
        self._out.elapsed = time.monotonic() - began
        self._agents_done = True
        self._dismiss_compressor()
        self._wait(lambda: self._finished and self._compressor is None)
        for name in names:
            self._out.revisions[name] = self._server.store.snapshot(name, limit=1).cursor.revision
        watcher.send(Until(self._out.revisions))
        if not self._wait(lambda: self._told, patience=_PATIENCE / 2, must=False):
            watcher.send("enough")  # what it was not told by now counts as a gap
            self._wait(lambda: self._told)
        return self._out

    def _start_agent(self, number: int, *, second_life: bool = False) -> None:
        steps = self._plan.shares[number]
        stop_at = None
        if number == self._victim_number and not second_life and steps:
            stop_at = max(1, int(len(steps) * _STOP_AT))
        job = AgentJob(
            number,
            self._server.url,
            self._server.namespace,
            self._log_length,
            steps,
            # Starting over, it has much to catch up with.
            self._plan.pause / 3 if second_life else self._plan.pause,
            stop_at,
        )
        child = self._children.start(f"agent {number + 1}", run_agent, job)
        self._agents[child] = number
        if stop_at is not None:
            self._victim = child

    def _start_compressor(self) -> None:
        job = CompressJob(self._server.url, self._server.namespace, self._log_length, self._plan.bounds)
        self._compressor = self._children.start("compressor", run_compressor, job)

    def _dismiss_compressor(self) -> None:
        """Tell it that no more messages will come, when that is so."""
        if self._agents_done and self._compressor is not None:
            self._compressor.send("enough")

    def _wait(self, until: Callable[[], bool], *, patience: float = _PATIENCE, must: bool = True) -> bool:
        """Handle what comes in until a condition holds; False if it does not, and `must` not."""
        alive = time.monotonic()
        while not until():
            for child, word in self._children.hear(_TICK):
                alive = time.monotonic()
                self._handle(child, word)
            self._accidents()
            self._screen.refresh()
            if time.monotonic() - alive > patience:
                if must:
                    raise RunError(f"nothing happened for {patience:.0f} seconds")
                return False
        return True

    def _handle(self, child: Child, word: Any) -> None:
        match word:
            case Ready():
                self._ready.add(child)
                if self._out.killed and child in self._agents:
                    child.send("start")  # the one that was restarted
            case Did():
                self._did(child, word)
            case Saw():
                self._out.seen_messages += word.messages
                self._screen.delivered(self._out.seen_messages, word.last)
            case Told():
                self._out.events = word.events
                self._told = True
            case Compressed():
                self._compressing = self._compressing or word.kind == "started"
                self._out.compressor_error = word.error or self._out.compressor_error
            case Finished():
                self._out.too_long, self._finished = word.left, True
            case Failed():
                raise RunError(word.reason)
            case None:
                self._ended(child)

    def _did(self, child: Child, word: Did) -> None:
        self._out.stored += word.stored
        self._out.ignored += word.ignored
        self._out.doubled += word.doubled
        self._out.seconds.extend(word.seconds)
        # What the victim stored just before its end was never reported, but it was delivered.
        self._screen.stored(max(self._out.stored, self._out.seen_messages), self._out.ignored)
        if child is self._victim:
            self._victim_steps += word.steps

    def _ended(self, child: Child) -> None:
        child.process.join()
        over = self._finished if child is self._compressor else child in self._agents or self._told
        if child.process.exitcode != 0 or not over:
            raise RunError(f"{child.name} {child.ending}")
        if child is self._compressor:
            self._compressor = None
        self._agents.pop(child, None)

    def _accidents(self) -> None:
        victim = self._victim
        due = victim is not None and self._victim_steps >= _KILL_AFTER * len(self._plan.shares[self._victim_number])
        if (
            not self._out.cut
            and self._out.not_cut is None
            and (due or self._out.seen_messages >= _CUT_AFTER * self._plan.messages)
        ):
            self._cut()
        if victim is not None and due:
            self._victim = None
            victim.kill()
            for word in self._children.drop(victim):
                self._handle(victim, word)
            del self._agents[victim]
            self._out.killed += 1
            self._screen.note(f"{victim.name} was killed (SIGKILL) and starts again, from its first message")
            self._start_agent(self._victim_number, second_life=True)

        if self._compressing and not (self._out.compressors_killed or self._finished):
            self._kill_compressor()

    def _kill_compressor(self) -> None:
        """In the middle of its work: what it has begun, another one takes up when its lease has ended."""
        if (compressor := self._compressor) is not None:
            compressor.kill()
            for word in self._children.drop(compressor):
                self._handle(compressor, word)
            self._out.compressors_killed += 1
            self._screen.note("the compressor was killed (SIGKILL), and another one takes its place")
            self._start_compressor()
            self._dismiss_compressor()

    def _cut(self) -> None:
        try:
            self._out.cut = self._server.cut_subscriber()
        except RedisError as error:
            self._out.not_cut = f"the server refused: {error}"
        else:
            if self._out.cut:
                self._screen.note("the subscriber's connection was cut (CLIENT KILL)")
            else:
                self._out.not_cut = "the subscriber has no connection that could be cut"
