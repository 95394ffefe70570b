"""Requests for approval: which are open, and that one decision stands."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

from redis_history import Conversation, assistant, errors, tool, tool_result, tool_use, user
from redis_history.formats import (
    from_openai_responses,
    to_anthropic,
    to_gemini,
    to_mistral,
    to_openai_chat,
    to_openai_responses,
)
from redis_history.store.operations import Append, DeleteMessages, ReadOpen, Steps, UpdateMessage
from redis_history.store.operations.update import Decides
from redis_history.values.events import MessageUpdated
from tests.conformance.conftest import take
from tests.conformance.test_compaction import summary
from tests.conformance.test_transfer import exported, import_into
from tests.support.faces import act_after
from tests.support.servers import until

Act = Callable[[Any], Awaitable[Any]]


def asking(call: str = "c1", **fields: Any) -> Any:
    return assistant(tool_use(call, "pay", {"sum": 3}, needs_approval=True), **fields)


async def open_calls(store: Any, **selection: Any) -> list[tuple[str, str]]:
    return [(one.conversation_id, one.call_id) for one in await store.list_approvals(**selection)]


@pytest.mark.smoke
async def test_requests_are_listed_by_age_with_their_calls(store: Any) -> None:
    await store.create_conversation(Conversation("a", user_id=7, agent_name="bot"))
    await store.create_conversation(Conversation("b", user_id="7", agent_name="bot"))
    await store.append("c", asking("late", timestamp="2026-03-01T00:00:00Z"))
    await store.append_many("a", [user("pay"), asking("x", id="m"), asking("y")])
    await store.append("b", asking("z"))
    assert await open_calls(store) == [("c", "late"), ("a", "x"), ("a", "y"), ("b", "z")]
    assert await open_calls(store, limit=2) == [("c", "late"), ("a", "x")]
    assert await open_calls(store, limit=0) == []
    assert await open_calls(store, user_id=7) == [("a", "x"), ("a", "y")]
    assert await open_calls(store, agent_name="bot") == [("a", "x"), ("a", "y"), ("b", "z")]
    assert await open_calls(store, agent_name="bot", user_id="7") == [("b", "z")]
    assert await open_calls(store, agent_name="other", user_id="7") == []
    first = (await store.list_approvals(user_id=7))[0]
    assert (first.tool_name, first.input, first.message_id) == ("pay", {"sum": 3}, "m")
    assert (first.user_id, first.agent_name, first.approved) == (7, "bot", None)
    assert first.requested_at == (await store.get_message("a", "m")).timestamp


async def _decided(store: Any) -> None:
    await store.decide("c", "c1", True)


async def _compacted(store: Any) -> None:
    """A call that waits has no result yet, so no compaction takes it."""
    with pytest.raises(errors.TornPairError):
        await store.compact("c", through="m", summary=summary("s", id="s"))
    await store.compact("c", through="u", summary=summary("s", id="s"))


async def _expanded(store: Any) -> None:
    await _compacted(store)
    await store.expand("c", "s")


async def _decided_in_the_archive(store: Any) -> None:
    await _decided(store)
    await store.append("c", tool(tool_result("c1", "done"), id="r"))
    await store.compact("c", through="r", summary=summary("s", id="s"))
    await store.expand("c", "s")


async def _forked(store: Any) -> None:
    await store.fork("c", "f")
    await store.decide("c", "c1", False)


async def _imported(store: Any) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "c.jsonl")
        await exported(store, path)
        await store.delete_conversation("c")
        assert await open_calls(store) == []
        await import_into(store, path)


async def _new_owner(store: Any) -> None:
    await store.update_conversation("c", user_id="bob")
    assert await open_calls(store, user_id="ann") == []
    assert await open_calls(store, user_id="bob") == [("c", "c1")]


async def _appended_again(store: Any) -> None:
    await _decided(store)
    message = (await store.get("c"))[1]
    await store.delete_messages("c", [message.id])
    await store.append("c", asking(id="again"))


async def _answered_elsewhere(store: Any) -> None:
    await store.append("other", tool(tool_result("c1", "done")))


async def _edited(store: Any) -> None:
    await store.update_message("c", asking(id="m", metadata={"k": 1}))


async def _edited_after_the_result(store: Any) -> None:
    await store.append("c", tool(tool_result("c1", "done")))
    await _edited(store)


async def _streamed(store: Any) -> None:
    await store.clear("c")
    async with store.stream("c", interval=0) as reply:
        await reply.write("I ask: ")
        await reply.add(tool_use("c1", "pay", needs_approval=True))
        await reply.write("?")
        assert await open_calls(store) == []


async def _capped(store: Any) -> None:
    await store.append_many("c", [user(str(number)) for number in range(4)])


#: Changes of a conversation with a user's message and a call that waits, and whether the call still waits then.
ACTS: dict[str, tuple[Act, list[tuple[str, str]]]] = {
    "nothing": (lambda store: store.get("c"), [("c", "c1")]),
    "decision": (_decided, []),
    "result": (lambda store: store.append("c", tool(tool_result("c1", "done"))), []),
    "result of another call": (lambda store: store.append("c", tool(tool_result("c2", "done"))), [("c", "c1")]),
    "result in another conversation": (_answered_elsewhere, [("c", "c1")]),
    "edit": (_edited, [("c", "c1")]),
    "edit after the result": (_edited_after_the_result, []),
    "edit without the call": (lambda store: store.update_message("c", assistant("no", id="m")), []),
    "edit to another call": (lambda store: store.update_message("c", asking("c9", id="m")), [("c", "c9")]),
    "deletion": (lambda store: store.delete_messages("c", ["m"]), []),
    "deletion of another": (lambda store: store.delete_messages("c", ["u"]), [("c", "c1")]),
    "erasure": (lambda store: store.erase("c", ["m"]), []),
    "erasure of the user": (lambda store: store.erase_user("ann"), []),
    "end": (lambda store: store.delete_conversation("c"), []),
    "clear": (lambda store: store.clear("c"), []),
    "restore": (lambda store: store.restore("c", [user("x"), asking("c2")]), [("c", "c2")]),
    "restore of the same": (lambda store: store.restore("c", [asking(id="m")]), [("c", "c1")]),
    "compaction": (_compacted, [("c", "c1")]),
    "expansion": (_expanded, [("c", "c1")]),
    "expansion of a decided one": (_decided_in_the_archive, []),
    "fork": (_forked, [("f", "c1")]),
    "export and import": (_imported, [("c", "c1")]),
    "another owner": (_new_owner, [("c", "c1")]),
    "the same call again": (_appended_again, [("c", "c1")]),
    "live reply": (_streamed, [("c", "c1")]),
}


async def _execute(store: Any, op: Any) -> Any:
    def steps() -> Steps[Any]:
        return (yield op)

    return await store.execute(steps())


async def _ask(store: Any) -> None:
    await store.create_conversation(Conversation("c", user_id="ann", agent_name="bot"))
    await store.append_many("c", [user("pay", id="u"), asking(id="m")])


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.proves("approvals")
async def test_which_calls_wait(store: Any, act: str) -> None:
    await _ask(store)
    change, expected = ACTS[act]
    await change(store)
    assert await open_calls(store) == expected
    assert await open_calls(store, agent_name="bot") == expected
    lost = {"ann": {}, "bob": {}}
    for owner in lost:
        lost[owner] = dict(await open_calls(store, user_id=owner))
    assert {**lost["ann"], **lost["bob"]} == dict(expected)


async def test_a_cap_removes_requests(stores: Any) -> None:
    store = stores(max_messages=3)
    await _ask(store)
    await _capped(store)
    assert await open_calls(store) == []


async def test_a_result_of_another_agent_answers_the_latest_request(store: Any) -> None:
    """As `values.pairs` says: the agent's own call before others."""
    from redis_history import Participant

    one, two = Participant("agent", "one"), Participant("agent", "two")
    await store.append_many("c", [asking("x", id="1", participant=one), asking("x", id="2", participant=two)])
    await store.append("c", tool(tool_result("x", "done"), participant=one))
    assert [item.message_id for item in await store.list_approvals()] == ["2"]
    await store.append("c", tool(tool_result("x", "done")))
    assert await open_calls(store) == []


