"""OpenTelemetry: a span and a duration for each operation of a store, and counters of messages, events and retries."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from redis_history._version import __version__
from redis_history.errors import ConfigurationError
from redis_history.formats.json_form import to_json
from redis_history.store._async.store import AsyncHistoryStore
from redis_history.store._sync.store import HistoryStore
from redis_history.store.operations import Append, Changes, ReadChanges, UpdateMessage
from redis_history.values import Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from redis_history.values._validation import check_store, missing
from redis_history.values.events import MessagesAppended, Reset

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
except ImportError as error:
    raise missing("opentelemetry", error) from error

__all__ = ["count_retries", "instrument"]

_NAME: Final = "redis_history"
#: From operations to those of the conventions for generative AI.
_MEMORY: Final = {
    "Append": "create_memory",
    "UpdateMessage": "update_memory",
    "DeleteMessages": "delete_memory",
    "Clear": "delete_memory",
    "DeleteConversation": "delete_memory_store",
    "Search": "search_memory",
}


def instrument(
    store: HistoryStore | AsyncHistoryStore,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    content: bool = False,
) -> None:
    """Report each operation of `store`. Without an OpenTelemetry SDK that is set up, this reports nothing.

    Spans are named like `append` and follow the conventions for database clients: `db.system.name`,
    `db.operation.name`, `db.namespace`, and those for the memory of agents: `gen_ai.conversation.id`,
    `gen_ai.operation.name` (`create_memory`, `update_memory`, `delete_memory`, `delete_memory_store`, `search_memory`)
    and `gen_ai.memory.record.count`. With `content`, they also have `gen_ai.input.messages`, the messages that are
    appended, and `gen_ai.memory.query.text`, the query of a search. Metrics: `db.client.operation.duration`,
    in seconds, `redis_history.messages.appended`, `redis_history.events.read`, `redis_history.events.resets`, and
    `redis_history.events.lag`, the seconds from the time of the newest message of an event until a subscriber read it.
    When a message with `usage` is appended, or a reply with usage ends, `gen_ai.client.token.usage` has its tokens, by
    `gen_ai.token.type` (input, output) and `gen_ai.response.model`, and `redis_history.cost` its cost. `store.usage`
    has the exact totals.

    Raises ConfigurationError for a store that is instrumented already.
    """
    check_store(store, "instrument", HistoryStore, AsyncHistoryStore)
    backend: Any = store._backend
    if getattr(backend.execute, "__wrapped__", None) is not None:
        raise ConfigurationError("this store is instrumented already")
    report = _Report(store.namespace, tracer_provider, meter_provider, content)
    execute = backend.execute

    def traced(op: Any) -> Any:
        with report.operation(op) as note:
            return note(execute(op))

    async def traced_async(op: Any) -> Any:
        with report.operation(op) as note:
            return note(await execute(op))

    backend.execute = traced_async if inspect.iscoroutinefunction(execute) else traced
    backend.execute.__wrapped__ = execute


def count_retries(
    on_retry: Callable[[Any], object] | None = None, *, meter_provider: MeterProvider | None = None
) -> Callable[[Any], None]:
    """An `on_retry` for a RetryPolicy that counts in `redis_history.retries`, by `error.type`, and calls yours.
    `meter_provider` is by default the global one."""
    counter = metrics.get_meter(_NAME, __version__, meter_provider).create_counter("redis_history.retries", "{retry}")

    def counted(details: Any) -> None:
        counter.add(1, {"error.type": type(details.caused_by).__qualname__})
        if on_retry is not None:
            on_retry(details)

    return counted


def _said(message: Message) -> dict[str, Any]:
    """The message as the conventions write it."""
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case TextPart() | ReasoningPart():
                parts.append({"type": "text" if isinstance(part, TextPart) else "reasoning", "content": part.text})
            case ToolUsePart():
                parts.append({"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.input})
            case ToolResultPart():
                parts.append({"type": "tool_call_response", "id": part.tool_use_id, "response": part.content})
    return {"role": message.role, "parts": parts}


class _Report:
    def __init__(
        self, namespace: str, traces: TracerProvider | None, meters: MeterProvider | None, content: bool
    ) -> None:
        self._content = content
        self._tracer = trace.get_tracer(_NAME, __version__, traces)
        meter = metrics.get_meter(_NAME, __version__, meters)
        self._duration = meter.create_histogram("db.client.operation.duration", "s")
        self._appended = meter.create_counter("redis_history.messages.appended", "{message}")
        self._events = meter.create_counter("redis_history.events.read", "{event}")
        self._resets = meter.create_counter("redis_history.events.resets", "{reset}")
        self._lag = meter.create_histogram("redis_history.events.lag", "s")
        self._tokens = meter.create_histogram("gen_ai.client.token.usage", "{token}")
        self._cost = meter.create_counter("redis_history.cost")
        self._always = {"db.system.name": "redis", "db.namespace": namespace}

    @contextmanager
    def operation(self, op: Any) -> Iterator[Callable[[Any], Any]]:
        """Measures the block. It yields a function that takes the outcome, counts it, and returns it."""
        kind = type(op).__name__
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower()
        labels = {**self._always, "db.operation.name": name}
        if isinstance(op, ReadChanges):  # subscriptions repeat it every few seconds: counted, but without a span
            yield lambda outcome: self._count(op, outcome)
            return
        conversation = getattr(op, "conversation_id", None)
        attributes = labels if conversation is None else {**labels, "gen_ai.conversation.id": conversation}
        if kind in _MEMORY:
            attributes = {**attributes, "gen_ai.operation.name": _MEMORY[kind], **self._of_memory(op)}
        started = time.perf_counter()
        span = self._tracer.start_as_current_span(name, kind=SpanKind.CLIENT, attributes=attributes)
        with span as current:
            try:
                yield lambda outcome: self._count(op, outcome)
            except Exception as error:
                labels["error.type"] = type(error).__qualname__
                current.set_attribute("error.type", labels["error.type"])
                current.set_status(Status(StatusCode.ERROR))
                raise
            finally:
                self._duration.record(time.perf_counter() - started, labels)

    def _of_memory(self, op: Any) -> dict[str, Any]:
        if isinstance(op, Append):
            said = [entry.message for entry in op.entries]
            content = {"gen_ai.input.messages": orjson.dumps(list(map(_said, said)), default=to_json).decode()}
            return {"gen_ai.memory.record.count": len(said), **(content if self._content else {})}
        query = getattr(op, "query", None)
        return {"gen_ai.memory.query.text": str(query)} if self._content and query else {}

    def _count(self, op: Any, outcome: Any) -> Any:
        if isinstance(op, Append):
            self._appended.add(sum(not one.duplicate for one in outcome), self._always)
            for one in outcome:
                if not one.duplicate:
                    self._used(one.message)
        elif isinstance(op, UpdateMessage):
            # The end of a reply; other edits rarely change the usage, and the message before is not known here.
            if outcome is not None and op.reply is not None:
                self._used(outcome.message)
        elif isinstance(op, ReadChanges) and isinstance(outcome, Changes):
            now = datetime.now(UTC)
            for event in outcome.events:
                self._events.add(1, {"redis_history.event": type(event).__name__})
                if isinstance(event, Reset):
                    self._resets.add(1, {"redis_history.reason": event.reason})
                elif isinstance(event, MessagesAppended) and event.messages and event.messages[-1].timestamp:
                    self._lag.record(max((now - event.messages[-1].timestamp).total_seconds(), 0.0))
        return outcome

    def _used(self, message: Message) -> None:
        usage = message.usage
        if usage is None:
            return
        labels = {"gen_ai.operation.name": "chat"}
        if usage.model is not None:
            labels["gen_ai.response.model"] = usage.model
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            if count:
                self._tokens.record(count, {**labels, "gen_ai.token.type": kind})
        if usage.cost:
            self._cost.add(usage.cost, labels)
