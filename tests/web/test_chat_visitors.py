"""Content that visitors can store, and chats that they can reach, in both protocols and with two web processes."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import httpx
import pytest

from redis_history import (
    AsyncHistoryStore,
    Conversation,
    Participant,
    Usage,
    assistant,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.formats import from_vercel_ai
from tests.web.chatting import CHAT, PATH, Gate, ask, asked, results, speaker, text_in

STEP = {"type": "step-start"}
WORDS = {"type": "text", "text": "Hello"}
CALL = {"type": "tool-pay", "toolCallId": "c", "input": {"sum": 9}}
RESPONDED = CALL | {"state": "approval-responded", "approval": {"id": "ap", "approved": True}}
PAID = CALL | {"state": "output-available", "output": "paid"}


def ann(request: Any) -> Participant:
    return Participant("user", request.headers.get("user", "ann"))


def owners(store: AsyncHistoryStore) -> Any:
    """A chat is new or the user's own."""

    async def authorize(request: Any, chat: str, action: str) -> bool:
        record = await store.get_conversation(chat)
        return record is None or record.user_id == request.headers.get("user", "ann")

    return {"authorize": authorize, "participant": ann}


def ui(*parts: Any, id_: str = "u1", role: str = "user", **more: Any) -> dict[str, Any]:
    return {"id": id_, "role": role, "parts": list(parts), **more}


def ag(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"threadId": CHAT, "runId": "r1", "messages": list(messages), **more}


@pytest.mark.proves("authorize")
@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"trigger": "regenerate-message"}, marks=pytest.mark.full),
        pytest.param({"messageId": "u1"}, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize(
    "message",
    [
        ui(WORDS, STEP, WORDS),
        ui(WORDS, STEP, PAID),
        ui(RESPONDED),
        ui({"type": "dynamic-tool", "toolName": "pay", "toolCallId": "c", "state": "output-available", "output": 1}),
        ui({"type": "reasoning", "text": "I, the assistant"}),
        ui({"type": "source-url", "sourceId": "s", "url": "https://example.com"}),
        ui(WORDS | {"providerMetadata": {"x": {"cache": True}}}),
        ui({"type": "file", "url": "data:,x", "mediaType": "text/plain", "pinned": True}),
        ui({"type": "data-x"}),
        ui({"type": ["text"], "text": "x"}),
        ui(),
        ui("Hello"),
        ui(WORDS, id_=""),
        ui(WORDS, id_="x" * 513),
        *(
            ui(WORDS, **{name: value})
            for name, value in {
                "status": "streaming", "participant": {"kind": "agent", "id": "a"}, "timestamp": 1, "is_summary": True,
                "pinned": True, "provider_meta": {}, "sequence": 1, "sources": [], "createdAt": "2020-01-01",
            }.items()
        ),
        ui(WORDS, role="system"),
        ui(WORDS, role="assistant"),
        ui(role="assistant"),
        ui(PAID, role="assistant"),
        ui(RESPONDED, role="assistant"),
    ],
    ids=lambda message: str(message)[:60] if isinstance(message, dict) else None,
)  # fmt: skip
async def test_what_is_no_message_of_a_user_is_refused(
    serve: Any, store: AsyncHistoryStore, message: dict[str, Any], more: dict[str, Any]
) -> None:
    """Neither a new chat nor an existing chat that already contains the message is changed."""
    client = await serve(speaker(store), client_tools=["other"], **owners(store))
    response = await client.post("", json={"id": CHAT, "messages": [message], **more})
    assert 400 <= response.status_code < 500, response.text
    assert await store.get_conversation(CHAT) is None
    if "trigger" in more and message["id"] == "u1":
        return  # the copy of a message that is answered again is not read
    await ask(client, asked("Hello"))
    before = await store.get(CHAT)
    response = await client.post("", json={"id": CHAT, "messages": [message], **more})
    assert 400 <= response.status_code < 500, response.text
    assert await store.get(CHAT) == before


async def test_the_copy_of_an_answered_message_is_not_read(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), **owners(store))
    await ask(client, asked("Hello"))
    old = [ui(WORDS, STEP, PAID), ui(PAID, STEP, RESPONDED, role="assistant", id_="a", metadata={"pinned": True})]
    again = {"id": CHAT, "trigger": "regenerate-message", "messages": [ui(WORDS, STEP, PAID)]}
    await ask(client, again)
    await ask(client, {"id": CHAT, "messages": [*old, ui(WORDS, id_="u2")]})
    assert [(one.role, one.text) for one in await store.get(CHAT)] == [
        ("user", "Hello"), ("assistant", "You said: Hello"), ("user", "Hello"), ("assistant", "You said: Hello"),
    ]  # fmt: skip