@pytest.mark.smoke
@pytest.mark.proves("approvals")
async def test_one_of_200_decisions_stands(store: Any) -> None:
    await _ask(store)
    decisions = [store.decide("c", "c1", bool(number % 2), by=f"p{number}") for number in range(200)]
    done = await asyncio.gather(*decisions)
    winners = [one for one in done if not one.duplicate]
    assert len(winners) == 1
    assert {(one.approved, one.by) for one in done} == {(winners[0].approved, winners[0].by)}
    later = await store.decide("c", "c1", True)
    assert later == replace(winners[0], duplicate=True)
    assert await open_calls(store) == []


async def test_equal_decisions_have_one_winner(store: Any) -> None:
    await _ask(store)
    done = await asyncio.gather(*(store.decide("c", "c1", True) for _ in range(20)))
    assert [one.duplicate for one in done].count(False) == 1


async def test_a_decision_is_an_event_and_stays_in_the_message(store: Any) -> None:
    await _ask(store)
    async with store.subscribe("c") as subscription:
        await store.decide("c", "c1", False, reason="too much", by="boss")
        [event] = await take(subscription, 1)
    assert isinstance(event, MessageUpdated)
    call, result = event.message.parts
    given = call.provider_meta["approval"]
    assert (given["approved"], given["reason"], given["by"]) == (False, "too much", "boss")
    assert (result.tool_use_id, result.is_error) == ("c1", True)
    assert "too much" in result.content


