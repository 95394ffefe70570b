"""Requests of the HTTP interface about one message: its images, edits, a question that is asked again, and rights."""

import asyncio
import base64
from typing import Any

import pytest
from starlette.requests import Request

from redis_history import (
    AsyncHistoryStore,
    AttachmentPart,
    Message,
    Participant,
    TextPart,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError
from redis_history.values.parts import UnknownPart
from redis_history.web import Action, LiveView, allow_all
from redis_history.web._prices import price_of
from tests.support.web import at, client

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
BASE64 = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{BASE64}"
#: More than what stands in the message itself.
LARGE = PNG + bytes(range(256)) * 400


def shown(reference: str, **more: Any) -> AttachmentPart:
    return AttachmentPart(name="a.png", reference=reference, **more)


@pytest.mark.proves("browser-text")
async def test_images_in_messages_are_served_and_nothing_else_is(web: Any, store: AsyncHistoryStore) -> None:
    safe = base64.urlsafe_b64encode(LARGE).decode()
    parts = [
        shown(URL),
        shown("https://example.com/a.png", mime_type="image/png"),
        shown("data:image/svg+xml;base64," + base64.b64encode(b"<svg onload='alert(1)'/>").decode()),
        shown("data:text/html;base64,PHNjcmlwdD4="),
        shown(f"data:image/jpeg;base64,{safe}"),
        shown("data:image/png;base64,@@@"),
        UnknownPart({"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": URL}}),
        UnknownPart({"type": "image_generation_call", "result": BASE64}),
    ]
    await store.append("c", Message(role="user", parts=parts, id="m"))
    anthropic = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": BASE64}}
    mcp = {"type": "image", "data": BASE64, "mimeType": "image/webp"}
    chat = {"type": "image_url", "image_url": {"url": URL}}
    await store.append_many(
        "c", [assistant(tool_use("t", "look")), tool(tool_result("t", [anthropic, mcp, chat]), id="r")]
    )
    found = {one["id"]: one for one in (await web.get(at("c", "messages"))).json()["messages"]}
    assert [part.get("images") for part in found["m"]["parts"]] == [[0], None, None, None, [1], [2], [3], [4]]
    assert len(found["m"]["parts"][4]["reference"]) < len(LARGE), "the page does not get large images with the messages"
    assert found["r"]["parts"][0]["images"] == [0, 1, 2]
    wanted = [("m", 0, "png", PNG), ("m", 1, "jpeg", LARGE), ("m", 3, "png", PNG), ("m", 4, "png", PNG)]
    for message, number, kind, content in (*wanted, ("r", 0, "png", PNG), ("r", 1, "webp", PNG), ("r", 2, "png", PNG)):
        image = await web.get(at("c", "messages", message, "images", str(number)))
        assert (image.status_code, image.headers["content-type"], image.content) == (200, f"image/{kind}", content)
        assert image.headers["x-content-type-options"] == "nosniff"
        assert image.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert image.headers["cache-control"].startswith("private")
    for wrong in ("2", "5", "-1", "x", "99999", "²"):
        refused = await web.get(at("c", "messages", "m", "images", wrong))
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found"), wrong
    assert (await web.get(at("c", "messages", "nobody", "images", "0"))).status_code == 404


async def test_an_edit_replaces_the_text_and_nothing_else(store: AsyncHistoryStore) -> None:
    ann = Participant("user", "ann")
    message = Message(role="user", parts=[shown(URL), TextPart("old")], id="m", participant=ann, metadata={"k": 1})
    await store.append("c", message)
    await store.append("c", assistant(TextPart("1"), TextPart("2"), id="two"))
    await store.append("c", user(shown(URL), id="none"))
    view = LiveView(store, authorize=allow_all, participant=lambda _: Participant("user", "bob"), read_only=False)
    async with client(view, headers={}) as web:
        done = await web.post(at("c", "messages", "m", "edit"), json={"text": " new\n"})
        assert (done.status_code, done.json()["text"]) == (200, " new\n")
        kept = await store.get_message("c", "m")
        assert kept is not None
        assert (kept.parts, kept.participant, kept.metadata) == ((shown(URL), TextPart(" new\n")), ann, {"k": 1})
        assert [event.by for event in await store.log("c")][-1] == "bob"
        for other, body, status in (
            ("m", {}, 400),
            ("m", {"text": " \n"}, 400),
            ("m", {"text": 1}, 400),
            ("two", {"text": "x"}, 409),
            ("none", {"text": "x"}, 409),
            ("nobody", {"text": "x"}, 404),
        ):
            assert (await web.post(at("c", "messages", other, "edit"), json=body)).status_code == status, (other, body)
        async with store.stream("c", id="live") as reply:
            await reply.write("so far")
            assert (await web.post(at("c", "messages", "live", "edit"), json={"text": "x"})).status_code == 409