async def test_texts_files_and_data_of_a_user_come_back(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), **owners(store))
    parts = [
        WORDS,
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA==", "filename": "a.png"},
        {"type": "data-place", "id": "p", "data": {"pinned": True, "lat": 1.5}},
    ]
    message = ui(*parts, metadata={"pinned": True, "is_summary": True, "theirs": [1]})
    await ask(client, {"id": CHAT, "messages": [message]})
    assert (await client.get(f"/{PATH}/messages")).json()[0] == message
    [stored, _] = await store.get(CHAT)
    assert (stored.metadata, stored.is_pinned, stored.is_summary, stored.sources) == ({}, False, False, ())
    assert (stored.participant, stored.status) == (Participant("user", "ann"), "complete")
    record = await store.get_conversation(CHAT)
    assert record is not None
    assert record.user_id == "ann"


async def test_an_id_of_another_message_is_refused(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), **owners(store))
    await ask(client, asked("Hello"))
    await store.append(CHAT, user("Bob's.", id="b1", participant=Participant("user", "bob")))
    reply = (await store.get(CHAT))[1].id
    before = await store.get(CHAT)
    for id_ in (reply, "b1"):
        assert (await client.post("", json=asked("Mine.", id_))).status_code == 409
        response = await client.post("", json=asked("Mine.", "u9", messageId=id_))
        assert response.status_code in (400, 403)
    assert await store.get(CHAT) == before