@pytest.mark.parametrize("write", [to_anthropic, to_gemini, to_mistral, to_openai_chat, to_openai_responses])
async def test_the_next_request_to_a_provider_has_the_denial(store: Any, write: Callable[..., Any]) -> None:
    await _ask(store)
    await store.decide("c", "c1", False, reason="too much")
    await store.append("c", user("and now?"))
    assert "The user denied this call: too much" in str(write(await store.get("c")))


async def test_opaque_requests_get_the_response_of_their_provider(store: Any) -> None:
    request = {"type": "mcp_approval_request", "id": "r", "name": "f", "arguments": '{"a": 1}', "server_label": "s"}
    await store.append_many("c", from_openai_responses([request]))
    [found] = await store.list_approvals()
    assert (found.call_id, found.tool_name, found.input) == ("r", "f", {"a": 1})
    done = await store.decide("c", "r", False, reason="no", by="boss")
    assert await store.decide("c", "r", True) == replace(done, duplicate=True)
    response = {"type": "mcp_approval_response", "approval_request_id": "r", "approve": False, "reason": "no"}
    assert to_openai_responses(await store.get("c")) == [request, response]
    assert await open_calls(store) == []


async def test_requests_that_do_not_wait_are_refused(store: Any) -> None:
    for name in ("c", "absent"):
        with pytest.raises(errors.ApprovalNotFoundError, match="have no request"):
            await store.decide(name, "c1", True)
    await _ask(store)
    await store.append("c", tool(tool_result("c1", "done")))
    with pytest.raises(errors.ApprovalNotFoundError, match="without a decision"):
        await store.decide("c", "c1", True)
    with pytest.raises(errors.ApprovalNotFoundError):
        await store.decide("c", "c2", True)


