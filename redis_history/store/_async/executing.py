"""The one door to a backend: a store executes steps."""

from __future__ import annotations

from collections.abc import Generator
from copy import copy
from typing import Any, Self

from redis_history.errors import InvalidInputError
from redis_history.store import operations as ops
from redis_history.store import refusals
from redis_history.store._async._runtime import in_thread, resolve
from redis_history.store._async.runs import run_here
from redis_history.store._async.subscription import AsyncFeed
from redis_history.store.operations.backend import AsyncBackend
from redis_history.store.operations.base import Steps, T
from redis_history.store.operations.options import Options
from redis_history.store.operations.searching import Searcher
from redis_history.store.operations.tasks import Ask, OutsideRuns, Searching, Work
from redis_history.values._validation import refuse


class AsyncExecuting:
    _backend: AsyncBackend
    _options: Options
    _unopened: list[AsyncFeed]
    _exclusive: bool

    async def execute(self, steps: Steps[T]) -> T:
        """Execute the operations that a generator yields, and return its result::

            def rename(conversation_id: str, title: str) -> Steps[bool]:
                record = yield ops.ReadConversation(conversation_id)
                if record is None or record.title == title:
                    return False
                yield from ops.change_record(conversation_id, {"title": title})
                return True

            renamed = await store.execute(rename("c1", "Refund"))

        So a task is written once for both kinds of stores. The generator yields operations of
        `redis_history.store.operations`, receives their outcomes, and gets their errors raised at the `yield`. Each
        operation is executed as by the methods of the store: in an `exclusive` one, writes are those of the run. The
        operations together are not one change: others may write in between.

        Raises InvalidInputError unless `steps` is a generator, and what the generator raises. It gets InvalidInputError
        for anything else that it yields.
        """
        if not isinstance(steps, Generator):
            refuse(steps, "steps", "a generator that yields operations", InvalidInputError)
        outcome: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(outcome) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = error = None
            try:
                outcome = await self._perform(step)
            except BaseException as raised:  # noqa: BLE001 -- the generator may handle it
                error = raised

    async def _perform(self, step: Any) -> Any:
        """The outcome of what steps yield."""
        match step:
            case ops.Write() | ops.NoteFork() | ops.WriteDraft():
                return await self._write(step)
            case Work(function):
                return await resolve(await in_thread(function))
            case Ask(function, arguments):
                return await resolve(function(*arguments))
            case Searching(task):
                return await self.execute(task(Searcher(self._backend, self._options)))
            case OutsideRuns(steps):
                return await self._outside_runs().execute(steps)
        if not isinstance(step, ops.Op):
            refuse(step, "what steps yield", "an operation", InvalidInputError)
        return await self._backend.execute(step)

    def _outside_runs(self) -> Self:
        """An exclusive store without its condition, for what belongs to no run."""
        store = copy(self)
        store._exclusive = False
        return store

    async def _write(self, op: ops.Op[T]) -> T:
        if self._exclusive:
            if isinstance(op, ops.NoteFork | ops.WriteDraft):
                raise refusals.not_fenced(op.new_id if isinstance(op, ops.NoteFork) else op.conversation_id)
            if isinstance(op, ops.Write) and op.precondition.run is None:
                return await run_here(self, op.conversation_id)._write_own(op)  # type: ignore[no-any-return]
        if self._unopened:
            await self._open_subscriptions()
        if self._options.embedder is not None:
            op = await self.execute(Searcher(self._backend, self._options).with_vectors(op))
        return await self._backend.execute(op)

    async def _open_subscriptions(self) -> None:
        while self._unopened:
            subscription = self._unopened[-1]
            try:
                await subscription.open()  # other writes wait for this, too
            finally:
                self._unopened = [one for one in self._unopened if one is not subscription]
