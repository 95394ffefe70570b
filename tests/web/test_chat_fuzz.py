"""Random requests from a seeded generator. They cause no server errors, store no role except the user's, and use memory
in proportion to their size."""

from __future__ import annotations

import base64
import json
import random
import tracemalloc
from typing import Any, Final

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from redis_history import AsyncHistoryStore, Participant, assistant, tool_use
from redis_history.formats import from_vercel_ai
from redis_history.web import ChatEndpoints, LiveView, allow_all

#: Memory of a request: bytes, and bytes for each byte of its body.
_BYTES: Final = 3_000_000
_FACTOR: Final = 60

ODD: Final[list[Any]] = [
    None, True, 0, -1, 2**63, 2**64, 10**30, 1e308, -0.0, "", "a", "\0", "\u2028", "é" * 300, "x" * 5000, [], {}, [[]],
    {"": None}, {"a": {"b": [1, {"c": None}]}}, "~", "~~", "..", "%00", "data-x", "assistant", "user", "tool", "system",
    {"type": "step-start"}, {"type": "reasoning", "text": "x"}, {"type": "tool-ask", "toolCallId": "c"}, "m", "c",
    {"type": "tool-ask", "toolCallId": "c", "state": "output-available", "output": {"a": [1e308, 2**64]}},
    {"type": "tool-pay", "toolCallId": "p", "state": "approval-responded", "approval": {"id": "ap", "approved": True}},
    {"id": "t", "role": "tool", "toolCallId": "c", "content": "red"}, {"id": "u", "role": "user", "content": "x"},
]  # fmt: skip
UI: Final[dict[str, Any]] = {
    "id": "chat", "trigger": "submit-message", "messageId": "m", "fork": "f", "messages": [
        {"id": "s", "role": "system", "parts": [{"type": "text", "text": "old"}]},
        {"id": "a", "role": "assistant", "metadata": {}, "parts": [
            {"type": "step-start"}, {"type": "text", "text": "x", "state": "done"},
            {"type": "tool-ask", "toolCallId": "c", "state": "output-available", "input": {}, "output": "red"},
            {"type": "tool-pay", "toolCallId": "p", "state": "approval-responded", "input": {},
             "approval": {"id": "ap", "approved": False, "reason": "no"}}]},
        {"id": "m", "role": "user", "metadata": {"a": 1}, "parts": [
            {"type": "text", "text": "Hello"},
            {"type": "file", "mediaType": "image/png", "url": "data:,", "filename": "f"},
            {"type": "data-x", "id": "d", "data": {"a": [1, 2]}}]},
    ],
}  # fmt: skip
AG: Final[dict[str, Any]] = {
    "threadId": "chat", "runId": "r", "state": {}, "tools": [], "context": [], "resume": [],
    "forwardedProps": {"messageId": "m", "fork": "f"}, "messages": [
        {"id": "a", "role": "assistant", "content": "x", "toolCalls": [
            {"id": "c", "type": "function", "function": {"name": "ask", "arguments": "{}"}}]},
        {"id": "t", "role": "tool", "toolCallId": "c", "content": "red", "error": None},
        {"id": "m", "role": "user", "name": "n", "content": [
            {"type": "text", "text": "Hello"},
            {"type": "image", "source": {"type": "data", "value": "AA", "mimeType": "x"}}]},
    ],
}  # fmt: skip