async def test_an_edit_loses_no_other_change(store: AsyncHistoryStore) -> None:
    await store.append("c", user("old", id="m"))
    async with client(LiveView(store, authorize=allow_all, read_only=False), headers={}) as web:
        edit = web.post(at("c", "messages", "m", "edit"), json={"text": "new"})
        await asyncio.gather(edit, store.pin("c", "m"), *(store.append("c", user(str(n))) for n in range(20)))
    kept = await store.get_message("c", "m")
    assert kept is not None
    assert (kept.text, kept.metadata) == ("new", {"pinned": True})
    assert len(await store.get("c")) == 21


async def test_a_question_is_asked_again_without_what_followed(store: AsyncHistoryStore) -> None:
    messages = [user("1", id="u1"), assistant("a", id="a1"), user("2", id="u2"), assistant("b", id="a2")]
    await store.append_many("c", [user("0", id="u0"), *messages])
    await store.compact("c", through="u0", summary="all")
    async with client(LiveView(store, authorize=allow_all, read_only=False), headers={}) as web:
        for wrong, status in (("a1", 400), ("nobody", 404), ("u0", 409)):
            refused = await web.post(at("c", "messages", wrong, "retry"), json={})
            assert refused.status_code == status, wrong
        async with store.run("c", agent_name="bot"):
            refused = await web.post(at("c", "messages", "u2", "retry"), json={})
            assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        assert len(await store.get("c")) == 5
        assert await store.list_turns() == []
        done = await web.post(at("c", "messages", "u2", "retry"), json={})
        assert done.json() == {"changed": True}
        assert [one.id for one in await store.get("c")][1:] == ["u1", "a1", "u2"]
        [turn] = await store.list_turns()
        assert (turn.conversation_id, turn.message_ids, turn.status) == ("c", ("u2",), "owed")
        await store.drop_turn("c")
        await web.post(at("c", "messages", "u1", "retry"), json={"agent_name": "bot"})
        assert [one.id for one in await store.get("c")][1:] == ["u1"]
        [turn] = await store.list_turns()
        assert (turn.agent_name, turn.message_ids) == ("bot", ("u1",))


@pytest.mark.proves("authorize")
async def test_a_client_learns_its_rights(store: AsyncHistoryStore) -> None:
    given: set[tuple[str | None, Action]] = {(None, "list"), ("c", "read"), ("c", "edit"), ("d", "edit")}

    def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        return (conversation_id, action) in given

    for read_only, expected in ((False, ["read", "edit"]), (True, ["read"])):
        async with client(LiveView(store, authorize=authorize, read_only=read_only), headers={}) as web:
            assert (await web.get("/v1/rights")).json() == {"rights": ["list"]}
            assert (await web.get("/v1/rights?conversation=c")).json() == {"rights": expected}
            assert (await web.get("/v1/rights?conversation=d")).status_code == 403
            given.add((None, "usage"))
            assert (await web.get("/v1/rights")).json() == {"rights": ["list", "usage"]}
            given.remove((None, "usage"))


@pytest.mark.proves("authorize")
async def test_approvals_say_who_may_decide(store: AsyncHistoryStore) -> None:
    for name in ("mine", "shared"):
        await store.append(name, assistant(tool_use("c", "pay", needs_approval=True)))

    def authorize(request: Request, conversation_id: str | None, action: Action) -> bool:
        return action != "decide" or conversation_id == "mine"

    for read_only, expected in ((False, [True, False]), (True, [False, False])):
        async with client(LiveView(store, authorize=authorize, read_only=read_only), headers={}) as web:
            found = (await web.get("/v1/approvals")).json()["approvals"]
            assert [one["may_decide"] for one in found] == expected


async def test_prices_are_those_of_the_application(store: AsyncHistoryStore) -> None:
    view = LiveView(store, authorize=allow_all, prices={"m-1": (2.5, 10), "*": [3, 15, 0.3]}, sign_in="/in")
    async with client(view, headers={}) as web:
        status = (await web.get("/v1/status")).json()
    assert status["prices"] == {"m-1": [2.5, 10.0, 2.5], "*": [3.0, 15.0, 0.3]}
    assert status["sign_in"] == "/in"
    assert price_of("a=b=2.5/10/0") == ("a=b", [2.5, 10.0, 0.0])
    wrong: list[Any] = [{"m": 3}, {"m": (1,)}, {"m": (1, -2)}, {"m": "12"}, {"m": (1, float("nan"))}, {1: (1, 2)}, [1]]
    for one in wrong:
        with pytest.raises(ConfigurationError, match="pric"):
            LiveView(store, authorize=allow_all, prices=one)
    for text in ("m", "m=", "m=1", "m=1/x", "=1/2", "m=1/2/3/4"):
        with pytest.raises(ConfigurationError, match="price"):
            price_of(text)
