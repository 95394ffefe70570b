"""The endpoints of a chat, as their front ends use them."""

import asyncio
import threading
from typing import Any

import pytest

from redis_history import (
    AsyncHistoryStore,
    HistoryStore,
    Participant,
    assistant,
    text,
    tool,
    tool_result,
    tool_use,
    user,
)
from redis_history.errors import ConfigurationError
from redis_history.formats import from_vercel_ai, to_vercel_ai
from redis_history.web import ChatEndpoints, allow_all
from tests.support.servers import until
from tests.web.chatting import (
    CHAT,
    PATH,
    Gate,
    ask,
    asked,
    asker,
    chosen,
    chunks_of,
    is_waiting,
    results,
    speaker,
    text_in,
)


async def test_an_answer_is_streamed_and_stored(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store), participant=lambda request: Participant(kind="user", id="u"))
    chunks = await ask(client, asked("Hello"))
    kinds = [chunk["type"] for chunk in chunks if chunk["type"] != "text-delta"]
    assert kinds == ["start", "start-step", "text-start", "text-end", "finish-step", "finish"]
    assert text_in(chunks) == "You said: Hello"
    question, reply = await store.get(CHAT)
    assert (question.id, question.participant, reply.id) == (
        "u1",
        Participant(kind="user", id="u"),
        chunks[0]["messageId"],
    )
    found = (await client.get(f"/{PATH}/messages")).json()
    assert [message["parts"][-1]["text"] for message in found] == ["Hello", "You said: Hello"]
    assert (await client.get(f"/{PATH}/stream")).status_code == 204


async def test_a_stop_keeps_the_text(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    asking = await gate.begin(client, asked("Hello"))
    assert (await client.post(f"/{PATH}/stop")).status_code == 204
    chunks = await asking
    assert (text_in(chunks), chunks[-1]["type"]) == ("first ", "abort")
    reply = (await store.get(CHAT))[-1]
    assert (reply.text, reply.status) == ("first ", "stopped")


async def test_a_second_message_waits_or_is_refused(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client, strict = await serve(gate), await serve(gate, busy="refuse")
    first = await gate.begin(client, asked("one"))
    refused = await strict.post("/", json=asked("no", "u0"))
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    second = asyncio.create_task(ask(client, asked("two", "u2")))
    await until(lambda: is_waiting(store))
    assert gate.calls == 1
    async with strict.stream("POST", "", json=asked("one")) as again:  # the very message that is being answered
        gate.open.set()
        assert text_in([chunk async for chunk in chunks_of(again)]) == "first last"
    assert text_in(await first) == text_in(await second) == "first last"
    # What `regenerate()` sends, although the message was refused.
    assert text_in(await ask(strict, asked("no", "u0", trigger="regenerate-message"))) == "first last"
    assert sorted(message.text for message in await store.get(CHAT)) == [*["first last"] * 3, "no", "one", "two"]


@pytest.mark.parametrize("removed", ["chat", "message"])
async def test_a_message_that_is_removed_while_it_waits_is_not_answered(
    serve: Any, store: AsyncHistoryStore, removed: str
) -> None:
    gate = Gate()
    client = await serve(gate)
    first = await gate.begin(client, asked("one"))
    second = asyncio.create_task(ask(client, asked("two", "u2")))
    await until(lambda: is_waiting(store))
    await (store.delete_conversation(CHAT) if removed == "chat" else store.delete_messages(CHAT, ["u2"]))
    gate.open.set()
    ends = [chunks[-1]["type"] for chunks in await asyncio.gather(first, second)]
    assert ends == ["error" if removed == "chat" else "finish", "error"]
    assert (gate.calls, len(await store.get(CHAT))) == (1, 0 if removed == "chat" else 2)


async def test_a_repeated_request_is_answered_once(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store))
    first = await ask(client, asked("Hello"))
    again = await ask(client, asked("Hello"))
    assert text_in(first) == text_in(again)
    assert len(await store.get(CHAT)) == 2


@pytest.mark.parametrize("processes", [1, 2])
async def test_copies_of_a_request_at_once_are_answered_once(
    serve: Any, store: AsyncHistoryStore, processes: int
) -> None:
    arrived = asyncio.Barrier(4)

    asked_before: set[Any] = set()

    async def authorize(request: Any, chat: str | None, action: str) -> bool:
        if request not in asked_before:  # three of them find a chat that another one has created, and ask again
            asked_before.add(request)
            await arrived.wait()
        return True

    clients = [await serve(speaker(store), authorize=authorize) for _ in range(processes)]
    copies = await asyncio.gather(*(ask(clients[at % processes], asked("Hello")) for at in range(4)))
    assert [text_in(copy) for copy in copies] == ["You said: Hello"] * 4
    assert len(await store.get(CHAT)) == 2


async def test_regenerate_and_edit_replace_what_follows(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store))
    first = await ask(client, asked("Hello"))
    body = asked("Hello") | {"trigger": "regenerate-message", "messageId": first[0]["messageId"]}
    again = await ask(client, body)
    assert again[0]["messageId"] != first[0]["messageId"]
    assert [message.text for message in await store.get(CHAT)] == ["Hello", "You said: Hello"]
    await ask(client, asked("Goodbye", messageId="u1"))
    assert [message.text for message in await store.get(CHAT)] == ["Goodbye", "You said: Goodbye"]
    body["messages"][0] |= {"id": "unknown", "role": "assistant"}
    assert (await client.post("", json=body)).status_code == 404


