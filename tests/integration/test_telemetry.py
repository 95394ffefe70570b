"""OpenTelemetry with its SDK: what spans and metrics a store reports."""

import json
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from redis_history import AsyncHistoryStore, HistoryStore, RetryPolicy, Usage, assistant, tool_use, user
from redis_history.errors import BackendUnavailableError, ConfigurationError, RevisionConflictError
from redis_history.integrations.telemetry import count_retries, instrument
from tests.support.servers import RealServer


class Collected:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.traces = TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.providers: dict[str, Any] = {"tracer_provider": self.traces, "meter_provider": self.meters}

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        scopes = [] if data is None else data.resource_metrics[0].scope_metrics
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}


@pytest.fixture
def collected() -> Any:
    collected = Collected()
    yield collected
    collected.traces.shutdown()
    collected.meters.shutdown()


async def test_operations_have_spans_and_are_counted(server: RealServer, namespace: str, collected: Collected) -> None:
    with HistoryStore(server.url, namespace=namespace) as store:
        instrument(store, **collected.providers)
        with store.subscribe("c") as changes:
            store.append_many("c", [user("One", id="m1"), user("Two", id="m2")])
            store.append("c", user("Two", id="m2"))
            changes.get(timeout=20)
        with pytest.raises(RevisionConflictError):
            store.clear("c", expected_revision=7)
    spans = {span.name: span for span in collected.exporter.get_finished_spans()}
    assert "read_changes" not in spans
    append = dict(spans["append"].attributes or {})
    assert append == {
        "db.system.name": "redis",
        "db.namespace": namespace,
        "db.operation.name": "append",
        "gen_ai.conversation.id": "c",
        "gen_ai.operation.name": "create_memory",
        "gen_ai.memory.record.count": 1,
    }
    assert (spans["clear"].attributes or {})["error.type"] == "RevisionConflictError"
    points = collected.points()
    assert points["redis_history.messages.appended"][0].value == 2  # the duplicate is not counted
    assert points["redis_history.events.read"][0].value == 1
    assert points["redis_history.events.lag"][0].count == 1
    calls = {
        (point.attributes["db.operation.name"], point.attributes.get("error.type")): point.count
        for point in points["db.client.operation.duration"]
    }
    assert calls["append", None] == 2
    assert calls["clear", "RevisionConflictError"] == 1


async def test_asynchronous_stores_too_and_only_once(namespace: str, collected: Collected) -> None:
    async with AsyncHistoryStore("memory://", namespace=namespace) as store:
        instrument(store, **collected.providers)
        with pytest.raises(ConfigurationError):
            instrument(store, **collected.providers)
        await store.append("c", user("One"))
        assert [message.text for message in await store.get("c")] == ["One"]
    assert [span.name for span in collected.exporter.get_finished_spans()] == ["append", "read_page"]


def test_retries_are_counted(collected: Collected) -> None:
    seen: list[int] = []
    on_retry = count_retries(lambda details: seen.append(details.retry_num), meter_provider=collected.meters)
    store = HistoryStore("redis://127.0.0.1:1", retry=RetryPolicy(deadline=0, on_retry=on_retry))
    with store, pytest.raises(BackendUnavailableError):
        store.append("c", user("One"))
    assert collected.points()["redis_history.retries"][0].value == len(seen) == 1


def test_without_an_sdk_that_is_set_up_nothing_is_reported(namespace: str) -> None:
    with HistoryStore("memory://", namespace=namespace, retry=RetryPolicy(on_retry=count_retries())) as store:
        instrument(store)
        store.append("c", user("One"))
        assert [message.text for message in store.get("c")] == ["One"]


def test_content_is_reported_only_if_asked_for(server: RealServer, namespace: str, collected: Collected) -> None:
    for content in (False, True):
        with HistoryStore(server.url, namespace=namespace) as store:
            instrument(store, **collected.providers, content=content)
            parts = ["I look.", tool_use("c1", "find", {"at": "Porto"})]
            store.append_many("c", [user("A secret"), assistant(parts)])
            store.search("c", "secret")
            store.delete_conversation("c")
        found = [dict(span.attributes or {}) for span in collected.exporter.get_finished_spans()]
        collected.exporter.clear()
        by_name = {one.get("gen_ai.operation.name"): one for one in found}
        assert {"create_memory", "search_memory", "delete_memory_store"} <= by_name.keys()
        assert ("secret" in repr(found)) is content
    said = [
        {"role": "user", "parts": [{"type": "text", "content": "A secret"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "content": "I look."},
                {"type": "tool_call", "id": "c1", "name": "find", "arguments": {"at": "Porto"}},
            ],
        },
    ]
    assert json.loads(by_name["create_memory"]["gen_ai.input.messages"]) == said
    assert "secret" in by_name["search_memory"]["gen_ai.memory.query.text"]


async def test_usage_of_what_a_store_writes_is_counted(namespace: str, collected: Collected) -> None:
    async with AsyncHistoryStore("memory://", namespace=namespace) as store:
        instrument(store, **collected.providers)
        for _ in range(2):  # the second is a repeat
            await store.append("c", assistant("x", id="a", usage=Usage(100, 10, cost=0.25, model="m")))
        async with store.stream("c") as reply:
            await reply.write("x")
            await reply.finish(usage=Usage(5))
        await store.append("c", user("hi"))
    points = collected.points()
    tokens = {
        (dict(point.attributes)["gen_ai.token.type"], dict(point.attributes).get("gen_ai.response.model")): point.sum
        for point in points["gen_ai.client.token.usage"]
    }
    assert tokens == {("input", "m"): 100, ("output", "m"): 10, ("input", None): 5}
    [cost] = points["redis_history.cost"]
    assert cost.value == 0.25
