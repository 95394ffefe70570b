"""The OpenAPI document of the HTTP interface: valid, complete, and as the answers are."""

import importlib
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate

from redis_history import Conversation, HistoryStore, Participant, Usage, assistant, tool, tool_result, tool_use, user
from redis_history.web import allow_all
from redis_history.web._openapi import document
from redis_history.web.routing import API
from tests.support.servers import RealServer
from tests.support.web import TOKEN, Stream, at, client, listening, serve

DOCUMENT = document(API)
SCHEMAS = DOCUMENT["components"]["schemas"]


def check(value: Any, schema: str) -> None:
    """The value fits the schema, which names all its properties."""
    jsonschema.validate(value, {"$ref": f"#/components/schemas/{schema}", "components": DOCUMENT["components"]})
    assert value.keys() <= SCHEMAS[schema]["properties"].keys()


@pytest.mark.proves("http-document")
async def test_the_document_is_valid_and_has_every_endpoint(web: Any) -> None:
    served = (await web.get("v1/openapi.json")).json()
    validate(served)
    assert {path: {method.upper() for method in by} for path, by in served["paths"].items()} == {
        path: set(by) for path, by in API.items()
    }
    names = [one["operationId"] for by in served["paths"].values() for one in by.values()]
    assert len(names) == len(set(names))


@pytest.mark.proves("http-document")
async def test_answers_are_as_the_document_says(make: Any, store: Any) -> None:
    await store.create_conversation(Conversation("c", title="T", user_id=1, metadata={"k": 1}))
    said = [
        user("a suitcase", id="m1", participant=Participant("user", "u")),
        assistant(tool_use("t", "f", {}), usage=Usage(1200, 80, cost=0.5, model="m")),
    ]
    await store.set_budget(1, tokens=10, period="day")
    await store.append_many("c", [*said, tool(tool_result("t", "x")), user("2", id="m1b")])
    await store.append("w", assistant(tool_use("t", "f", {}, needs_approval=True)))
    await store.append("c", user("2", id="m2"))
    await store.compact("c", through="m1b", summary=user("all", id="s", metadata={"is_summary": True}))
    app = make(authorize=allow_all, read_only=False)
    async with client(app) as web:
        for path, schema in (
            ("v1/status", "Status"),
            ("v1/conversations?last=1", "Conversations"),
            (at("c"), "Conversation"),
            (at("c", "messages"), "Messages"),
            (at("c", "messages", "m1"), "Message"),
            (at("c", "messages", "s", "originals"), "Messages"),
            ("v1/search?q=suitcase", "Hits"),
            ("v1/rights", "Rights"),
            ("v1/rights?conversation=c", "Rights"),
            ("v1/usage", "Totals"),
            ("v1/usage?user_id=1&by=agent", "Totals"),
            (at("nobody"), "Problem"),
        ):
            answer = (await web.get(path)).json()
            check(answer, schema)
            for message in answer.get("messages", []):
                check(message, "Message")
            for conversation in answer.get("conversations", []):
                check(conversation, "Conversation")
        approvals = (await web.get("v1/approvals")).json()
        check(approvals, "Approvals")
        check(approvals["approvals"][0], "OpenApproval")
        check((await web.post(at("c", "messages", "m2", "edit"), json={"text": "3"})).json(), "Message")
        check((await web.post(at("c", "messages", "m2", "retry"), json={})).json(), "Changed")
        await store.drop_turn("c")
        check((await web.post(at("c", "messages"), json={"text": "x"})).json(), "Appended")
        check((await web.patch(at("c"), json={"title": "U"})).json(), "Conversation")
        asked = await web.post(at("e", "messages"), json={"text": "x", "ask": True})
        assert asked.status_code == 201, asked.text
        for path in (at("e", "turns"), "v1/turns"):
            turns = (await web.get(path)).json()
            check(turns, "Turns")
            assert len(turns["turns"]) == 1
            check(turns["turns"][0], "Turn")
        for change in ("retry", "drop"):
            check((await web.post(at("e", change), json={})).json(), "Changed")
        check((await web.post(at("c", "messages", "s", "expand"), json={})).json(), "Expanded")
        erased = (await web.delete("v1/users/1")).json()
        assert erased == {"conversations": 1}
        check(erased, "Erased")
    async with listening(app) as port, Stream(port, at("d", "events")) as stream:
        await stream.comment()
        await store.append_many("d", [user("1", id="m1"), user("2", id="m2")])
        await store.update_message("d", user("3", id="m1"))
        await store.update_conversation("d", title="T")
        summary = (await store.compact("d", through="m1", summary="all")).summary
        await store.expand("d", summary.id)
        await store.delete_messages("d", ["m1"])
        await store.clear("d")
        await store.delete_conversation("d")
        for _, data in await stream.events(8):
            check(data, "Event")


@pytest.fixture
def served(server: RealServer, namespace: str) -> Any:
    with HistoryStore(server.url, namespace=namespace) as store:
        store.append("c", user("hello", id="m0"))
        store.append("a/b", user("hello"))
        with serve(server.url, namespace, "--allow-writes") as view:
            yield view


@pytest.mark.full
@pytest.mark.proves("http-document")
def test_a_generated_client_lists_appends_searches_and_follows(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.joinpath("openapi.json").write_text(json.dumps(DOCUMENT))
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--overwrite"]
    command += ["--path", str(tmp_path / "openapi.json"), "--output-path", str(tmp_path / "generated")]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "operation" not in output.lower(), output  # it names operations that it cannot generate
    monkeypatch.syspath_prepend(tmp_path)
    names = ("conversations", "messages", "append", "search", "events")
    api = {name: importlib.import_module(f"generated.api.default.{name}") for name in names}
    models = importlib.import_module("generated.models")
    client = importlib.import_module("generated").AuthenticatedClient(base_url=served.base, token=TOKEN)
    http = client.get_httpx_client()
    page = api["messages"].sync("c", client=client)
    assert [message.text for message in page.messages] == ["hello"]
    body = models.AppendBody(text="a suitcase", id="m1")
    with closing(http), http.stream(**api["events"]._get_kwargs("c", after=page.cursor)) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if line == ": open")
        for duplicate in (False, True):
            appended = api["append"].sync("c", client=client, body=body)
            assert (appended.message.text, appended.duplicate) == ("a suitcase", duplicate)
        data = next(line for line in lines if line.startswith("data: ")).removeprefix("data: ")
        event = models.Event.from_dict(json.loads(data))
        assert [message.id for message in event.messages] == ["m1"]
        assert {one.id for one in api["conversations"].sync(client=client).conversations} == {"c", "a/b"}
        hits = api["search"].sync(client=client, q="suitcase", role=models.SearchRole.USER).hits
        assert [(hit.conversation, hit.message.text) for hit in hits] == [("c", "a suitcase")]