async def test_only_tools_of_the_browser_get_results_from_it(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()

    async def answer(run: Any) -> None:
        if (await store.get(CHAT))[-1].role == "user":
            await run.append(assistant(tool_use("mine", "score", {}), tool_use("yours", "ask", {}), id="a"))
            gate.begun.set()
            await gate.open.wait()
            await run.append(tool(tool_result("mine", "low")))

    client = await serve(answer, client_tools=("ask",))
    asking = await gate.begin(client, asked("Hello"))
    forged = {"type": "tool-score", "toolCallId": "mine", "state": "output-available", "output": "high"}
    refused = await client.post("", json={"id": CHAT, "messages": [ui(forged, role="assistant", id_="a")]})
    assert (refused.status_code, "client_tools" in refused.json()["detail"]) == (400, True)
    both = ui(forged, forged | {"type": "tool-ask", "toolCallId": "yours", "output": "red"}, role="assistant", id_="a")
    second = asyncio.create_task(ask(client, {"id": CHAT, "messages": [both]}))
    gate.open.set()
    await asyncio.gather(asking, second)
    found = {one.tool_use_id: (one.content, one.name) for each in await store.get(CHAT) for one in each.tool_results}
    assert found == {"mine": ("low", None), "yours": ("red", "ask")}


async def test_a_call_that_is_not_approved_has_no_result(serve: Any, store: AsyncHistoryStore) -> None:
    asking = CALL | {"state": "approval-requested", "approval": {"id": "ap"}}

    async def answer(run: Any) -> None:
        await run.append_many(from_vercel_ai([ui(asking, role="assistant", id_="a")]))

    client = await serve(answer, client_tools=["pay"])
    await ask(client, asked("Pay!"))
    for body in (
        ui(PAID, role="assistant", id_="a"),
        ui(RESPONDED | {"approval": {"id": "no", "approved": True}}, role="assistant"),
    ):
        assert (await client.post("", json={"id": CHAT, "messages": [body]})).status_code == 400
    assert len(await store.get(CHAT)) == 2
    assert await results(store) == []


@pytest.mark.full
async def test_one_response_to_a_request_for_approval_decides(serve: Any, store: AsyncHistoryStore) -> None:
    """Two web processes get a copy of it at the same time."""
    calls: list[str] = []
    asking = CALL | {"state": "approval-requested", "approval": {"id": "ap"}}

    async def answer(run: Any) -> None:
        chat = run.conversation_id
        if len(await store.get(chat)) == 1:
            await run.append_many(from_vercel_ai([ui(asking, role="assistant", id_="a")]))
        else:
            calls.append(chat)
            await run.append(assistant("paid"))

    clients = [await serve(answer) for _ in range(2)]
    chats = [f"chat-{number}" for number in range(12)]
    for number, chat in enumerate(chats):
        await ask(clients[0], asked("Pay!") | {"id": chat})

        async def respond(client: httpx.AsyncClient, wait: float, chat: str = chat) -> None:
            await asyncio.sleep(wait)  # varies the order; nothing waits for it
            await ask(client, {"id": chat, "messages": [ui(RESPONDED, role="assistant", id_="a")]})

        await asyncio.gather(respond(clients[0], 0), respond(clients[1], 0.001 * (number % 4)))
    assert sorted(calls) == sorted(chats)


def words(who: str) -> dict[str, Any]:
    return {"type": "text", "text": f"words of {who}"}


BODIES: dict[str, Any] = {
    "message": lambda who: {"messages": [ui(words(who), id_=who)]},
    "ends in a step": lambda who: {"messages": [ui(words(who), STEP, id_=who)]},
    "nothing": lambda who: {"messages": [ui(role="assistant", id_=who)]},
    "no messages": lambda who: {"messages": []},
    "results": lambda who: {"messages": [ui(PAID | {"output": f"words of {who}"}, role="assistant", id_="a")]},
    "response": lambda who: {"messages": [ui(RESPONDED, role="assistant", id_="a")]},
    "again": lambda who: {"messages": [ui(words(who), id_="ann")], "trigger": "regenerate-message"},
    "edit": lambda who: {"messages": [ui(words(who), id_=who)], "messageId": "ann"},
    "fork": lambda who: {
        "messages": [ui(words(who), id_="ann")],
        "trigger": "regenerate-message",
        "fork": f"fork-{who}",
    },
    "fork here": lambda who: {
        "id": "other",
        "messages": [ui(words(who), id_="x")],
        "trigger": "regenerate-message",
    },
}


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("with_owner", [True, False])
async def test_two_users_who_begin_one_chat_never_meet(
    serve: Any, store: AsyncHistoryStore, full: bool, with_owner: bool
) -> None:
    """They send random requests with the same id to two web processes. The chat belongs to a single user."""
    random_ = random.Random(7)

    async def authorize(request: Any, chat: str, action: str) -> bool:
        record = await store.get_conversation(chat)
        first = [] if with_owner else await store.get(chat, roles=["user"])
        await asyncio.sleep(random_.choice([0, 0.002]))  # the answer may be late
        who = request.headers["user"]
        if with_owner:
            return record is None or record.user_id == who
        return record is None or (bool(first) and first[0].text == f"words of {who}")

    options = {"authorize": authorize, "participant": ann if with_owner else None, "client_tools": ["pay"]}

    async def answer(run: Any) -> None:
        heard = [one.text for one in await store.get(run.conversation_id) if one.role == "user"]
        await run.append(assistant(f"heard {heard}", tool_use("c", "pay", {}), id="a" if not heard[1:] else None))

    clients = [await serve(answer, **options) for _ in range(2)]
    sent = 0
    for number in range(250 if full else 20):
        chat = f"{number}"

        async def use(who: str, client: httpx.AsyncClient, chat: str = chat) -> list[str]:
            found = []
            for _ in range(3):
                path, body = random_.choice(["messages", "stream", ""]), None
                if not path:
                    body = {"id": chat} | random_.choice([*BODIES.values()])(who)
                method = "POST" if body else "GET"
                try:
                    response = await client.request(
                        method, f"/{chat}/{path}" if path else "", json=body, headers={"user": who}
                    )
                except httpx.RemoteProtocolError:
                    continue  # the stream was cut
                assert response.status_code < 500, response.text
                found.append(response.text)
            return found

        seen = await asyncio.gather(use("ann", clients[0]), use("bob", clients[1]))
        sent += sum(map(len, seen))
        for who, other, texts in (("ann", "bob", seen[0]), ("bob", "ann", seen[1])):
            assert not any(f"words of {other}" in one for one in texts), (chat, who, texts)
        written = {one.text for one in await store.get(chat) if one.role != "assistant"}
        assert len(written) < 2
        record = await store.get_conversation(chat)
        if record is not None and with_owner:
            assert record.user_id in ("ann", "bob")
            assert written <= {f"words of {record.user_id}"}
    assert sent > 100


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("protocol", ["ai-sdk", "ag-ui"])
@pytest.mark.parametrize("path", ["", "stream", "messages", "stop", "fork"])
@pytest.mark.full
async def test_a_chat_that_is_created_after_its_right_was_asked(
    serve: Any, store: AsyncHistoryStore, protocol: str, path: str
) -> None:
    run = store.run(CHAT)

    async def authorize(request: Any, chat: str, action: str) -> bool:
        record = await store.get_conversation(chat)
        if record is None and chat == CHAT:  # and now it is
            await store.create_conversation(Conversation(CHAT, user_id="bob"))
            await store.append(CHAT, user("words of bob", id="b1"))
            await run.__aenter__()
            await run.append(assistant("words to bob"))
        return record is None or record.user_id == "ann"

    client = await serve(speaker(store), protocol=protocol, authorize=authorize, participant=ann)
    more = {"fork": "mine"} if path == "fork" else {}
    body: dict[str, Any] = {"id": CHAT, "messages": [ui(WORDS, id_="b1" if more else "u1")], **more}
    body |= {"trigger": "regenerate-message"} if more else {}
    if protocol == "ag-ui":
        said = {"id": "u1", "role": "user", "content": "words of ann"}
        body = ag(said, forwardedProps={"messageId": "b1", **more} if more else {})
    method = "POST" if path in ("", "stop", "fork") else "GET"
    url = "" if path in ("", "fork") else f"/{PATH}/{path}"
    text = ""
    with suppress(httpx.RemoteProtocolError):  # a stream is cut before its first event
        async with client.stream(method, url, json=body if method == "POST" else None) as response:
            assert response.status_code == (200 if path == "stream" else 403)
            async for chunk in response.aiter_text():
                text += chunk
                assert "bob" not in text
    assert [one.text for one in await store.get(CHAT)] == ["words of bob", "words to bob"]
    assert not run.stop_requested
    assert await store.get_conversation("mine") is None
    await run.__aexit__(None, None, None)


async def test_a_chat_keeps_its_owner_whatever_the_first_request_brings(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), **owners(store))
    for number, make in enumerate(BODIES.values()):
        await client.post("", json={"id": f"{number}"} | make("ann"))
    for one in await store.list_conversations():
        assert one.user_id == "ann"