@pytest.mark.parametrize(
    ("words", "more"), [("two", {"trigger": "regenerate-message"}), ("three", {"messageId": "u2"})]
)
@pytest.mark.parametrize("last", ["u2", "the answer"])
async def test_what_a_summary_replaced_can_be_answered_again(
    serve: Any, store: AsyncHistoryStore, last: str, words: str, more: dict[str, str]
) -> None:
    """The summary also stands for what precedes the message, which stays."""
    client = await serve(speaker(store))
    await ask(client, asked("one"))
    await ask(client, asked("two", "u2"))
    await store.compact(CHAT, through=last if last == "u2" else (await store.get(CHAT))[-1], summary="They spoke.")
    assert text_in(await ask(client, asked(words, "u2", **more))) == f"You said: {words}"
    found = await store.get(CHAT)
    assert [one.text for one in found] == ["one", "You said: one", words, f"You said: {words}"]


async def test_regenerate_and_edit_in_a_fork_leave_the_conversation(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store))
    await ask(client, asked("Hello"))
    again = asked("Hello") | {"trigger": "regenerate-message", "fork": "again"}
    assert text_in(await ask(client, again)) == "You said: Hello"
    assert text_in(await ask(client, asked("Goodbye", messageId="u1", fork="edited"))) == "You said: Goodbye"
    for chat, words in ((CHAT, "Hello"), ("again", "Hello"), ("edited", "Goodbye")):
        assert [message.text for message in await store.get(chat)] == [words, f"You said: {words}"]
    found = await store.list_conversations(forked_from=CHAT)
    assert sorted(one.conversation_id for one in found) == ["again", "edited"]
    assert (await client.post("", json=again)).status_code == 409  # there is such a conversation
    assert (await client.post("", json=again | {"fork": 1})).status_code == 400
    assert (await client.post("", json=asked("x", "u2", messageId="unknown", fork="f"))).status_code == 404


async def test_a_new_chat_and_its_forks_belong_to_the_user_who_began_it(serve: Any, store: AsyncHistoryStore) -> None:
    """If two users begin a chat at the same moment, the chat belongs to only one user."""
    both = asyncio.Barrier(2)

    async def authorize(request: Any, conversation_id: str, action: str) -> bool:
        found = await store.get_conversation(conversation_id)
        if found is None and conversation_id == "new":
            await both.wait()
        return found is None or found.user_id == request.headers["user"]

    def participant(request: Any) -> Participant:
        return Participant("user", request.headers["user"])

    client = await serve(speaker(store), authorize=authorize, participant=participant)
    client.headers["user"] = "ann"
    await ask(client, asked("Hello"))
    await ask(client, asked("Hello", trigger="regenerate-message", fork="b"))
    assert {one.conversation_id for one in await store.list_conversations(user_id="ann")} == {CHAT, "b"}
    assert (await client.get(f"/{PATH}/messages", headers={"user": "bob"})).status_code == 403
    bodies = {name: asked(name, name, id="new") for name in ("ann", "bob")}
    sent = (client.post("", json=body, headers={"user": name}) for name, body in bodies.items())
    assert sorted(one.status_code for one in await asyncio.gather(*sent)) == [200, 403]
    question, record = (await store.get("new"))[0], await store.get_conversation("new")
    assert record is not None
    assert record.user_id == question.text


async def test_a_fork_needs_its_rights(serve: Any, store: AsyncHistoryStore) -> None:
    refused = {(CHAT, "fork")}
    client = await serve(speaker(store), authorize=lambda request, chat, action: (chat, action) not in refused)
    await ask(client, asked("Hello"))
    again = asked("Hello") | {"trigger": "regenerate-message", "fork": "again"}
    assert (await client.post("", json=again)).status_code == 403
    refused = {("again", "append")}
    assert (await client.post("", json=again)).status_code == 403
    assert await store.get_conversation("again") is None


