"""Several actors take their steps in every order, one step at a time: a small model checker.

An actor is a coroutine with a separate store. It stops before each of its steps: an operation of the backend, or
a call to the server. In a run, the schedule chooses the actor for each step. `every_order` runs all
schedules: each run repeats the choices of the previous run, up to the last choice with a remaining alternative.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

#: The maximum number of runs of an exploration.
_MOST = 100_000


class Run:
    """One run. `order`: the names of the actors, in the order of their steps."""

    def __init__(self, schedule: list[int]) -> None:
        self._schedule = schedule
        self._gates: dict[str, asyncio.Event] = {}
        self._stopped: asyncio.Queue[str] = asyncio.Queue()
        self.choices: list[tuple[int, int]] = []  # each, and of how many
        self.order: list[str] = []
        self.outcomes: dict[str, Any] = {}

    def stop_before_steps(self, name: str, store: Any, method: str) -> None:
        """Let the actor `name` stop before each call of this method of its store's backend."""
        proceed = getattr(store.backend, method)

        async def stopping(work: Any) -> Any:
            await self._turn(name)
            return await proceed(work)

        setattr(store.backend, method, stopping)

    async def _turn(self, name: str) -> None:
        self._gates[name] = asyncio.Event()
        self._stopped.put_nowait(name)
        await self._gates[name].wait()

    async def play(
        self, actors: dict[str, Coroutine[Any, Any, Any]], after: Callable[[str], Awaitable[None]], kill: str = ""
    ) -> None:
        """Run all actors to their end. `after` is called with the actor after each of its steps, and after the last
        step. The actor `kill` may be killed instead of each of its steps."""
        tasks = {}
        for name, actor in actors.items():  # up to its first step
            tasks[name] = asyncio.ensure_future(self._act(name, actor))
            await self._stopped.get()
        while waiting := [name for name in tasks if name not in self.outcomes]:
            chosen = self._choose([*waiting, *(["kill"] if kill in waiting else [])])
            self.order.append(chosen)
            if chosen == "kill":
                chosen = kill
                tasks[chosen].cancel()
            else:
                self._gates[chosen].set()
            await self._stopped.get()
            await after(chosen)
        await asyncio.gather(*tasks.values())

    async def _act(self, name: str, actor: Coroutine[Any, Any, Any]) -> None:
        try:
            self.outcomes[name] = await actor
        except asyncio.CancelledError:
            self.outcomes[name] = "killed"
        except Exception as error:  # noqa: BLE001 -- an outcome like others
            self.outcomes[name] = error
        finally:
            actor.close()
            self._stopped.put_nowait(name)

    def _choose(self, names: list[str]) -> str:
        at = len(self.choices)
        choice = self._schedule[at] if at < len(self._schedule) else 0
        self.choices.append((choice, len(names)))
        return names[choice]


async def every_order(play: Callable[[Run], Awaitable[None]]) -> AsyncIterator[Run]:
    """Play all schedules, and yield each run after its end."""
    schedule: list[int] = []
    for _ in range(_MOST):
        run = Run(schedule)
        await play(run)
        yield run
        choices = run.choices
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return
        schedule = [*(choice for choice, _ in choices[:-1]), choices[-1][0] + 1]
    raise AssertionError(f"more than {_MOST} orders")
