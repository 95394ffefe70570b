"""The OpenAPI document of the HTTP interface: valid, complete, and what the answers are like."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import validate

from redis_history import Conversation, Participant, assistant, tool, tool_result, tool_use, user
from redis_history.web import allow_all
from redis_history.web._openapi import document as document_of_routes
from redis_history.web.routing import API
from tests.support.servers import RealServer
from tests.support.web import TOKEN, Stream, at, client, listening, serve


async def document_of(web: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await web.get("v1/openapi.json")).json()
    return found


def check(document: dict[str, Any], value: Any, schema: str) -> None:
    """The value fits the schema, which names all its properties."""
    whole = {"$ref": f"#/components/schemas/{schema}", "components": document["components"]}
    jsonschema.validate(value, whole)
    named = document["components"]["schemas"][schema]["properties"]
    assert value.keys() <= named.keys()


@pytest.mark.proves("http-document")
async def test_the_document_is_valid_and_has_every_endpoint(web: Any) -> None:
    document = await document_of(web)
    validate(document)
    assert {path: {method.upper() for method in by} for path, by in document["paths"].items()} == {
        path: set(by) for path, by in API.items()
    }
    names = [one["operationId"] for by in document["paths"].values() for one in by.values()]
    assert len(names) == len(set(names))


@pytest.mark.proves("http-document")
async def test_answers_are_as_the_document_says(make: Any, store: Any) -> None:
    await store.create_conversation(Conversation("c", title="T", user_id=1, metadata={"k": 1}))
    said = [user("a suitcase", id="m1", participant=Participant("user", "u")), assistant(tool_use("t", "f", {}))]
    await store.append_many("c", [*said, tool(tool_result("t", "x")), user("2", id="m2")])
    await store.compact("c", through="m2", summary=user("all", id="s", metadata={"is_summary": True}))
    async with client(make(authorize=allow_all, read_only=False)) as web:
        document = await document_of(web)
        fits = partial(check, document)
        fits((await web.get("v1/status")).json(), "Status")
        page = (await web.get("v1/conversations?last=1")).json()
        fits(page, "Conversations")
        fits(page["conversations"][0], "Conversation")
        fits((await web.get(at("c"))).json(), "Conversation")
        fits((await web.get(at("c", "messages"))).json(), "Messages")
        fits((await web.get(at("c", "messages", "m1"))).json(), "Message")
        page = (await web.get(at("c", "messages", "s", "originals"))).json()
        fits(page, "Messages")
        for message in page["messages"]:
            fits(message, "Message")
        fits((await web.get("v1/search?q=suitcase")).json(), "Hits")
        fits((await web.post(at("c", "messages"), json={"text": "x"})).json(), "Appended")
        fits((await web.patch(at("c"), json={"title": "U"})).json(), "Conversation")
        fits((await web.post(at("c", "messages", "s", "expand"), json={})).json(), "Expanded")
        fits((await web.get(at("nobody"))).json(), "Problem")


@pytest.mark.proves("http-document")
async def test_events_are_as_the_document_says(make: Any, store: Any) -> None:
    app = make()
    async with client(app) as web:
        document = await document_of(web)
    async with listening(app) as port, Stream(port, at("c", "events")) as stream:
        await stream.opened()
        await store.append_many("c", [user("1", id="m1"), user("2", id="m2")])
        await store.update_message("c", user("3", id="m1"))
        await store.update_conversation("c", title="T")
        summary = (await store.compact("c", through="m1", summary="all")).summary
        await store.expand("c", summary.id)
        await store.delete_messages("c", ["m1"])
        await store.clear("c")
        await store.delete_conversation("c")
        for _, data in await stream.events(8):
            check(document, data, "Event")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["conversations"], 200),
        (["conversations/c/messages"], 200),
        (["conversations/a%2Fb/messages"], 200),
        (["search?q=hello"], 200),
        (["conversations/c/messages", "--json", '{"text": "hi", "id": "m"}'], 201),
        (["conversations/c", "-X", "PATCH", "--json", '{"title": "T"}'], 200),
        (["conversations/c/messages/m0", "-X", "DELETE"], 204),
        (["conversations/c", "-X", "DELETE"], 204),
    ],
    ids=lambda value: str(value)[:40],
)
def test_curl_with_a_token_makes_every_call(
    server: RealServer, namespace: str, arguments: list[str], status: int, served: Any
) -> None:
    path, *options = arguments
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", f"Authorization: Bearer {TOKEN}"]
    done = subprocess.run([*command, *options, f"{served.base}v1/{path}"], capture_output=True, text=True, check=True)
    assert done.stdout == str(status)


@pytest.fixture
def served(server: RealServer, namespace: str) -> Any:
    from redis_history import HistoryStore

    with HistoryStore(server.url, namespace=namespace) as store:
        store.append("c", user("hello", id="m0"))
        store.append("a/b", user("hello"))
        with serve(server.url, namespace, "--allow-writes") as view:
            yield view


@pytest.mark.proves("http-document")
def test_a_generated_client_lists_appends_searches_and_follows(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "openapi.json"
    document.write_text(json.dumps(document_of_routes(API)))
    generator = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none", "--overwrite"]
    made = [*generator, "--path", str(document), "--output-path", str(tmp_path / "generated")]
    said = subprocess.run(made, capture_output=True, text=True, check=True)
    assert "operation" not in said.stdout.lower(), said.stdout  # of one that it cannot make
    monkeypatch.syspath_prepend(tmp_path)
    api = {
        name: importlib.import_module(f"generated.api.default.{name}")
        for name in ("conversations", "messages", "append", "search", "events")
    }
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