async def test_regenerate_stops_the_answer_that_is_being_written(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    first = await gate.begin(client, asked("Hello"))
    second = asyncio.create_task(ask(client, asked("Hello") | {"trigger": "regenerate-message"}))
    assert (await first)[-1]["type"] == "abort"
    gate.open.set()
    assert text_in(await second) == "first last"
    assert [message.text for message in await store.get(CHAT)] == ["Hello", "first last"]


async def test_a_message_that_is_sent_during_a_regenerate_stays(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    await store.append(CHAT, user("Hello", id="u1"))
    await store.append(CHAT, assistant("Hi."))
    async with store.run(CHAT):  # the regenerate waits for the end of this
        again = asyncio.create_task(ask(client, asked("Hello") | {"trigger": "regenerate-message"}))

        async def is_stopping() -> bool:
            run = await store.get_run(CHAT)
            return run is not None and run.status == "stopping"

        await until(is_stopping)
        await store.append_many(CHAT, [user("Another question."), assistant("A late answer.")])
    gate.open.set()
    await again
    assert [message.text for message in await store.get(CHAT)] == ["Hello", "Another question.", "first last"]


async def test_a_failed_answer_can_be_asked_for_again(serve: Any, store: AsyncHistoryStore) -> None:
    async def answer(run: Any) -> None:
        if not answer.__dict__.setdefault("failed", []):
            answer.__dict__["failed"].append(True)
            await run.append(assistant(text("Let me see."), tool_use("call", "find", {})))
            raise ValueError("the model is away")
        await run.append(assistant("Found."))

    client = await serve(answer)
    chunks = await ask(client, asked("Hello"))
    assert chunks[-1]["type"] == "error"
    assert "model is away" not in chunks[-1]["errorText"]
    async with client.stream("GET", f"/{PATH}/stream") as response:  # another tab, or later
        assert [chunk async for chunk in chunks_of(response)] == chunks
    assert [chunk["type"] for chunk in chunks if chunk["type"].startswith("tool")] == [
        "tool-input-available",
        "tool-output-error",
    ]
    again = await ask(client, asked("Hello") | {"trigger": "regenerate-message"})
    assert text_in(again) == "Found."


async def test_tools_of_the_agent_and_of_the_front_end(serve: Any, store: AsyncHistoryStore) -> None:
    async def answer(run: Any) -> None:
        last = (await store.get(run.conversation_id))[-1]
        if last.role == "user":
            await run.append(assistant(tool_use("mine", "add", {"a": 1}), tool_use("yours", "ask", {}), id="a"))
            await run.append(tool(tool_result("mine", {"sum": 2})))
        else:
            await run.append(assistant(f"You chose {last.tool_results[0].content}."))

    client = await serve(answer, client_tools=["ask"])
    chunks = await ask(client, asked("Add"))
    outputs = {chunk["toolCallId"]: chunk["output"] for chunk in chunks if chunk["type"] == "tool-output-available"}
    assert outputs == {"mine": {"sum": 2}}
    [_, message] = (await client.get(f"/{PATH}/messages")).json()
    block = next(part for part in message["parts"] if part.get("toolCallId") == "yours")
    block |= {"state": "output-available", "output": "red"}
    chunks = await ask(client, asked("Add") | {"messages": [message], "messageId": message["id"]})
    assert text_in(chunks) == "You chose red."
    assert [result.content for one in await store.get(CHAT) for result in one.tool_results] == [{"sum": 2}, "red"]


async def test_a_plain_function_answers_in_a_thread(serve: Any, store: AsyncHistoryStore) -> None:
    def answer(run: Any) -> None:
        with run.stream() as reply:
            reply.write("from a thread: ")
            reply.write(run.conversation_id)
        assert run.messages() == []

    assert text_in(await ask(await serve(answer), asked("Hello"))) == f"from a thread: {CHAT}"


async def test_plain_functions_that_answer_delay_no_requests(serve: Any, store: AsyncHistoryStore) -> None:
    """There are more of them than an event loop has threads."""
    begun: list[Any] = []
    go = threading.Event()

    def answer(run: Any) -> None:
        begun.append(run)
        go.wait()

    client = await serve(answer, authorize=lambda request, chat, action: True)
    asking = [asyncio.create_task(ask(client, asked("Hello") | {"id": f"chat-{at}"})) for at in range(40)]
    try:
        await until(lambda: len(begun) == len(asking))
        assert (await client.post("/chat-0/stop")).status_code == 204
    finally:
        go.set()
    await asyncio.gather(*asking)


async def test_rights(serve: Any, store: AsyncHistoryStore) -> None:
    wanted: list[tuple[str | None, str]] = []

    def authorize(request: Any, conversation_id: str | None, action: str) -> bool:
        wanted.append((conversation_id, action))
        return False

    client = await serve(speaker(store), authorize=authorize)
    for method, path, action in (
        ("POST", "", "append"),
        ("GET", f"/{PATH}/stream", "read"),
        ("GET", f"/{PATH}/messages", "read"),
        ("POST", f"/{PATH}/stop", "stop"),
    ):
        response = await client.request(method, path, json=asked("Hello") if path == "" else None)
        assert (response.status_code, wanted.pop()) == (403, (CHAT, action))
    assert await store.get(CHAT) == []


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ([], "object"),
        ({"messages": [{}]}, "id"),
        ({"id": "c", "messages": []}, "messages"),
        ({"id": "c", "messages": ["x"]}, "messages"),
        ({"id": "c", "messages": [{"id": "m", "role": "bot", "parts": []}]}, "UI message"),
        (asked("x", trigger="other"), "trigger"),
        (asked("x") | {"id": ""}, "conversation_id"),
    ],
)
@pytest.mark.full
async def test_wrong_requests(serve: Any, store: AsyncHistoryStore, body: Any, named: str) -> None:
    client = await serve(speaker(store))
    response = await client.post("", json=body)
    assert (response.status_code, named in response.json()["detail"]) == (400, True), response.text
    assert (await client.post("", content=b"{", headers={"content-type": "application/json"})).status_code == 400
    assert (await client.post("", content=b"{}")).status_code == 415
    other = await client.post("", json=asked("x"), headers={"origin": "https://evil.test"})
    assert other.status_code == 403


