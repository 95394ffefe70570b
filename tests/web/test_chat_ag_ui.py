"""A chat with AG-UI: streams, stops, failed answers, and clients that connect again."""

from typing import Any

import pytest

from redis_history import AsyncHistoryStore, Participant, assistant, reasoning, text, tool, tool_result, tool_use, user
from tests.support.servers import until
from tests.web.chatting import (
    CHAT,
    PATH,
    Gate,
    after_a_secret,
    ask,
    asker,
    chunks_of,
    hide_the_secret,
    results,
    resumed_by,
)


def ag_ui_text(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


def run_input(*messages: dict[str, Any], **forwarded: Any) -> dict[str, Any]:
    """The body of a request. Messages of the user have a text, and results of tools a call."""
    rest = {"state": {}, "tools": [], "context": [], "forwardedProps": forwarded}
    return {"threadId": CHAT, "runId": "r1", "messages": list(messages), **rest}


def said(id_: str, words: str) -> dict[str, Any]:
    return {"id": id_, "role": "user", "content": words}


def chosen(id_: str, choice: str) -> dict[str, Any]:
    return {"id": id_, "role": "tool", "toolCallId": "call_0", "content": choice}


async def test_ag_ui(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()
    client = await serve(gate, protocol="ag-ui")
    asking = await gate.begin(client, run_input(said("u1", "Hello")))

    [again] = await resumed_by(client, gate, 1)
    events = await asking
    assert (events[0]["type"], events[0]["runId"], events[-1]["type"]) == ("RUN_STARTED", "r1", "RUN_FINISHED")
    assert ag_ui_text(events) == "first last"
    assert again[1]["type"] == "MESSAGES_SNAPSHOT"
    assert [message["content"] for message in again[1]["messages"]] == ["Hello", "first "]
    assert ag_ui_text(again) == "last"
    edited = run_input(said("u1", "Goodbye"), messageId="u1", fork="edited")
    assert (await ask(client, edited))[-1]["type"] == "RUN_FINISHED"
    assert [message.text for message in await store.get("edited")] == ["Goodbye", "first last"]
    found = (await client.get(f"/{PATH}/messages")).json()
    assert [(one["role"], one["content"]) for one in found] == [("user", "Hello"), ("assistant", "first last")]
    assert (await client.post("", json={"threadId": CHAT})).status_code == 400
    gate.open.clear()
    gate.begun.clear()
    asking = await gate.begin(client, run_input(said("u2", "More")))
    assert (await client.post(f"/{PATH}/stop")).status_code == 204
    assert (await asking)[-1]["outcome"]["type"] == "cancelled"
    assert (await store.get(CHAT))[-1].status == "stopped"


async def test_a_failed_answer_of_ag_ui_can_be_asked_for_again(serve: Any, store: AsyncHistoryStore) -> None:
    calls: list[str] = []

    async def answer(run: Any) -> None:
        calls.append(run.run_id)
        await run.append(assistant(f"answer {len(calls)}", id=f"a{len(calls)}"))
        if len(calls) == 1:
            raise ValueError("the model is away")

    client = await serve(answer, protocol="ag-ui")
    question = said("u1", "Hello")
    events = await ask(client, run_input(question))
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "failed")
    assert "model is away" not in events[-1]["message"]
    kept = {"id": "a1", "role": "assistant", "content": "answer 1"}
    again = await ask(client, run_input(question, kept) | {"runId": "r2"})
    assert [event["type"] for event in again[:2]] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert "a1" not in [message["id"] for message in again[1]["messages"]]  # so the client drops it
    assert again[-1]["type"] == "RUN_FINISHED"
    assert [message.id for message in await store.get(CHAT)] == ["u1", "a2"]


async def test_a_client_of_ag_ui_that_connects_gets_what_it_has_missed(serve: Any, store: AsyncHistoryStore) -> None:
    gate = Gate()

    async def answer(run: Any) -> None:
        async with run.stream(interval=0.0) as reply:
            for part in (reasoning("I look."), tool_use("c1", "find", {"q": 1}), text("It ")):
                await reply.add(part)
            gate.begun.set()
            await gate.open.wait()
            await reply.write("is here.")
        await run.append(tool(tool_result("c1", "found")))

    async def is_stored() -> bool:
        return len((await store.get(CHAT))[-1].parts) == 3

    client = await serve(answer, protocol="ag-ui")
    async with client.stream("GET", f"/{PATH}/stream") as response:
        nothing = [event async for event in chunks_of(response)]
    assert [event["type"] for event in nothing] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    asking = await gate.begin(client, run_input(said("u1", "Hello")))
    await until(is_stored)
    [found] = await resumed_by(client, gate, 1)
    assert [event["type"] for event in found] == [
        "RUN_STARTED", "MESSAGES_SNAPSHOT", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "TOOL_CALL_RESULT", "RUN_FINISHED",
    ]  # fmt: skip
    assert [(one["role"], one.get("content")) for one in found[1]["messages"]] == [
        ("user", "Hello"), ("reasoning", "I look."), ("assistant", None), ("assistant", "It "),
    ]  # fmt: skip
    assert (found[2]["messageId"], ag_ui_text(found)) == (found[1]["messages"][-1]["id"], "is here.")
    assert ag_ui_text(await asking) == "It is here."


async def test_a_tool_of_the_front_end_may_use_an_id_again(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(asker(store), client_tools=["ask"], protocol="ag-ui")
    await ask(client, run_input(said("u1", "two choices")))
    await ask(client, run_input(chosen("t1", "red")))
    await ask(client, run_input(chosen("t2", "blue")))
    await ask(client, run_input(said("u2", "one choice")))
    await ask(client, run_input(chosen("t2", "blue")))  # a late copy
    assert await results(store) == ["red", "blue"]
    await ask(client, run_input(chosen("t3", "green")))
    assert await results(store) == ["red", "blue", "green"]


async def test_messages_without_an_answer_do_not_block_a_chat(serve: Any, store: AsyncHistoryStore) -> None:
    """A client sends them again with the next message, also those that another user wrote or changed."""
    names = ["ann", "ann", "bob", "bob"]
    fails = [True, True]

    async def answer(run: Any) -> None:
        if fails:
            raise ValueError(fails.pop())
        await run.append(assistant("Yes."))

    client = await serve(answer, protocol="ag-ui", participant=lambda request: Participant("user", names.pop(0)))
    first = run_input(said("u1", "one"))
    assert (await ask(client, first))[-1]["type"] == "RUN_ERROR"
    assert (await ask(client, first))[-1]["type"] == "RUN_ERROR"  # runAgent() asks again
    assert not fails
    await store.update_message(CHAT, user("[removed]", id="u1"))
    more = run_input(said("u1", "one"), said("u2", "two"), said("u3", "three"))
    assert (await ask(client, more))[-1]["type"] == "RUN_FINISHED"
    assert [one.text for one in await store.get(CHAT)] == ["[removed]", "two", "three", "Yes."]
    edited = run_input(said("u1", "one"), said("u3", "THREE"), messageId="u3")
    assert (await ask(client, edited))[-1]["type"] == "RUN_FINISHED"
    assert [one.text for one in await store.get(CHAT)] == ["[removed]", "two", "THREE", "Yes."]


async def test_a_result_and_a_message_at_once(serve: Any, store: AsyncHistoryStore) -> None:
    client = await serve(asker(store), client_tools=["ask"], protocol="ag-ui")
    await ask(client, run_input(said("u1", "one choice")))
    await ask(client, run_input(chosen("t1", "red"), said("u2", "one choice")))
    assert [one.role for one in await store.get(CHAT)] == ["user", "assistant", "tool", "user", "assistant"]


async def test_a_stream_that_has_the_messages_needs_the_right_to_read(serve: Any, store: AsyncHistoryStore) -> None:
    await store.append_many(CHAT, [user("A secret."), user("Hello", id="u1")])
    client = await serve(
        asker(store), client_tools=["ask"], protocol="ag-ui", authorize=lambda request, chat, action: action != "read"
    )
    for more in ({}, {"messageId": "u1"}, {"messageId": "u1", "fork": "f"}):
        assert (await client.post("", json=run_input(said("u1", "Hello"), **more))).status_code == 403
    assert await store.get_conversation("f") is None


@pytest.mark.parametrize("change", ["edit", "remove"])
async def test_a_snapshot_has_what_is_edited_while_it_is_written(
    serve: Any, store: AsyncHistoryStore, change: str
) -> None:
    gate = Gate()
    client = await serve(after_a_secret(gate), protocol="ag-ui")
    async with client.stream("POST", "", json=run_input(said("u1", "Hello"))) as response:
        events = chunks_of(response)
        while (await anext(events)).get("delta") != "first ":
            pass
        await hide_the_secret(store, change)
        found = [await anext(events) for _ in range(3)]
        gate.open.set()
        found += [event async for event in events]
    assert [event["type"] for event in found] == [
        "TEXT_MESSAGE_END", "MESSAGES_SNAPSHOT", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]  # fmt: skip
    kept = ["[removed]"] if change == "edit" else []
    assert [one["content"] for one in found[1]["messages"]] == ["Hello", *kept, "first "]
    assert ag_ui_text(found) == "last"


async def test_a_snapshot_has_the_answer_to_the_message_before(serve: Any, store: AsyncHistoryStore) -> None:
    """It was written while the message of the client waited, so after it."""
    one, two = Gate(), Gate()

    async def answer(run: Any) -> None:
        if one.open.is_set():
            await after_a_secret(two)(run)
        else:
            one.begun.set()
            await one.open.wait()
            await run.append(assistant("To one."))

    client = await serve(answer, protocol="ag-ui")
    asking = await one.begin(client, run_input(said("u1", "One")))
    async with client.stream("POST", "", json=run_input(said("u2", "Two"))) as response:
        one.open.set()
        events = chunks_of(response)
        while (await anext(events)).get("delta") != "first ":
            pass
        await hide_the_secret(store, "edit")
        while (event := await anext(events))["type"] != "MESSAGES_SNAPSHOT":
            pass
        two.open.set()
        assert [one["content"] for one in event["messages"]] == ["One", "Two", "To one.", "[removed]", "first "]
    await asking


@pytest.mark.parametrize(
    "answer",
    [{"payload": {"approved": True}}, {"payload": {"approved": False, "reason": "too much"}}, {"cancelled": 1}],
)
async def test_a_call_that_waits_for_approval_is_an_interrupt(
    serve: Any, store: AsyncHistoryStore, answer: dict[str, Any]
) -> None:
    async def pay(run: Any) -> None:
        *_, last = await store.get(run.conversation_id)
        if last.role == "user":
            await run.append(assistant(tool_use("c", "pay", {"sum": 3}, needs_approval=True)))
        elif last.parts[0].provider_meta["approval"]["approved"]:
            await run.append(tool(tool_result("c", "paid")))
        else:
            await run.append(assistant("Then not."))

    client = await serve(pay, protocol="ag-ui")
    [*_, end] = await ask(client, run_input(said("u1", "Pay!")))
    assert end["outcome"]["type"] == "interrupt"
    [interrupt] = end["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["toolCallId"]) == ("c", "c")
    given = {"interruptId": "c", "status": "cancelled" if "cancelled" in answer else "resolved", **answer}
    messages = (await client.get(f"/{PATH}/messages")).json()
    wrong = await client.post("", json=run_input(*messages) | {"resume": [{"interruptId": "c", "status": "resolved"}]})
    assert wrong.status_code == 400
    unknown = await client.post("", json=run_input(*messages) | {"resume": [given | {"interruptId": "x"}]})
    assert unknown.status_code == 400
    body = run_input(*messages) | {"resume": [given]}
    events = await ask(client, body)
    assert (events[-1]["type"], events[-1].get("outcome")) == ("RUN_FINISHED", None)
    approved = answer.get("payload", {}).get("approved", False)
    stored = await store.get(CHAT)
    results = [part.content for one in stored for part in one.tool_results]
    denied = "The user denied this call: too much" if "payload" in answer else "The user denied this call."
    assert results == ["paid" if approved else denied]
    assert await ask(client, body) == events
    assert await store.list_approvals() == []
