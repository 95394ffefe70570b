"""The matrix of rights, with 10,528 responses. Each request is sent with each action alone, with all other actions,
with all actions and without any. The conversation belongs to the client or to another user, is new or was deleted, and
the client is signed in or not."""

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, get_args

import pytest
from starlette.requests import Request

from redis_history import AsyncHistoryStore, Conversation, Participant, assistant, tool_use, user
from redis_history.web import Action, ChatEndpoints, LiveView
from redis_history.web.routing import API
from tests.support.web import client
from tests.web.chatting import speaker

ACTIONS: tuple[Action, ...] = get_args(Action)
ALL = frozenset(ACTIONS)
ROLES = {frozenset(), ALL, *(frozenset({one}) for one in ACTIONS), *(ALL - {one} for one in ACTIONS)}
Whose = Literal["own", "other", "new", "deleted"]
#: Content of a conversation that only its readers see.
SECRETS = ("a secret", "its title")


class Asked(NamedTuple):
    """A request, in which `{c}` stands for the conversation, and the actions that it needs. `at`: "list" for a response
    that also contains other conversations that the user may read."""

    method: str
    path: str
    needs: set[Action]
    body: Any = None
    at: str = "conversation"


C = "/v1/conversations/{c}"
VIEW = {
    "GET /v1/openapi.json": [Asked("GET", "/v1/openapi.json", {"list"})],
    "GET /v1/status": [Asked("GET", "/v1/status", {"list"})],
    "GET /v1/conversations": [Asked("GET", "/v1/conversations?last=1", {"list"}, at="list")],
    "GET /v1/events": [Asked("HEAD", "/v1/events", {"list"})],
    "GET /v1/search": [
        Asked("GET", "/v1/search?q=secret", {"list"}, at="list"),
        Asked("GET", "/v1/search?q=secret&conversation={c}", {"read"}),
        Asked("GET", "/v1/search?q=secret&user_id=ann", {"list"}, at="list"),
        Asked("GET", "/v1/search?q=secret&user_id=bob", {"list"}),
    ],
    "GET /v1/approvals": [Asked("GET", "/v1/approvals", {"list"}, at="list")],
    "POST /v1/conversations/{conversation}/approvals/{call}": [
        Asked("POST", f"{C}/approvals/wait", {"decide"}, {"approved": True})
    ],
    "GET /v1/rights": [
        Asked("GET", "/v1/rights", {"list"}),
        Asked("GET", "/v1/rights?conversation={c}", {"read"}),
    ],
    "GET /v1/usage": [Asked("GET", "/v1/usage?user_id=bob", {"usage"})],
    "DELETE /v1/users/{user}": [Asked("DELETE", "/v1/users/bob", {"erase"})],
    "GET /v1/conversations/{conversation}": [Asked("GET", C, {"read"})],
    "PATCH /v1/conversations/{conversation}": [Asked("PATCH", C, {"rename"}, {"title": "T"})],
    "DELETE /v1/conversations/{conversation}": [Asked("DELETE", C, {"delete"})],
    "POST /v1/conversations/{conversation}/fork": [Asked("POST", f"{C}/fork", {"fork"}, {})],
    "GET /v1/conversations/{conversation}/run": [Asked("GET", f"{C}/run", {"read"})],
    "POST /v1/conversations/{conversation}/stop": [Asked("POST", f"{C}/stop", {"stop"}, {})],
    "GET /v1/turns": [Asked("GET", "/v1/turns", {"list"})],
    "GET /v1/conversations/{conversation}/turns": [Asked("GET", f"{C}/turns", {"read"})],
    "POST /v1/conversations/{conversation}/retry": [Asked("POST", f"{C}/retry", {"append"}, {})],
    "POST /v1/conversations/{conversation}/drop": [Asked("POST", f"{C}/drop", {"stop"}, {})],
    "GET /v1/conversations/{conversation}/messages": [
        Asked("GET", f"{C}/messages", {"read"}),
        Asked("GET", f"{C}/messages?since=0.1&first=1&include_archived=1", {"read"}),
    ],
    "POST /v1/conversations/{conversation}/messages": [
        Asked("POST", f"{C}/messages", {"append"}, {"text": "x"}),
        Asked("POST", f"{C}/messages", {"append"}, {"text": "x", "ask": True}),
        Asked("POST", f"{C}/messages", {"append_as"}, {"text": "x", "role": "assistant"}),
        Asked("POST", f"{C}/messages", {"append_as"}, {"text": "x", "participant": {"kind": "user", "id": "eve"}}),
    ],
    "GET /v1/conversations/{conversation}/messages/{message}": [Asked("GET", f"{C}/messages/m1", {"read"})],
    "PATCH /v1/conversations/{conversation}/messages/{message}": [
        Asked("PATCH", f"{C}/messages/m1", {"pin"}, {"pinned": True})
    ],
    "DELETE /v1/conversations/{conversation}/messages/{message}": [Asked("DELETE", f"{C}/messages/m1", {"delete"})],
    "GET /v1/conversations/{conversation}/messages/{message}/originals": [
        Asked("GET", f"{C}/messages/m1/originals", {"read"})
    ],
    "POST /v1/conversations/{conversation}/messages/{message}/edit": [
        Asked("POST", f"{C}/messages/m1/edit", {"edit"}, {"text": "other"})
    ],
    "POST /v1/conversations/{conversation}/messages/{message}/retry": [
        Asked("POST", f"{C}/messages/m1/retry", {"append", "delete"}, {})
    ],
    "GET /v1/conversations/{conversation}/messages/{message}/images/{image}": [
        Asked("GET", f"{C}/messages/m1/images/0", {"read"})
    ],
    "POST /v1/conversations/{conversation}/messages/{message}/expand": [
        Asked("POST", f"{C}/messages/m1/expand", {"delete"}, {})
    ],
    "GET /v1/conversations/{conversation}/events": [Asked("HEAD", f"{C}/events", {"read"})],
}