def test_wrong_options(store: AsyncHistoryStore) -> None:
    with HistoryStore("memory://") as synchronous, pytest.raises(ConfigurationError, match="AsyncHistoryStore"):
        ChatEndpoints(synchronous, print, authorize=allow_all)  # type: ignore[arg-type]
    for wrong in ({"protocol": "other"}, {"busy": "drop"}, {"attempts": 0}, {"authorize": None}, {"participant": 1}):
        with pytest.raises(ConfigurationError):
            ChatEndpoints(store, print, **{"authorize": allow_all} | wrong)  # type: ignore[arg-type]


async def test_a_tool_of_the_front_end_may_use_an_id_again(serve: Any, store: AsyncHistoryStore) -> None:
    """Models number their calls anew: in each answer, or in each step of one."""
    client = await serve(asker(store), client_tools=["ask"])

    async def choose(choice: str) -> dict[str, Any]:
        body = asked("") | {"messages": [await chosen(client, choice)]}
        await ask(client, body)
        return body

    await ask(client, asked("two choices", "u1"))
    first = await choose("red")
    second = await choose("blue")
    await ask(client, asked("one choice", "u2"))
    await ask(client, first)  # late copies
    await ask(client, second)
    assert await results(store) == ["red", "blue"]
    await choose("green")
    assert await results(store) == ["red", "blue", "green"]