@pytest.mark.backends("memory")
async def test_wrong_arguments_are_rejected(store: Any) -> None:
    await _ask(store)
    wrong: list[dict[str, Any]] = [
        {"conversation_id": ""}, {"call_id": ""}, {"call_id": 3}, {"approved": 1}, {"approved": None}, {"reason": 3},
        {"reason": "x" * 1001}, {"by": "x" * 201}, {"by": "\ud800"},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(errors.InvalidInputError):
            await store.decide(**{"conversation_id": "c", "call_id": "c1", "approved": True, **given})
    for given in ({"limit": -1}, {"limit": "x"}, {"user_id": 1.5}, {"agent_name": 3}):
        with pytest.raises(errors.InvalidInputError):
            await store.list_approvals(**given)
    assert await open_calls(store) == [("c", "c1")]


@pytest.mark.proves("approvals")
async def test_a_decision_undoes_no_edit(store: Any) -> None:
    await _ask(store)
    act_after(store, ReadOpen, lambda: store.update_message("c", asking(id="m", metadata={"k": 1})))
    await store.decide("c", "c1", True)
    message = await store.get_message("c", "m")
    assert message.metadata == {"k": 1}
    assert message.parts[0].provider_meta["approval"]["approved"] is True


@pytest.mark.proves("approvals")
async def test_a_result_is_faster_than_a_decision(store: Any) -> None:
    await store.append_many("c", [asking("c1", id="m"), asking("c2")])
    act_after(store, ReadOpen, lambda: store.append("c", tool(tool_result("c1", "done"))))
    with pytest.raises(errors.ApprovalNotFoundError, match="without a decision"):
        await store.decide("c", "c1", False)
    assert "approved" not in (await store.get_message("c", "m")).parts[0].provider_meta["approval"]
    assert await open_calls(store) == [("c", "c2")]


@pytest.mark.proves("approvals")
async def test_late_copies_open_and_decide_nothing(store: Any) -> None:
    await store.create_conversation(Conversation("c", user_id="ann"))
    asked = Append.of("c", asking(id="m"))
    await _execute(store, asked)
    [found] = (await _execute(store, ReadOpen("c"))).requests
    done = await store.decide("c", "c1", True, by="boss")
    await _execute(store, asked)
    assert await open_calls(store) == []
    # A slower decision that has read the message before.
    message = replace(found.message, parts=(tool_use("c1", "other"),))
    late = replace(UpdateMessage.of("c", message), decides=Decides(found.changed, found.mark))
    assert await _execute(store, late) is None
    assert (await store.decide("c", "c1", False)).by == done.by
    gone = DeleteMessages.of("c", ["m"])
    await _execute(store, gone)
    await store.append("c", asking(id="m"))
    await _execute(store, gone)
    assert await open_calls(store) == [("c", "c1")]


async def test_expired_conversations_do_not_wait(stores: Any) -> None:
    store = stores(ttl=0.2)
    await _ask(store)
    assert await open_calls(store) == [("c", "c1")]

    async def is_expired() -> bool:
        return await store.get_conversation("c") is None

    await until(is_expired, "the end of the conversation")
    for selection in ({}, {"user_id": "ann"}, {"agent_name": "bot"}):
        assert await open_calls(store, **selection) == []


async def test_many_conversations_wait(store: Any) -> None:
    """More than are read together."""
    for number in range(150):
        await store.append(f"c{number}", asking(str(number)))
    assert [call for _, call in await open_calls(store, limit=1000)] == [str(number) for number in range(150)]
    assert [call for _, call in await open_calls(store, limit=100)] == [str(number) for number in range(100)]


async def test_the_newest_requests_of_a_conversation_are_listed(store: Any) -> None:
    for start in (0, 600):
        await store.append_many("c", [asking(str(number)) for number in range(start, start + 600)])
    found = await open_calls(store, limit=2000)
    assert [call for _, call in found] == [str(number) for number in range(200, 1200)]
    await store.append("c", tool(tool_result("1199", "done")))
    assert len(await store.list_approvals(limit=2000)) == 999