async def test_a_fork_is_owned_by_its_maker(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), participant=ann)
    await ask(client, asked("Hello"))
    again = asked("Hello", trigger="regenerate-message", fork="f")
    async with client.stream("POST", "", json=again, headers={"user": "bob"}) as response:
        await response.aread()
    record = await store.get_conversation("f")
    assert record is not None
    assert record.user_id == "bob"


@pytest.mark.proves("authorize")
@pytest.mark.parametrize("protocol", ["ai-sdk", "ag-ui"])
@pytest.mark.parametrize(("who", "status"), [("", 403), ("bob", 403), ("ann", 200)])
async def test_who_edits_a_message_is_its_author(
    serve: Any, store: AsyncHistoryStore, protocol: str, who: str, status: int
) -> None:
    """A visitor who is not signed in, or is another user, edits a message of ann only in a fork, where it is theirs."""
    them = Participant("user", who) if who else None
    hers = user("I love it.", id="m1", participant=Participant("user", "ann", display_name="Ann"))
    await store.append(CHAT, hers)
    client = await serve(speaker(store), protocol=protocol, participant=lambda _: them)
    for fork in ("fork", None):
        more = {"messageId": "m1"} | ({"fork": fork} if fork else {})
        body = asked("I owe you.", "m1", **more)
        if protocol == "ag-ui":
            body = ag({"id": "m1", "role": "user", "content": "I owe you."}, forwardedProps=more)
        assert (await client.post("", json=body)).status_code == (200 if fork else status)
        [kept, *_] = await store.get(fork or CHAT)
        changed = fork or status == 200
        assert (kept.text, kept.participant) == (("I owe you.", them) if changed else (hers.text, hers.participant))


