"""Changes over HTTP: what they do, and when they are refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from redis_history import Participant, user
from redis_history.web import Action, LiveView, allow_all
from tests.support.web import TOKEN, at, client

CHANGES = [
    ("POST", at("c", "messages"), {"text": "hi"}),
    ("DELETE", at("c", "messages", "m1"), None),
    ("PATCH", at("c"), {"title": "T"}),
    ("DELETE", at("c"), None),
    ("POST", at("c", "messages", "m1", "expand"), {}),
]


@pytest.fixture
async def trusted(make: Any) -> AsyncIterator[Any]:
    """A client that may do everything, in any role too."""
    async with client(make(authorize=allow_all, read_only=False)) as found:
        yield found


async def test_changes(writable: Any, store: Any) -> None:
    body = {"text": "hi", "id": "m1"}
    done = await writable.post(at("c", "messages"), json=body)
    assert (done.status_code, done.json()["revision"], done.json()["duplicate"]) == (201, 1, False)
    again = await writable.post(at("c", "messages"), json=body)
    assert (again.status_code, again.json()["duplicate"]) == (200, True)
    other = await writable.post(at("c", "messages"), json={**body, "text": "other"})
    assert (other.status_code, other.json()["code"]) == (409, "conflict")
    (stored,) = await store.get("c")
    assert (stored.id, stored.text, stored.role, stored.participant) == ("m1", "hi", "user", None)

    done = await writable.patch(at("c"), json={"title": "Lost"})
    assert (done.status_code, done.json()["title"]) == (200, "Lost")
    await store.append("c", user("two", id="m2"))
    summary = (await store.compact("c", through="m2", summary="both")).summary
    done = await writable.post(at("c", "messages", summary.id, "expand"), json={})
    assert (done.status_code, done.json()["count"]) == (200, 2)
    for status in (204, 404):
        assert (await writable.delete(at("c", "messages", "m1"))).status_code == status
    assert [one.id for one in await store.get("c")] == ["m2"]
    assert (await writable.delete(at("c"))).status_code == 204
    assert await store.get_conversation("c") is None


async def test_a_read_only_view_rejects_changes(web: Any, store: Any) -> None:
    await store.append("c", user("1", id="m1"))
    before = await store.snapshot("c")
    for method, path, body in CHANGES:
        refused = await web.request(method, path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "read_only"), path
    assert await store.snapshot("c") == before


@pytest.mark.proves("other-origins")
@pytest.mark.parametrize(
    "headers",
    [
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
async def test_changes_from_other_origins_are_rejected(writable: Any, store: Any, headers: dict[str, str]) -> None:
    await store.append("c", user("1", id="m1"))
    before = await store.snapshot("c")
    for method, path, body in CHANGES:
        refused = await writable.request(method, path, json=body, headers=headers)
        assert refused.status_code in (401, 403, 415), refused.text
    assert await store.snapshot("c") == before


async def test_the_page_can_append_with_its_cookie(make: Any, store: Any) -> None:
    async with client(make(read_only=False), headers={}) as web:
        await web.get(f"/?token={TOKEN}")
        own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        done = await web.post(at("c", "messages"), json={"text": "hi"}, headers=own)
        assert done.status_code == 201
        assert [one.role for one in await store.get("c")] == ["user"]


@pytest.mark.parametrize(
    ("body", "status", "why"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 5000, 400, "not JSON"),
        (b"[]", 400, "not a JSON object"),
        (b"{}", 400, "text"),
        (b'{"text": 1}', 400, "text"),
        (b'{"text": "x", "role": "king"}', 400, "king"),
        (b'{"text": "x", "id": 7}', 400, "message id"),
        (b'{"text": "x", "id": ""}', 400, "message id"),
        (b'{"text": "x", "participant": "ann"}', 400, "participant"),
        (b'{"text": "x", "participant": {"kind": "god", "id": "1"}}', 400, ""),
        (b'{"text": "x", "timestamp": "2000-01-01"}', 400, "timestamp"),
        (b'{"text": "\\ud800"}', 400, ""),
        (b'{"text": "' + b"x" * 1_000_000 + b'"}', 413, "1,000,000 bytes"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_invalid_bodies_are_rejected(trusted: Any, store: Any, body: bytes, status: int, why: str) -> None:
    json = {"Content-Type": "application/json; charset=utf-8"}
    refused = await trusted.post(at("c", "messages"), content=body, headers=json)
    assert refused.status_code == status, refused.text
    assert why in refused.json()["detail"]
    assert await store.get("c") == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PATCH", at("nobody"), {"title": 7}, 400),
        ("PATCH", at("nobody"), {}, 400),
        ("PATCH", at("nobody"), {"title": "T"}, 404),
        ("DELETE", at("nobody"), None, 404),
        ("DELETE", at("nobody", "messages", "m1"), None, 404),
        ("POST", at("nobody", "messages", "none", "expand"), {}, 404),
    ],
)
async def test_impossible_changes_are_rejected(writable: Any, method: str, path: str, body: Any, status: int) -> None:
    refused = await writable.request(method, path, json=body)
    assert refused.status_code == status, refused.text


#: The requests that each right allows.
NEEDED: dict[Action, list[tuple[str, str, Any]]] = {
    "append": [("POST", at("c", "messages"), {"text": "hi", "id": "new"})],
    "append_as": [
        ("POST", at("c", "messages"), {"text": "hi", "role": "assistant"}),
        ("POST", at("c", "messages"), {"text": "hi", "role": "user"}),
        ("POST", at("c", "messages"), {"text": "hi", "role": None}),
        ("POST", at("c", "messages"), {"text": "hi", "participant": {"kind": "agent", "id": "bot"}}),
    ],
    "rename": [("PATCH", at("c"), {"title": "T"})],
    "delete": [
        ("DELETE", at("c", "messages", "m1"), None),
        ("POST", at("c", "messages", "m1", "expand"), {}),
        ("DELETE", at("c"), None),
    ],
}


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("right", NEEDED)
async def test_each_change_needs_its_own_right(store: Any, right: Action) -> None:
    await store.append("c", user("1", id="m1"))
    rights: set[Action] = {"list", "read", *NEEDED}

    def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        return action in rights

    app = Starlette(routes=[Mount("/", LiveView(store, authorize=authorize, read_only=False))])
    async with client(app, headers={}) as web:
        rights -= {right}
        before = await store.snapshot("c")
        for method, path, body in NEEDED[right]:
            refused = await web.request(method, path, json=body)
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), body
        assert await store.snapshot("c") == before
        rights = {right}
        for method, path, body in NEEDED[right]:
            done = await web.request(method, path, json=body)
            assert done.status_code in (200, 201, 204, 404), done.text


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_appended_messages_get_the_signed_in_participant(store: Any, kind: str) -> None:
    def plain(request: Request) -> Participant | None:
        return Participant("user", request.headers["x-test"])

    async def later(request: Request) -> Participant | None:
        return plain(request)

    view = LiveView(store, authorize=allow_all, participant=plain if kind == "plain" else later, read_only=False)
    async with client(Starlette(routes=[Mount("/", view)]), headers={"x-test": "ann"}) as web:
        assert (await web.post(at("c", "messages"), json={"text": "1"})).status_code == 201
        as_bot = {"text": "2", "role": "assistant", "participant": {"kind": "agent", "id": "bot"}}
        assert (await web.post(at("c", "messages"), json=as_bot)).status_code == 201
    found = [(one.role, one.participant and one.participant.id) for one in await store.get("c")]
    assert found == [("user", "ann"), ("assistant", "bot")]


async def test_a_participant_of_another_type_is_a_failure(store: Any) -> None:
    view = LiveView(store, authorize=allow_all, participant=lambda _: "ann", read_only=False)  # type: ignore[arg-type,return-value]
    async with client(Starlette(routes=[Mount("/", view)]), headers={}) as web:
        assert (await web.post(at("c", "messages"), json={"text": "1"})).status_code == 500
    assert await store.get("c") == []


@pytest.mark.proves("authorize")
async def test_serve_rejects_a_chosen_role(writable: Any, store: Any) -> None:
    for _, path, body in NEEDED["append_as"]:
        assert (await writable.post(path, json=body)).status_code == 403
    assert await store.get("c") == []
