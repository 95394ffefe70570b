"""Changes over HTTP: what they do, and when they are refused."""

from typing import Any

import pytest
from starlette.requests import Request

from redis_history import Participant, user
from redis_history.web import Action, LiveView, allow_all
from tests.support.web import TOKEN, at, client

MESSAGES = at("c", "messages")
CHANGES = [
    ("POST", MESSAGES, {"text": "hi"}),
    ("DELETE", at("c", "messages", "m1"), None),
    ("PATCH", at("c"), {"title": "T"}),
    ("DELETE", at("c"), None),
    ("POST", at("c", "messages", "m1", "expand"), {}),
    ("POST", at("c", "fork"), {}),
    ("PATCH", at("c", "messages", "m1"), {"pinned": True}),
    ("DELETE", "/v1/users/ann", None),
]


async def test_changes(writable: Any, store: Any) -> None:
    body = {"text": "hi", "id": "m1"}
    done = await writable.post(MESSAGES, json=body)
    assert (done.status_code, done.json()["revision"], done.json()["duplicate"]) == (201, 1, False)
    again = await writable.post(MESSAGES, json=body)
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    other = await writable.post(MESSAGES, json={**body, "text": "other"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    (stored,) = await store.get("c")
    assert (stored.id, stored.text, stored.role, stored.participant) == ("m1", "hi", "user", None)
    done = await writable.patch(at("c"), json={"title": "Lost"})
    assert (done.status_code, done.json()["title"]) == (200, "Lost")
    await store.append("c", user("two", id="m2"))
    summary = (await store.compact("c", through="m2", summary="both")).summary
    done = await writable.post(at("c", "messages", summary.id, "expand"), json={})
    assert (done.status_code, done.json()["count"]) == (200, 2)
    done = await writable.post(at("c", "fork"), json={"through": "m1"})
    fork = done.json()
    assert (done.status_code, fork["message_count"], fork["forked_from"]["conversation_id"]) == (201, 1, "c")
    listed = (await writable.get("/v1/conversations", params={"forked_from": "c"})).json()["conversations"]
    assert [one["id"] for one in listed] == [fork["id"]]
    done = await writable.patch(at("c", "messages", "m1"), json={"pinned": True})
    assert (done.status_code, done.json()["metadata"]) == (200, {"pinned": True})
    for status in (204, 404):
        assert (await writable.delete(at("c", "messages", "m1"))).status_code == status
    assert [one.id for one in await store.get("c")] == ["m2"]
    assert (await writable.delete(at("c"))).status_code == 204
    assert await store.get_conversation("c") is None


@pytest.mark.proves("other-origins")
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Authorization": "Bearer wrong-token-of-the-tests"},
        {"Host": "evil.example"},
    ],
    ids=str,
)
async def test_forbidden_changes_are_rejected(web: Any, writable: Any, store: Any, headers: dict[str, str]) -> None:
    """From other origins; and all of a read-only view."""
    await store.append("c", user("1", id="m1"))
    before = await store.snapshot("c")
    for method, path, body in CHANGES:
        refused = await (writable if headers else web).request(method, path, json=body, headers=headers)
        assert refused.status_code in (401, 403, 415), refused.text
        assert headers or refused.json()["code"] == "read_only"
    assert await store.snapshot("c") == before


async def test_the_page_can_append_with_its_cookie(make: Any, store: Any) -> None:
    async with client(make(read_only=False), headers={}) as web:
        await web.get(f"/?token={TOKEN}")
        own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        assert (await web.post(MESSAGES, json={"text": "hi"}, headers=own)).status_code == 201
        assert [one.role for one in await store.get("c")] == ["user"]


async def test_invalid_bodies_are_rejected(make: Any, store: Any) -> None:
    bodies = [
        (b"{", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "text"),
        (b'{"text": 1}', "text"),
        (b'{"text": "x", "role": "king"}', "king"),
        (b'{"text": "x", "id": 7}', "id must be"),
        (b'{"text": "x", "id": ""}', "id must be"),
        (b'{"text": "x", "participant": "ann"}', "participant"),
        (b'{"text": "x", "participant": {"kind": "god", "id": "1"}}', ""),
        (b'{"text": "x", "timestamp": "2000-01-01"}', "timestamp"),
        (b'{"text": "\\ud800"}', ""),
        (b'{"text": "' + b"x" * 1_000_000 + b'"}', "1,000,000 bytes"),
    ]
    json = {"Content-Type": "application/json; charset=utf-8"}
    async with client(make(authorize=allow_all, read_only=False)) as web:
        for body, why in bodies:
            refused = await web.post(MESSAGES, content=body, headers=json)
            assert refused.status_code == (413 if "bytes" in why else 400), refused.text
            assert why in refused.json()["detail"]
    assert await store.get("c") == []