def says(id_: str) -> dict[str, Any]:
    return {"id": id_, "role": "user", "content": id_}


DENIED = {"resume": [{"interruptId": "ap", "status": "resolved", "payload": {"approved": False}}]}
RED = {"type": "tool-ask", "toolCallId": "b", "state": "output-available", "output": "red"}
RESULT = {"id": "t", "role": "tool", "toolCallId": "b", "content": "red"}


@pytest.mark.parametrize(
    ("protocol", "body", "status", "stored"),
    [
        ("ag-ui", ag(says("u1"), says("u2"), **DENIED), 200, ["u2"]),
        ("ag-ui", ag(says("u1"), **DENIED), 200, []),
        ("ag-ui", ag(says("a"), **DENIED), 409, []),
        ("ag-ui", ag(says("u2"), forwardedProps={"fork": "f"}, **DENIED), 400, []),
        ("ag-ui", ag(says("u2"), forwardedProps={"fork": "f"}), 400, []),
        ("ag-ui", ag(RESULT, forwardedProps={"fork": "f"}), 400, []),
        ("ag-ui", ag(RESULT, says("u1"), forwardedProps={"messageId": "u1"}), 400, []),
        ("ag-ui", ag(says("u2"), says("u1"), forwardedProps={"messageId": "u1"}), 400, []),
        ("ag-ui", ag(RESULT, says("u2")), 200, ["red", "u2"]),
        ("ai-sdk", {"messages": [ui(RED, role="assistant", id_="a"), ui(WORDS, id_="u2")], "messageId": "a"}, 400, []),
        ("ai-sdk", {"messages": [ui(RED, role="assistant", id_="a"), ui(STEP)], "messageId": "a"}, 200, ["red"]),
        ("ai-sdk", {"messages": [ui(RED, role="assistant", id_="a")], "fork": "f"}, 400, []),
        ("ai-sdk", {"messages": [ui(WORDS, id_="u2")], "fork": "f"}, 400, []),
    ],
)  # fmt: skip
async def test_what_a_client_sends_is_stored_or_refused(
    serve: Any, store: AsyncHistoryStore, protocol: str, body: dict[str, Any], status: int, stored: list[str]
) -> None:
    """Nothing is lost, and a request that is refused changes nothing."""
    pay = CALL | {"state": "approval-requested", "approval": {"id": "ap"}}
    calls = ui(pay, RED | {"state": "input-available", "input": {}}, role="assistant", id_="a")
    await store.append_many(CHAT, [user("u1", id="u1"), *from_vercel_ai([calls])])
    before = await store.get(CHAT)
    client = await serve(lambda run: None, protocol=protocol, client_tools=["ask"])
    answered = await client.post("", json={"id": CHAT, **body})
    assert answered.status_code == status, answered.text
    after = await store.get(CHAT)
    if status != 200:
        assert after == before
    found = [str(one.tool_results[0].content) if one.role == "tool" else one.text for one in after[len(before) :]]
    assert found == stored
    assert [one.conversation_id for one in await store.list_conversations()] == [CHAT]