def ui(id_: str, **more: Any) -> dict[str, Any]:
    message = {"id": id_, "role": "user", "parts": [{"type": "text", "text": "x"}]}
    return {"id": "{c}", "messages": [message], "trigger": "submit-message", **more}


def agui(id_: str, **props: Any) -> dict[str, Any]:
    message = {"id": id_, "role": "user", "content": "x"}
    rest: dict[str, Any] = {"state": {}, "tools": [], "context": [], "runId": "run"}
    return {"threadId": "{c}", "messages": [message], "forwardedProps": props, **rest}


READS = [
    Asked("GET", "/{c}/messages", {"read"}),
    Asked("GET", "/{c}/stream", {"read"}),
    Asked("POST", "/{c}/stop", {"stop"}),
]
#: The result of a call in the browser, and the response to a request for approval. No call or request is open.
CALL = {"toolCallId": "k", "input": {}}
RESULT = {"type": "tool-ask", "state": "output-available", "output": "red", **CALL}
RESPONSE = {"type": "tool-pay", "state": "approval-responded", "approval": {"id": "ap", "approved": True}, **CALL}
AI_SDK = [
    *READS,
    Asked("POST", "/", {"append"}, ui("new")),
    *(
        Asked("POST", "/", {"append"}, ui("new", messages=[{"id": "m2", "role": "assistant", "parts": [part]}]))
        for part in (RESULT, RESPONSE)
    ),
    Asked("POST", "/", {"append", "delete"}, ui("m1", messageId="m1")),
    Asked("POST", "/", {"append", "delete"}, ui("m1", trigger="regenerate-message", messageId="m2")),
    Asked("POST", "/", {"append", "fork"}, ui("m1", messageId="m1", fork="{c}'s fork")),
]
AG_UI = [
    *READS,
    Asked("POST", "/", {"append", "read"}, agui("new")),
    Asked(
        "POST",
        "/",
        {"append", "read"},
        agui("new") | {"messages": [{"id": "t", "role": "tool", "toolCallId": "k", "content": "red"}]},
    ),
    Asked(
        "POST",
        "/",
        {"append", "read", "delete"},
        agui("m1")
        | {
            "messages": [
                {"id": "m1", "role": "user", "content": "x"},
                {"id": "m2", "role": "assistant", "content": "an answer"},
            ]
        },
    ),
    Asked("POST", "/", {"append", "read", "delete"}, agui("m1", messageId="m1")),
    Asked("POST", "/", {"append", "read", "fork"}, agui("m1", messageId="m1", fork="{c}'s fork")),
]