class Fuzz:
    """Generates bodies and requests that are almost valid."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def changed(self, value: Any, chance: float) -> Any:
        """Return a value with unusual values in some places, without some keys, and with some items repeated."""
        if self.random.random() < chance:
            return self.random.choice(ODD)
        if isinstance(value, dict):
            kept = {key: self.changed(inner, chance) for key, inner in value.items() if self.random.random() > chance}
            if self.random.random() < chance:
                names = ["status", "participant", "pinned", "metadata", "role", "timestamp", "provider_meta", "text"]
                kept[self.random.choice(names)] = self.random.choice(ODD)
            return kept
        if isinstance(value, list):
            kept_items = [self.changed(inner, chance) for inner in value if self.random.random() > chance]
            if kept_items and self.random.random() < chance:
                kept_items *= self.random.choice([2, 100])
            return kept_items
        return value

    def body(self, form: dict[str, Any]) -> bytes:
        rare = ("fork", "messageId", "resume", "forwardedProps")
        chosen = {key: value for key, value in form.items() if key not in rare}
        optional = [key for key in form if key not in chosen and self.random.random() < 0.3]
        body = self.changed(chosen | {key: form[key] for key in optional}, self.random.choice([0, 0.02, 0.05, 0.2]))
        if isinstance(body, dict) and self.random.random() < 0.8:  # a chat is new, or has something that is open
            body["threadId" if form is AG else "id"] = self.random.choice(["chat", "open", "new"])
        if isinstance(body, dict) and isinstance(body.get("messages"), list) and self.random.random() < 0.5:
            body["messages"] = body["messages"][: self.random.randint(0, 3)]
        data = json.dumps(body).encode()
        kind = self.random.random()
        if kind < 0.08:
            at = self.random.randrange(len(data))
            data = data[:at] + self.random.randbytes(self.random.randint(0, 4)) + data[at + self.random.randint(0, 3) :]
        elif kind < 0.1:
            inside = self.random.choice([b"[" * 5000, b"{}," * 20_000, b'"\\ud800"', b"1e999", b"NaN", b"\xff", b"-"])
            data = data.replace(b"Hello", inside).replace(b'"x"', inside)
        return data

    def path(self) -> str:
        encoded = base64.urlsafe_b64encode(self.random.randbytes(5)).decode()
        ids = ["chat", "open", "", "~", f"~{encoded}", "%ff", "%00", "..", "a%2Fb", "x" * 600, "~" * 9, "é"]
        names = ["messages", "stream", "stop", "events", "fork", "run", "", "pin", "search", "expand", "originals"]
        chosen = [self.random.choice(ids), self.random.choice(names), self.random.choice(["", *ids])]
        return "/" + "/".join(chosen[: self.random.randint(0, 3)])


def answering(store: AsyncHistoryStore) -> Any:
    """Asks for an approval and a choice in the chat "open"."""

    async def answer(run: Any) -> None:
        if run.conversation_id == "open" and len(await store.get("open")) == 1:
            asking = {"type": "tool-pay", "toolCallId": "p", "input": {}, "state": "approval-requested"}
            parts = [asking | {"approval": {"id": "ap"}}]
            await run.append_many(from_vercel_ai([{"id": "pay", "role": "assistant", "parts": parts}]))
            await run.append(assistant("an answer", tool_use("c", "ask", {}), tool_use("s", "server", {})))
        else:
            await run.append(assistant("an answer"))

    return answer


@pytest.mark.proves("bounded-requests")
@pytest.mark.parametrize("protocol", ["ai-sdk", "ag-ui"])
async def test_any_body(protocol: Any, full: bool) -> None:
    fuzz = Fuzz(11)
    form = UI if protocol == "ai-sdk" else AG
    statuses: dict[int, int] = {}
    async with AsyncHistoryStore("memory://") as store:
        chat = ChatEndpoints(
            store, answering(store), authorize=allow_all, protocol=protocol, client_tools=["ask"],
            participant=lambda request: Participant("user", "ann"),
        )  # fmt: skip
        async with chat, client_of(chat) as client:
            tracemalloc.start()
            try:
                for number in range(1500 if full else 200):
                    if number % 50 == 0:
                        for name in ("open", "chat", "new"):
                            await store.delete_conversation(name)
                        first = form | {"messages": form["messages"][-1:], "id": "open", "threadId": "open"}
                        first = {key: value for key, value in first.items() if key not in ("messageId", "fork")}
                        first = first | ({"forwardedProps": {}} if form is AG else {})
                        assert (await client.post("/", json=first)).status_code == 200
                    body = fuzz.body(form)
                    before, _ = tracemalloc.get_traced_memory()
                    tracemalloc.reset_peak()
                    response = await client.post("/", content=body, headers={"content-type": "application/json"})
                    _, peak = tracemalloc.get_traced_memory()
                    assert response.status_code < 500, (body[:2000], response.text)
                    assert peak - before < _BYTES + _FACTOR * len(body), body[:2000]
                    statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
                    await check_stored(store)
                    for name in ("open", "chat", "new"):
                        read = await client.get(f"/{name}/messages")
                        assert read.status_code == 200, (body[:2000], read.text)
            finally:
                tracemalloc.stop()
    assert statuses[200] > 20  # else they say nothing
    assert statuses[400] > 30


async def check_stored(store: AsyncHistoryStore) -> None:
    """Check that other messages than those of the agent come from the user or from a tool in the browser."""
    for record in await store.list_conversations():
        assert record.user_id == "ann", record
        for message in await store.get(record.conversation_id):
            assert (message.status, message.metadata, message.sources, message.scope) == ("complete", {}, (), None)
            if message.role == "user":
                assert message.participant == Participant("user", "ann")
                assert not message.tool_uses
                assert not message.tool_results
            elif message.role == "tool":
                assert [(one.tool_use_id, one.name) for one in message.tool_results] == [("c", "ask")], message
            else:
                assert message.role == "assistant", message
                denied = message.text.startswith("The user denied this call")
                assert denied or message.text in ("an answer", ""), message


async def test_any_request(full: bool) -> None:
    """Random paths, methods and headers are sent to a chat and to the live view."""
    fuzz = Fuzz(13)
    async with AsyncHistoryStore("memory://") as store:
        await store.append("chat", assistant("an answer"))
        view = LiveView(store, authorize=allow_all, read_only=False)
        chat = ChatEndpoints(store, answering(store), authorize=allow_all)
        app = Starlette(routes=[chat.mount("/chat"), Mount("/view", view)])
        app.router.redirect_slashes = False  # Starlette's redirects repeat the header Host, which httpx may not accept
        async with chat, view, client_of(app) as client:
            for _ in range(1500 if full else 150):
                choose = fuzz.random.choice
                path = choose(["/chat", "/view/v1/conversations", "/view/v1", "/view"]) + fuzz.path()
                method = choose(["GET", "HEAD", "POST", "PATCH", "DELETE", "PUT", "OPTIONS"])
                headers = {
                    "content-type": choose(["application/json", "application/json; charset=x", "text/plain", ""])
                }
                headers |= {choose(["origin", "host", "content-length", "last-event-id", "if-none-match"]): choose(
                    ["http://localhost", "null", "x", "9" * 30, "http://[", "-1", "\x80"]
                )} if fuzz.random.random() < 0.3 else {}  # fmt: skip
                query = choose(["", "", "after=x", "limit=-1", "limit=1&limit=2", "q=%ff", "&" * 50, "before=1.1"])
                is_stream = method == "GET" and ("events" in path)
                if is_stream:  # tests of streams read them
                    continue
                url = httpx.URL(f"http://localhost{path.encode().decode('ascii', 'ignore')}", query=query.encode())
                sent = {name: value.encode("latin-1") for name, value in headers.items()}
                response = await client.request(method, url, content=fuzz.body(UI), headers=sent)
                assert response.status_code < 500, (method, url, response.text)


def client_of(app: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)