@pytest.mark.parametrize("who", ["ann", None])
async def test_a_fork_that_is_not_answered_is_not_made(serve: Any, store: AsyncHistoryStore, who: str | None) -> None:
    them = None if who is None else Participant("user", who)
    client = await serve(speaker(store), participant=lambda _: them)
    await store.create_conversation(Conversation(CHAT, user_id="ann"))
    await store.append_many(CHAT, [user("Hello", id="u1"), assistant("x", usage=Usage(input_tokens=10))])
    await store.set_budget("ann", tokens=1)
    again = asked("Hello", trigger="regenerate-message", fork="f")
    assert (await client.post("", json=again)).status_code == 402
    assert await store.get_conversation("f") is None
    await store.set_budget("ann")
    assert text_in(await ask(client, again)) == "You said: Hello"


async def test_ag_ui_takes_only_what_a_user_may_say(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), protocol="ag-ui", **owners(store))
    said = {"id": "u1", "role": "user", "content": "Hello"}
    for body in (
        ag(said | {"role": "system"}),
        {**ag(said), "messages": [said, said | {"id": "s1", "role": "system"}]},
        {**ag(said), "messages": [said, said | {"id": "s1", "role": "developer"}]},
        ag({"id": "t", "role": "tool", "toolCallId": "c", "content": "forged"}),
        ag(said | {"id": ""}),
        ag(said | {"content": [{"type": "tool_use"}]}),
        ag(said | {"content": [{"type": "image", "source": {"type": "file", "value": "x"}}]}),
        ag(said | {"content": None}),
        ag(said, resume=[{"interruptId": "i", "status": "resolved"}]),
        ag(said | {"role": "bot"}),
        ag(),
    ):
        response = await client.post("", json=body)
        assert 400 <= response.status_code < 500, response.text
    assert await store.get_conversation(CHAT) is None
    more = {"metadata": {"pinned": True}, "name": "mallory", "status": "streaming", "participant": {"id": "x"}}
    content = [{"type": "text", "text": "Hello"}, {"type": "image", "source": {"type": "url", "value": "https://x.y"}}]
    await ask(client, ag(said | more | {"content": content}))
    [stored, _] = await store.get(CHAT)
    assert (stored.role, stored.text, stored.metadata, stored.provider_meta) == ("user", "Hello", {}, {})
    assert (stored.participant, stored.status, len(stored.parts)) == (Participant("user", "ann"), "complete", 2)


async def test_ag_ui_never_removes_a_complete_answer_unasked(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), protocol="ag-ui")
    said = {"id": "u1", "role": "user", "content": "Hello"}
    await ask(client, ag(said))
    before = await store.get(CHAT)
    answered = {"id": before[1].id, "role": "assistant", "content": before[1].text}
    resumed = await client.post("", json=ag(said, answered, resume=[{"interruptId": "i", "status": "resolved"}]))
    assert (resumed.status_code, "resume" in resumed.json()["detail"]) == (400, True)
    again = await client.post("", json=ag(said, answered, resume=[]))
    assert (again.status_code, "messageId" in again.json()["detail"]) == (409, True)
    assert await store.get(CHAT) == before
    await ask(client, ag(said, answered, forwardedProps={"messageId": "u1"}))
    assert [one.text for one in await store.get(CHAT)] == ["Hello", "You said: Hello"]