def filled(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return value.replace("{c}", name)
    if isinstance(value, dict):
        return {key: filled(one, name) for key, one in value.items()}
    return [filled(one, name) for one in value] if isinstance(value, list) else value


@asynccontextmanager
async def filled_store() -> AsyncIterator[AsyncHistoryStore]:
    async with AsyncHistoryStore("memory://") as store:
        for name, owner in (("own", "ann"), ("other", "bob")):
            await store.create_conversation(Conversation(name, user_id=owner, title=f"{name}: its title"))
            asking = tool_use("wait", "pay", {"note": f"{name}: a secret"}, needs_approval=True)
            await store.append(name, assistant(asking, id="m0"))
            await store.append_many(name, [user(f"{name}: a secret", id="m1"), assistant("an answer", id="m2")])
        await store.append("deleted", user("deleted: a secret", id="m1"))
        await store.delete_conversation("deleted")
        yield store


async def state(store: AsyncHistoryStore) -> dict[str, Any]:
    """Return all state that a request could change."""
    names = sorted([one.conversation_id async for one in store.iter_conversations()])
    return {name: (await store.get(name, include_archived=True), await store.get_conversation(name)) for name in names}


def cases(requests: list[Asked]) -> Iterator[tuple[Asked, frozenset[Action], Whose]]:
    for asked in requests:
        for role in sorted(ROLES, key=sorted):
            whose: tuple[Whose, ...] = get_args(Whose) if "{c}" in f"{asked.path}{asked.body}" else ("own",)
            for one in whose:
                yield asked, role, one


def ann(request: Request) -> Participant:
    return Participant("user", "ann")


async def tried(requests: list[Asked], make: Any) -> int:
    """Send all requests. Returns the number of checked responses."""
    count = 0
    for (asked, role, whose), participant in itertools.product(cases(requests), (None, ann)):
        allowed = asked.needs <= role and whose != "other"

        async def authorize(request: Request, name: str | None, action: Action, role: frozenset[Action] = role) -> bool:
            return action in role and (name is None or name.removesuffix("'s fork") in ("own", "new", "deleted"))

        async with (
            filled_store() as store,
            make(store, authorize=authorize, participant=participant) as app,
            client(app, headers={}) as web,
        ):
            before = await state(store)
            body = {} if asked.body is None else {"json": filled(asked.body, whose)}
            answered = await web.request(asked.method, filled(asked.path, whose), **body)
            what = (asked, sorted(role), whose, answered.text)
            assert (answered.status_code == 403) == (not allowed), what
            assert answered.status_code < 500, what
            if not allowed:
                assert not answered.content or answered.json()["code"] == "forbidden", what
                assert not [one for one in SECRETS if one in answered.text], what
                assert await state(store) == before, what
            assert not [one for one in SECRETS if f"other: {one}" in answered.text], what
            if asked.at == "list" and allowed:
                assert ("own: " in answered.text) == ("read" in role), what
            after = await state(store)
            made = {record.user_id for name, (_, record) in after.items() if name not in before}
            assert made <= ({"ann"} if participant and "append" in asked.needs else {"ann", None}), what
            assert after.get("other") == before["other"] or (asked.needs == {"erase"} and allowed), what
            count += 1
    return count


@pytest.mark.proves("authorize")
@pytest.mark.full
async def test_the_matrix_of_the_live_view() -> None:
    assert VIEW.keys() == {f"{method} {path}" for path, by in API.items() for method in by}

    def make(store: Any, **options: Any) -> Any:
        return LiveView(store, read_only=False, **options)

    assert await tried([one for some in VIEW.values() for one in some], make) == 6720


@pytest.mark.proves("authorize")
@pytest.mark.parametrize(
    ("protocol", "requests", "count"),
    [
        pytest.param("ai-sdk", AI_SDK[::3], 672, id="a third of ai-sdk"),
        pytest.param("ai-sdk", AI_SDK, 2016, marks=pytest.mark.full, id="ai-sdk"),
        pytest.param("ag-ui", AG_UI, 1792, marks=pytest.mark.full, id="ag-ui"),
    ],
)
async def test_the_matrix_of_a_chat(protocol: Any, requests: list[Asked], count: int) -> None:
    def make(store: Any, **options: Any) -> Any:
        return ChatEndpoints(store, speaker(store), protocol=protocol, client_tools=["ask"], **options)

    assert await tried(requests, make) == count


@pytest.mark.proves("bounded-requests")
@pytest.mark.parametrize("path", [f"{C}/messages", f"{C}/stop", f"{C}/fork"])
async def test_no_body_is_read_for_somebody_without_a_right(path: str) -> None:
    async def body() -> AsyncIterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    async with (
        filled_store() as store,
        LiveView(store, authorize=lambda *_: False, read_only=False) as view,
        client(view, headers={}) as web,
    ):
        headers = {"Content-Type": "application/json"}
        refused = await web.post(path.format(c="own"), content=body(), headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