async def test_a_repeated_request_gets_the_answer_to_its_message(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    first = await gate.begin(client, asked("one"))
    second = asyncio.create_task(ask(client, asked("two", "u2")))
    await until(lambda: is_waiting(store))
    async with client.stream("POST", "", json=asked("two", "u2")) as response:
        gate.open.set()
        again = [chunk async for chunk in chunks_of(response)]
    assert again == await second
    assert (again[0]["messageId"], text_in(again)) == ((await store.get(CHAT))[-1].id, text_in(await first))
    assert gate.calls == 2


async def test_a_message_that_got_no_answer_can_be_sent_again(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    first = await gate.begin(client, asked("one"))
    second = asyncio.create_task(ask(client, asked("two", "u2")))
    await until(lambda: is_waiting(store))
    assert (await client.post(f"/{PATH}/stop")).status_code == 204
    assert (await first)[-1]["type"] == "abort"
    assert [chunk["type"] for chunk in await second] == ["start", "abort"]
    gate.open.set()
    assert text_in(await ask(client, asked("two", "u2"))) == "first last"
    assert [message.text for message in await store.get(CHAT)] == ["one", "first ", "two", "first last"]


async def test_a_repeated_result_is_answered_once(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(asker(store), client_tools=["ask"])
    await ask(client, asked("one choice"))
    message = await chosen(client, "red")
    chunks = await ask(client, asked("") | {"messages": [message]})
    assert text_in(chunks) == "You chose ['red']."
    assert await ask(client, asked("") | {"messages": [message]}) == chunks
    assert len(await store.get(CHAT)) == 4


@pytest.mark.parametrize("response", [{"approved": True}, {"approved": False, "reason": "too much"}])
async def test_a_response_to_a_request_for_approval(
    serve: Any, store: AsyncHistoryStore, response: dict[str, Any]
) -> None:
    """`addToolApprovalResponse` sends a response. Only the response is stored, and the agent is called again."""
    call = {"type": "tool-pay", "toolCallId": "c", "input": {"sum": 3}}
    request = {**call, "state": "approval-requested", "approval": {"id": "ap"}}

    async def answer(run: Any) -> None:
        *_, last = to_vercel_ai(await store.get(run.conversation_id))
        if last["role"] == "user":
            await run.append_many(from_vercel_ai([{"id": "a", "role": "assistant", "parts": [request]}]))
            return
        gate.begun.set()
        await gate.open.wait()
        if last["parts"][0]["approval"].get("approved"):
            await run.append(tool(tool_result("c", "paid")))
        else:
            await run.append(assistant(f"It is {last['parts'][0]['approval'].get('reason')}."))

    gate = Gate()
    client, strict = await serve(answer), await serve(answer, busy="refuse")
    await ask(client, asked("Pay!"))
    [_, message] = (await client.get(f"/{PATH}/messages")).json()
    assert message["parts"] == [request]
    given = {**request, "state": "approval-responded", "approval": {"id": "ap", **response}}
    body = asked("") | {"messages": [message | {"parts": [given | {"input": {"sum": 4}}]}], "messageId": "a"}
    asking = await gate.begin(client, body)
    async with strict.stream("POST", "", json=body) as copy:
        gate.open.set()
        chunks = [chunk async for chunk in chunks_of(copy)]
    assert chunks == await asking
    assert chunks[0] == {"type": "start", "messageId": "a"}
    output = {"state": "output-available", "output": "paid"} if response["approved"] else {}
    if output:  # the client has the call
        assert [one["type"] for one in chunks if one["type"].startswith("tool")] == ["tool-output-available"]
    else:
        assert text_in(chunks) == "It is too much."
    [_, message] = (await client.get(f"/{PATH}/messages")).json()
    assert message["parts"][0] == given | output
    [result] = [part for one in await store.get(CHAT) for part in one.tool_results]
    denied = "The user denied this call: too much"
    assert (result.content, result.is_error) == (("paid", False) if response["approved"] else (denied, True))


async def test_only_messages_of_users_are_edited(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store))
    reply = (await ask(client, asked("Hello")))[0]["messageId"]
    response = await client.post("", json=asked("I never said that.", reply, messageId=reply))
    assert response.status_code == 400
    response = await client.post("", json=asked("", reply) | {"trigger": "regenerate-message"})
    assert response.status_code == 400
    assert [message.text for message in await store.get(CHAT)] == ["Hello", "You said: Hello"]


async def test_an_edit_may_have_a_new_id(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(speaker(store))
    await ask(client, asked("Hello"))
    await store.pin(CHAT, "u1")
    assert text_in(await ask(client, asked("Goodbye", "u2", messageId="u1"))) == "You said: Goodbye"
    [found] = [one for one in await store.get(CHAT) if one.role == "user"]
    assert (found.id, found.text, found.is_pinned) == ("u1", "Goodbye", True)


async def test_a_request_for_an_unknown_message_stops_nothing(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate)
    asking = await gate.begin(client, asked("Hello"))
    reply = {"messages": [{"id": "unknown", "role": "assistant", "parts": []}]}
    for more in (reply, {"fork": "f"}):
        body = asked("", "unknown") | {"trigger": "regenerate-message"} | more
        assert (await client.post("", json=body)).status_code == 404
    gate.open.set()
    assert (text_in(await asking), gate.calls) == ("first last", 1)


async def test_replacing_an_answer_needs_its_rights(serve: Any, store: AsyncHistoryStore) -> None:
    refused: set[str] = set()
    gate = Gate()
    client = await serve(gate, authorize=lambda request, chat, action: action not in refused)
    asking = await gate.begin(client, asked("Hello"))
    for refused_now in ("stop", "delete"):
        refused = {refused_now}
        for body in (asked("Hello") | {"trigger": "regenerate-message"}, asked("Goodbye", messageId="u1")):
            assert (await client.post("", json=body)).status_code == 403
    gate.open.set()
    assert text_in(await asking) == "first last"
    fork = asked("Hello") | {"trigger": "regenerate-message", "fork": "again"}
    assert text_in(await ask(client, fork)) == "first last"  # removes nothing here
    assert [message.text for message in await store.get(CHAT)] == ["Hello", "first last"]