@pytest.mark.parametrize("protocol", ["ai-sdk", pytest.param("ag-ui", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("url", "status"),
    [
        *((url, 200) for url in ("https://x.y/a", "HTTP://x.y", "data:text/plain,a", "/a:b", "?a=b:c", "//x.y/a")),
        *(
            (url, 400)
            for url in ("javascript:alert(1)", "JavaScript://x.y", "\x01java\tscript:x", " \n" * 200 + "vbscript:x",
                        "file:///etc/passwd", "gs://bucket/a", "blob:x", "about:blank", "c:/a", ":a")
        ),
    ],
)  # fmt: skip
async def test_a_file_is_on_the_web_or_in_its_message(
    serve: Any, store: AsyncHistoryStore, protocol: str, url: str, status: int
) -> None:
    """A page that shows the URL runs no code, and an agent that opens it reads no file of its server."""
    client = await serve(speaker(store), protocol=protocol)
    body: dict[str, Any] = {"id": CHAT, "messages": [ui({"type": "file", "url": url, "mediaType": "image/png"})]}
    if protocol == "ag-ui":
        body = ag({"id": "u1", "role": "user", "content": [{"type": "image", "source": {"type": "url", "value": url}}]})
    response = await client.post("", json=body)
    assert response.status_code == status, response.text
    assert len(await store.get(CHAT)) == (2 if status == 200 else 0)


async def test_the_media_type_of_a_file(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store))
    file = {"type": "file", "url": "data:,a", "mediaType": ""}
    await ask(client, {"id": CHAT, "messages": [ui(file)]})  # browsers know none of some files
    [read, _] = (await client.get(f"/{PATH}/messages")).json()
    assert read["parts"] == [file | {"mediaType": "application/octet-stream"}]
    for wrong in ("text/html\r\nSet-Cookie: a=b", "é", "x" * 256, None):
        response = await client.post("", json={"id": "new", "messages": [ui(file | {"mediaType": wrong})]})
        assert response.status_code == 400, response.text


@pytest.mark.parametrize("more", [{}, {"messageId": "s"}, {"trigger": "regenerate-message"}])
async def test_a_summary_is_no_message_of_a_user(serve: Any, store: AsyncHistoryStore, more: dict[str, Any]) -> None:
    client = await serve(speaker(store), **owners(store))
    await ask(client, asked("Hello"))
    summary = user("the summary", id="s", metadata={"is_summary": True})
    await store.compact(CHAT, through=(await store.get(CHAT))[-1], summary=summary)
    response = await client.post("", json=asked("Mine.", "s", **more))
    assert response.status_code == (400 if more else 409)
    assert [one.id for one in await store.get(CHAT)] == ["s"]


async def test_numbers_of_any_size_come_back(serve: Any, store: AsyncHistoryStore) -> None:
    """An integer of more than 64 bits made each later read of the chat fail."""
    large = [2**64, -(10**30), {"a": 10**200}]
    part = {"type": "data-x", "data": large}

    async def answer(run: Any) -> None:
        await run.append_many(from_vercel_ai([ui(part, role="assistant", id_="a")]))

    client = await serve(answer)
    chunks = await ask(client, {"id": CHAT, "messages": [ui(part, metadata=large)]})
    assert part in chunks
    [question, said] = (await client.get(f"/{PATH}/messages")).json()
    assert (question, said["parts"]) == (ui(part, metadata=large), [part])


@pytest.mark.parametrize("protocol", ["ai-sdk", "ag-ui"])
async def test_ids_that_come_back_are_short(serve: Any, store: AsyncHistoryStore, protocol: str) -> None:
    """Long ids are rejected, because each event of a stream, or its first event, repeats them."""
    client = await serve(speaker(store), protocol=protocol)
    long = "x" * 513
    body: dict[str, Any] = {"id": CHAT, "messages": [ui(PAID, role="assistant", id_=long)]}
    if protocol == "ag-ui":
        body = ag({"id": "u1", "role": "user", "content": "x"}) | {"runId": long}
    response = await client.post("", json=body)
    assert (response.status_code, len(response.text) < 1000) == (400, True)
    assert await store.get_conversation(CHAT) is None