async def test_impossible_changes_are_rejected(writable: Any) -> None:
    for method, path, body, status in (
        ("PATCH", at("nobody"), {"title": 7}, 400),
        ("PATCH", at("nobody"), {}, 400),
        ("PATCH", at("nobody"), {"title": "T"}, 404),
        ("DELETE", at("nobody"), None, 404),
        ("DELETE", at("nobody", "messages", "m1"), None, 404),
        ("POST", at("nobody", "messages", "none", "expand"), {}, 404),
    ):
        refused = await writable.request(method, path, json=body)
        assert refused.status_code == status, refused.text


#: Rights that the token of `redis-history serve` does not give.
NOT_OF_SERVE: set[Action] = {"append_as", "erase"}
#: The requests that each right allows.
NEEDED: dict[Action, list[tuple[str, str, Any]]] = {
    "append": [("POST", MESSAGES, {"text": "hi", "id": "new"})],
    "append_as": [
        ("POST", MESSAGES, {"text": "hi", "role": "assistant"}),
        ("POST", MESSAGES, {"text": "hi", "role": "user"}),
        ("POST", MESSAGES, {"text": "hi", "role": None}),
        ("POST", MESSAGES, {"text": "hi", "participant": {"kind": "agent", "id": "bot"}}),
    ],
    "edit": [("POST", at("c", "messages", "m1", "edit"), {"text": "2"})],
    "rename": [("PATCH", at("c"), {"title": "T"})],
    "delete": [
        ("DELETE", at("c", "messages", "m1"), None),
        ("POST", at("c", "messages", "m1", "expand"), {}),
        ("DELETE", at("c"), None),
    ],
    "erase": [("DELETE", "/v1/users/7", None)],
}


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("right", NEEDED)
async def test_each_change_needs_its_own_right(writable: Any, store: Any, right: Action) -> None:
    await store.append("c", user("1", id="m1"))
    await store.update_conversation("c", user_id=7)
    rights: set[Action] = {"list", "read", *NEEDED} - {right}

    def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        return action in rights

    async with client(LiveView(store, authorize=authorize, read_only=False), headers={}) as web:
        before = await store.snapshot("c")
        for method, path, body in NEEDED[right]:
            refused = await web.request(method, path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), body
            if right in NOT_OF_SERVE:
                of_serve = await writable.request(method, path, json=body)
                assert of_serve.json()["code"] == "forbidden"
        assert await store.snapshot("c") == before
        rights = {right}
        for method, path, body in NEEDED[right]:
            done = await web.request(method, path, json=body)
            assert done.status_code in (200, 201, 204, 404), done.text


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("kind", ["plain", "async", "wrong"])
async def test_appended_messages_get_the_signed_in_participant(store: Any, kind: str) -> None:
    def plain(request: Request) -> Participant | None:
        return Participant("user", request.headers["x-test"])

    async def later(request: Request) -> Participant | None:
        return plain(request)

    participant: Any = {"plain": plain, "async": later, "wrong": lambda request: "ann"}[kind]
    view = LiveView(store, authorize=allow_all, participant=participant, read_only=False)
    async with client(view, headers={"x-test": "ann"}) as web:
        as_bot = {"text": "2", "role": "assistant", "participant": {"kind": "agent", "id": "bot"}}
        statuses = [(await web.post(MESSAGES, json=body)).status_code for body in ({"text": "1"}, as_bot)]
    found = [(one.role, one.participant and one.participant.id) for one in await store.get("c")]
    if kind == "wrong":
        assert (statuses, found) == ([500, 201], [("assistant", "bot")])
    else:
        assert (statuses, found) == ([201, 201], [("user", "ann"), ("assistant", "bot")])


async def test_who_begins_a_conversation_owns_it(store: Any) -> None:
    """The author may therefore read it, and it is erased with the author's data."""
    view = LiveView(store, authorize=allow_all, participant=lambda _: Participant("user", "ann"), read_only=False)
    async with client(view, headers={}) as web:
        done = await web.post(MESSAGES, json={"text": "hi", "id": "m1"})
        assert (done.status_code, (await store.get_conversation("c")).user_id) == (201, "ann")
        again = await web.post(MESSAGES, json={"text": "hi", "id": "m1"})
        assert (again.status_code, again.json()["duplicate"]) == (200, True)
        too_large = await web.post(at("d", "messages"), json={"text": "hi", "id": "x" * 513})
        assert (too_large.status_code, await store.get_conversation("d")) == (400, None)
        await web.post(at("e", "messages"), json={"text": "hi", "role": "assistant"})
        assert (await store.get_conversation("e")).user_id is None  # a service that sets the role claims no ownership
